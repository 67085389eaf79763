package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// piped is a transport whose calls all go through a pipeline.
type piped struct {
	*direct
	*pipeline
}

func (p piped) Run(ctx context.Context, script *script, c *call) error {
	if err := p.run(ctx, script, c); err != nil {
		return classify(err)
	}
	return nil
}

// together returns a store that sends nothing until so many calls are queued.
func together(t *testing.T, calls int, dial func() (net.Conn, error)) (*Store, *pipeline) {
	t.Helper()
	var p *pipeline
	var first atomic.Bool
	p, client := dialed(t, 30*time.Second, func() (net.Conn, error) {
		if first.CompareAndSwap(false, true) {
			w := p.current()
			await.That(t, "all calls wait", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.calls) == calls
			})
		}
		return dial()
	})
	return newStore("test", piped{&direct{client, false}, p}, takeScript, quiet), p
}

// takeAll takes the bounds of all requests at once, and returns their statuses.
func takeAll(t *testing.T, s *Store, requests [][]policy.Bound) [][]decision.Status {
	t.Helper()
	statuses := make([][]decision.Status, len(requests))
	for i := range requests {
		statuses[i] = make([]decision.Status, len(requests[i]))
	}
	var next atomic.Int64
	err := atOnce(len(requests), 1, func() error {
		i := next.Add(1) - 1
		return s.Take(t.Context(), requests[i], statuses[i])
	})
	require.NoError(t, err)
	return statuses
}

func TestCallsThatWaitTogetherAreFewCommandsAndEachHasItsOwnReply(t *testing.T) {
	const requests = 2*maxMerged + 5
	server := redistest.Single(t)
	client := server.Client(t)
	must(t, client, "script", "load", takeScript.source)
	s, _ := together(t, requests, func() (net.Conn, error) { return net.Dial("tcp", server.Address()) })
	before := newStore("test", &direct{client, false}, takeScript, quiet)
	var all [][]policy.Bound
	for i := range requests {
		own := daily(t, 100, policy.ByTenant, fmt.Sprint("tenant-", i))
		for range i { // so no two tenants have used the same
			require.NoError(t, before.Take(t.Context(), []policy.Bound{own}, make([]decision.Status, 1)))
		}
		all = append(all, []policy.Bound{own, daily(t, 1000, policy.ByAll, "")})
	}
	must(t, client, "config", "resetstat")
	var shared []int64
	for i, statuses := range takeAll(t, s, all) {
		assert.Equal(t, int64(i)+1, statuses[0].Used, "tenant %d has used", i)
		shared = append(shared, statuses[1].Used)
	}
	slices.Sort(shared)
	for i, used := range shared {
		require.Equal(t, int64(i)+1, used, "the shared limit counts %v: want each request once", shared)
	}
	if n := calls(t, client)["evalsha"]; n != 3 {
		t.Errorf("%d requests are %d commands, want 3", requests, n)
	}
}

func TestADenialIsExactAlthoughARequestBesideItCannotBeCounted(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	must(t, client, "script", "load", takeScript.source)
	usedUp, free := daily(t, 1, policy.ByTenant, "acme"), daily(t, 10, policy.ByTenant, "globex")
	before := newStore("test", &direct{client, false}, takeScript, quiet)
	require.NoError(t, before.Take(t.Context(), []policy.Bound{usedUp}, make([]decision.Status, 1)))
	s, _ := together(t, 6, func() (net.Conn, error) { return net.Dial("tcp", server.Address()) })
	must(t, client, "config", "set", "maxmemory", "1")
	all := [][]policy.Bound{{free}, {usedUp}, {free}, {usedUp}, {usedUp}, {free}}
	for i, statuses := range takeAll(t, s, all) {
		got := statuses[0]
		if all[i][0].Key == usedUp.Key {
			assert.True(t, got.Source == decision.Redis && !got.Admits(), "request %d: %+v, want a denial by Redis", i, got)
		} else if got.Source != decision.Unanswered || got.Failure != decision.Unavailable {
			t.Errorf("request %d: %+v, want that a full Redis is unavailable", i, got)
		}
	}
}

