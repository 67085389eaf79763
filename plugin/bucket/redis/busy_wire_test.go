package redis

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// heldConn is a connection whose writes wait, once it is held.
type heldConn struct {
	net.Conn
	held   atomic.Bool
	writes chan struct{} // one for each write that begins
	goOn   chan struct{} // one for each write that may end
}

func (c *heldConn) Write(b []byte) (int, error) {
	if c.held.Load() {
		c.writes <- struct{}{}
		<-c.goOn
	}
	return c.Conn.Write(b)
}

func TestACallerWithoutTimeDoesNotWriteForOthersAfterASlowWrite(t *testing.T) {
	plain, err := scripted("*0\r\n")
	require.NoError(t, err)
	conn := &heldConn{Conn: plain, writes: make(chan struct{}), goOn: make(chan struct{})}
	p, _ := dialed(t, 30*time.Second, func() (net.Conn, error) { return conn, nil })
	if _, err := runIn(t, p, "k"); err != nil {
		t.Fatal(err)
	}
	conn.held.Store(true)
	w := p.current()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	call := func(ctx context.Context) { ended <- p.run(ctx, newScript("return {}"), newCall([]string{"k"})) }
	go call(ctx)
	<-conn.writes
	began := time.Now()
	others, cancelOthers := context.WithCancel(t.Context())
	defer cancelOthers()
	go call(others)
	await.That(t, "another call waits, and the write was slow", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.calls) == 2 && time.Since(began) > 2*slowWrite
	})
	conn.goOn <- struct{}{}
	<-conn.writes // of the other call
	cancel()
	select {
	case err := <-ended:
		assert.True(t, errors.Is(err, context.Canceled), "the caller gets %v, want that it is canceled", err)
	case <-time.After(20 * time.Second):
		t.Error("a canceled caller still writes")
	}
	conn.held.Store(false)
	conn.goOn <- struct{}{}
	cancelOthers()
	<-ended
	_ = plain.Close() // the wire ends
}

// tricklingConn is a connection that gets a byte each millisecond once a text has begun.
type tricklingConn struct {
	net.Conn
	begun  bool
	closed chan struct{}
	close  func()
}

func (c *tricklingConn) Read(b []byte) (int, error) {
	if !c.begun {
		n, err := c.Conn.Read(b)
		c.begun = n > 0 && b[0] == '$'
		return n, err
	}
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-time.After(time.Millisecond):
		b[0] = 'x'
		return 1, nil
	}
}

func (c *tricklingConn) Close() error {
	c.close()
	return c.Conn.Close()
}

func TestAReplyThatNeverEndsEndsTheWire(t *testing.T) {
	var dials atomic.Int32
	p, _ := dialed(t, 100*time.Millisecond, func() (net.Conn, error) {
		if dials.Add(1) > 1 {
			return scripted("*0\r\n")
		}
		conn, err := scripted("$1000000\r\n")
		closed := make(chan struct{})
		return &tricklingConn{Conn: conn, closed: closed, close: sync.OnceFunc(func() { close(closed) })}, err
	})
	await.That(t, "a new wire is opened", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return p.run(ctx, newScript("return {}"), newCall([]string{"k"})) == nil
	})
}

func TestAReplyThatIsThereGoesBeforeACanceledCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		c := newCall([]string{"k"})
		c.answered = make(chan struct{}, 1)
		c.answered <- struct{}{}
		if err := new(wire).run(ctx, c); err != nil {
			t.Fatalf("error is %v, want the reply", err)
		}
	}
}

func TestCallsThatAreAbandonedBeforeTheWireIsOpenMakeRoomForOthers(t *testing.T) {
	w := new(wire) // not open yet
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range maxQueued + 1 {
		c := newCall([]string{"k"})
		c.answered = make(chan struct{}, 1)
		if err := w.run(ctx, c); !errors.Is(err, context.Canceled) {
			t.Fatalf("error is %v, want that the caller is canceled", err)
		}
	}
	assert.Empty(t, w.calls, "%d abandoned calls are in the queue", len(w.calls))
}
