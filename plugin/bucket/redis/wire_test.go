package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// dialed returns a pipeline whose connections go where dial leads, and go-redis's client of the same server.
func dialed(t *testing.T, timeout time.Duration, dial func() (net.Conn, error)) (*pipeline, *redis.Client) {
	t.Helper()
	newClient := func() *redis.Client {
		return redis.NewClient(&redis.Options{
			Protocol: 2, MaxRetries: -1, DialerRetries: 1, ReadTimeout: timeout, WriteTimeout: timeout,
			DialTimeout: time.Minute, DisableIdentity: true,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return dial() },
		})
	}
	client := newClient()
	p := &pipeline{options: client.Options(), newClient: newClient}
	t.Cleanup(func() {
		p.close()
		p.serving.Wait()
		assert.NoError(t, client.Close())
	})
	return p, client
}

// scripted returns a connection to a server that replies to the commands which open it, and then sends each of these
// texts for a command.
func scripted(texts ...string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		buffer := make([]byte, 1<<16)
		for _, text := range append([]string{"-ERR unknown command 'hello'\r\n", "+PONG\r\n"}, texts...) {
			if _, err := server.Read(buffer); err != nil {
				return
			}
			if _, err := server.Write([]byte(text)); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, server) // until the client ends
	}()
	return client, nil
}

// runIn runs a script in a pipeline.
func runIn(t *testing.T, p *pipeline, key string) (string, error) {
	c := newCall([]string{key})
	err := p.run(t.Context(), newScript("return {KEYS[1]}"), c)
	return string(c.reply), err
}

func TestEachCallHasItsOwnReply(t *testing.T) {
	server := redistest.Single(t)
	p, client := dialed(t, 10*time.Second, func() (net.Conn, error) { return net.Dial("tcp", server.Address()) })
	must(t, client, "script", "load", "return {KEYS[1]}")
	var calls atomic.Int64
	err := atOnce(64, 50, func() error {
		key := fmt.Sprint("key-", calls.Add(1))
		if reply, err := runIn(t, p, key); err != nil || reply != string(encoded(key)) {
			return fmt.Errorf("%s has the reply %q (%w)", key, reply, err)
		}
		return nil
	})
	assert.NoError(t, err)
}

func TestAReplyThatIsNoneEndsTheWire(t *testing.T) {
	for _, text := range []string{"?\r\n", "$5\r\nxxxxxyy", "*1\r\n:x\r\n", ":1\r\n:2\r\n:3\r\n"} {
		var dials atomic.Int32
		p, _ := dialed(t, 10*time.Second, func() (net.Conn, error) {
			if dials.Add(1) == 1 {
				return scripted(text, text)
			}
			return scripted("*0\r\n")
		})
		_, _ = runIn(t, p, "k") // its own reply may come before the fault
		await.That(t, "a new wire is opened", func() bool {
			_, err := runIn(t, p, "k")
			return err == nil && dials.Load() > 1
		})
	}
}

func TestACallThatIsAbandonedBeforeTheWireIsOpenIsNeverSent(t *testing.T) {
	server := redistest.Single(t)
	dialing, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p, client := dialed(t, 10*time.Second, func() (net.Conn, error) {
		once.Do(func() { close(dialing) })
		<-proceed
		return net.Dial("tcp", server.Address())
	})
	count := newScript(countScript)
	must(t, server.Client(t), "script", "load", countScript)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.run(ctx, count, newCall([]string{"n"})) }()
	<-dialing
	cancel()
	assert.NoError(t, wantKind(<-ended, NotSent))
	close(proceed)
	require.NoError(t, p.run(t.Context(), count, newCall([]string{"n"})))
	if n, err := client.Get(t.Context(), "n").Int(); err != nil || n != 1 {
		t.Errorf("the script ran %d times (%v), want 1: the abandoned call was sent", n, err)
	}
}

func TestAServerThatDoesNotReplyLosesItsWire(t *testing.T) {
	var dials atomic.Int32
	p, _ := dialed(t, time.Minute, func() (net.Conn, error) {
		if dials.Add(1) == 1 {
			return scripted()
		}
		return scripted("*0\r\n")
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- p.run(ctx, newScript("return {}"), newCall([]string{"k"})) }()
	w := p.current()
	await.That(t, "the call is sent, and has no reply for a while", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.written == 0 {
			return false
		}
		w.timeout = time.Millisecond // only this timeout of the wire is over
		return time.Since(w.active) > w.timeout
	})
	cancel()
	if err := <-ended; !callerTimedOut(err) {
		t.Errorf("error is %v, want that the caller had no more time", err)
	}
	if _, err := runIn(t, p, "k"); err != nil || dials.Load() != 2 {
		t.Errorf("the next call: %v, after %d dials; want a new wire", err, dials.Load())
	}
}

func TestAFullWireTakesNoMoreCalls(t *testing.T) {
	full := &wire{} // not open, so nothing is written
	for range maxQueued {
		require.NoError(t, full.add(newCall([]string{"k"})))
	}
	p := &pipeline{wire: full}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := p.run(ctx, newScript("return {}"), newCall([]string{"k"}))
	assert.True(t, errors.Is(err, errQueueFull), "error is %v, want that too many calls wait", err)
	assert.NoError(t, wantKind(err, NotSent))
}

func TestADecisionAllocatesLittle(t *testing.T) {
	block := at(redistest.Single(t), true)
	block.ReadTimeout = 10_000
	c := checked(t, takeScript, block)
	bounds := []policy.Bound{hundred(t), hundred(t), of(hundred(t), "u"), everybody(hundred(t))}
	bounds[1].Key.Policy = "other"
	statuses, p, ctx := make([]decision.Status, len(bounds)), new(scriptCall), t.Context()
	take := func() { // as Take, but with one plan: the race detector makes a pool forget some
		clear(statuses)
		err := errors.Join(p.compile(bounds), c.store.runTake(ctx, p), p.fill(statuses, true))
		if err != nil || statuses[0].Source != decision.Redis {
			t.Fatalf("%v, %+v: want an answer of Redis", err, statuses[0])
		}
		p.reset()
	}
	take() // the buckets exist
	for _, test := range []struct {
		way         string
		others, max int64
	}{
		{"a connection of its own", 0, 6},
		{"the wire", directCallers, 2},
	} {
		c.backend.(single).callers.Store(test.others)
		if n := testing.AllocsPerRun(100, take); n > float64(test.max) {
			t.Errorf("a decision over %s takes %v allocations, want at most %d", test.way, n, test.max)
		}
	}
	c.backend.(single).callers.Store(0)
}

func TestAWireThatIsDeniedItsDatabaseNamesTheCause(t *testing.T) {
	server := redistest.Single(t)
	must(t, server.Client(t), "acl", "setuser", "u", "on", ">secret", "~*", "+@all", "-select")
	block := at(server, true)
	block.Username, block.Password, block.Database = "u", "secret", 1
	_, err := runIn(t, open(t, takeScript, block).backend.(single).pipeline, "k")
	if kindErr := wantKind(err, Rejected); kindErr != nil {
		t.Fatal(kindErr)
	}
	if text := err.Error(); !strings.Contains(text, "NOPERM") || !strings.Contains(text, "select") {
		t.Errorf("error is %q, want that it names NOPERM and select", text)
	}
}