// commands serves a connection as Redis does: reply returns the reply to a command of the pipeline. Commands are read
// while replies wait to be read, because the reader of a wire also writes.
func commands(reply func(args []string) string) (net.Conn, error) {
	client, server := net.Pipe()
	replies := make(chan string, 100)
	go func() {
		defer server.Close()
		for text := range replies {
			if _, err := io.WriteString(server, text); err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(replies)
		r := bufio.NewReader(server)
		for {
			args, err := readCommand(r)
			if err != nil {
				return
			}
			text := "+OK\r\n"
			switch strings.ToLower(args[0]) {
			case "hello":
				text = "-ERR unknown command 'hello'\r\n"
			case "evalsha":
				text = reply(args)
			}
			replies <- text
		}
	}()
	return client, nil
}

func readCommand(r *bufio.Reader) ([]string, error) {
	length := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := length()
	args := make([]string, n)
	for i := range args {
		size, lengthErr := length()
		text := make([]byte, size+2)
		if _, readErr := io.ReadFull(r, text); lengthErr != nil || readErr != nil {
			return nil, errors.Join(lengthErr, readErr)
		}
		args[i] = string(text[:size])
	}
	return args, err
}

// requestsOf returns how many requests a command of the script has: each of one key, and one argument.
func requestsOf(args []string) int { return (len(args) - 3) / 2 }

// replies returns the reply of the script to so many requests, of a bucket each that is new.
func replies(requests int) string {
	one := []any{nil, int64(1_700_000_000_000_000)}
	return string(encoded(slices.Repeat([]any{one}, requests)...))
}

// A command of several requests that Redis rejects is sent again, each request by itself, where the reason may be one
// request's. On a replica, and on a master without its replicas, a script may run as long as it writes nothing. A
// script that fails in the middle has counted some of the requests: none may be counted twice. A server that runs no
// script at all is not burdened with more commands.
func TestRequestsAreSentAgainWhereTheyMayRunAlone(t *testing.T) {
	for reply, want := range map[string]decision.Failure{
		"CROSSSLOT Keys in request don't hash to the same slot":          decision.NoFailure,
		"READONLY You can't write against a read only replica.":          decision.NoFailure,
		"NOREPLICAS Not enough good replicas to write.":                  decision.NoFailure,
		"NOPERM No permissions to access a key":                          decision.NoFailure,
		"ERR Error running script (call to f_1): @x:1: -OOM not allowed": decision.NoFailure,
		"ERR user_script:7: out of memory":                               decision.Lost,
		"BUSY Redis is busy running a script":                            decision.Unavailable,
		"LOADING Redis is loading the dataset in memory":                 decision.Unavailable,
		"MASTERDOWN Link with MASTER is down":                            decision.Unavailable,
		"ERR Error running script (call to f_1): @x:1: -LOADING ":        decision.Unavailable,
	} {
		var rejected, ran atomic.Int64
		s, p := together(t, 8, func() (net.Conn, error) {
			return commands(func(args []string) string {
				n := requestsOf(args)
				if n > 1 {
					rejected.Add(int64(n))
					return "-" + reply + "\r\n"
				}
				ran.Add(1)
				return replies(n)
			})
		})
		all := slices.Repeat([][]policy.Bound{{daily(t, 100, policy.ByTenant, "acme")}}, 8)
		for i, statuses := range takeAll(t, s, all) {
			assert.Equal(t, want, statuses[0].Failure, "%s: request %d: %+v", reply, i, statuses[0])
		}
		again := map[bool]int64{true: 8}[want == decision.NoFailure]
		if rejected.Load() != 8 || ran.Load() != again || p.apart.Load() != strings.HasPrefix(reply, "CROSSSLOT") {
			t.Errorf("%s: %d requests were rejected and %d ran alone, want 8 and %d", reply, rejected.Load(), ran.Load(), again)
		}
	}
}

func TestAReplyToOtherRequestsThanWereSentEndsTheWire(t *testing.T) {
	numbers := "*8\r\n" + strings.Repeat(":1\r\n", 8)
	for _, wrong := range []string{replies(7), replies(9), numbers, ":8\r\n", "*8\r\n?\r\n"} {
		var dials atomic.Int64
		s, _ := together(t, 8, func() (net.Conn, error) {
			dialed := dials.Add(1)
			return commands(func(args []string) string {
				if dialed > 1 {
					return replies(requestsOf(args))
				}
				return wrong + ":1\r\n:2\r\n"
			})
		})
		all := slices.Repeat([][]policy.Bound{{daily(t, 100, policy.ByTenant, "acme")}}, 8)
		for i, statuses := range takeAll(t, s, all) {
			assert.True(t, statuses[0].Source != decision.Redis, "%q: request %d: %+v, want no answer", wrong, i, statuses[0])
		}
		if got := takeAll(t, s, all[:1])[0][0]; got.Source != decision.Redis || dials.Load() != 2 {
			t.Errorf("%q: then %+v after %d dials, want an answer by a new wire", wrong, got, dials.Load())
		}
	}
}

func TestAnAbandonedCallDoesNotHoldUpThoseMergedWithIt(t *testing.T) {
	goOn := make(chan struct{})
	s, p := together(t, 3, func() (net.Conn, error) {
		return commands(func(args []string) string {
			<-goOn
			return replies(requestsOf(args))
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	bounds := []policy.Bound{daily(t, 100, policy.ByTenant, "acme")}
	abandoned, others := make([]decision.Status, 1), make([]decision.Status, 2)
	first, ended := make(chan error, 1), make(chan error, 2)
	go func() { first <- s.Take(ctx, bounds, abandoned) }()
	for i := range others {
		go func() { ended <- s.Take(t.Context(), bounds, others[i:i+1]) }()
	}
	w := p.current()
	await.That(t, "the calls are sent", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.written == 3
	})
	cancel()
	if err := <-first; err != nil || abandoned[0].Source != decision.Unanswered {
		t.Errorf("the abandoned call has %+v (%v)", abandoned[0], err)
	}
	close(goOn)
	for range others {
		assert.NoError(t, <-ended)
	}
	for _, status := range others {
		assert.Equal(t, decision.Redis, status.Source, "another call has %+v, want an answer", status)
	}
}

// A tenant's value that is not of our form, because something else has written it, harms no other tenant.
func TestAForeignValueHarmsNoRequestBesideIt(t *testing.T) {
	long := "\x10" + strings.Repeat("x", 17<<20/37*37+10) // longer than any reply may be
	for _, foreign := range []string{
		"", "garbage", "\x11", "\x11ab", "\x11\x00\x00\x00", "\x12", "\x13abc", "\x10", strings.Repeat("x", 1000), long,
	} {
		t.Run(fmt.Sprintf("%.10q of %d bytes", foreign, len(foreign)), func(t *testing.T) {
			server := redistest.Single(t)
			client := server.Client(t)
			must(t, client, "script", "load", takeScript.source)
			s, _ := together(t, 6, func() (net.Conn, error) { return net.Dial("tcp", server.Address()) })
			before := newStore("test", &direct{client, false}, takeScript, quiet)
			large := endpoints(t, 60)
			for i := range 50 { // so many that they are split
				require.NoError(t, before.Take(t.Context(), large[i:i+1], make([]decision.Status, 1)))
			}
			level := before.levels.level(&large[0].Key)
			require.True(t, level != 0, "the subject was not split")
			s.levels.learn(&large[0].Key, level)
			must(t, client, "set", subjectKey(large[0]), foreign)
			all := [][]policy.Bound{{costing(large[55], 900)}}
			for i := range 5 {
				all = append(all, []policy.Bound{daily(t, 100, policy.ByTenant, fmt.Sprint("tenant-", i))})
			}
			for i, statuses := range takeAll(t, s, all) {
				if statuses[0].Source != decision.Redis {
					t.Errorf("request %d has no answer: %v", i, statuses[0].Failure)
				}
			}
		})
	}
}

func TestLargeRequestsAreMergedUpToASize(t *testing.T) {
	size := func(bytes int) *call {
		return &call{script: takeScript, args: [][]byte{make([]byte, bytes)}}
	}
	for _, test := range []struct {
		calls []*call
		want  int
	}{
		{[]*call{size(100)}, 1},
		{[]*call{size(2 * maxMergedSize), size(100)}, 1},
		{[]*call{size(100), size(maxMergedSize)}, 1},
		{[]*call{size(100), {script: forgetScript}}, 1}, // of another script, without an argument
		{[]*call{{script: forgetScript}, {script: forgetScript}}, 1},
		{[]*call{size(100), size(maxMergedSize - 100), size(1)}, 2},
		{slices.Repeat([]*call{size(100)}, maxMerged+1), maxMerged},
	} {
		if got := len(merge(test.calls)); got != test.want {
			t.Errorf("of %d calls %d are merged, want %d", len(test.calls), got, test.want)
		}
	}
}
