package wire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

// serveMemory serves connections in memory, and returns a call for an event of an instance.
func serveMemory(t *testing.T, access accessFunc) (h *harness, m *kongtest.Memory, event []byte) {
	t.Helper()
	m = kongtest.NewMemory()
	h = serveOn(t, access, nil, func(l net.Listener) net.Listener {
		assert.NoError(t, l.Close())
		return m
	})
	m.Run(kongtest.StartCall(t, `{"__seq__":1}`))
	return h, m, kongtest.EventCall(t, 1)
}

func TestADenialAllocatesNothingOnAConnectionOfItsOwn(t *testing.T) {
	questions, headers := []Question{NewQuestion(getConsumer, "")}, []Header{{Name: "Retry-After", Value: []byte("7")}}
	read := func(int, []byte) error { return nil }
	h, m, event := serveMemory(t, func(_ context.Context, e *Event) error {
		err := e.Ask(questions, read)
		e.Exit(429, headers, []byte("no"))
		return err
	})
	answers := [][]byte{kongtest.Frame(kongtest.AnswersOf(t, "key-auth")[getConsumer])}
	want := bytes.Clone(m.Run(event, answers...))
	if !bytes.Contains(want, []byte("kong.response.exit")) {
		t.Fatalf("the server has written %q", want)
	}
	deny := func() {
		if got := m.Run(event, answers...); !bytes.Equal(got, want) {
			t.Errorf("the server has written %q, want %q", got, want)
		}
	}
	for range 100 {
		deny()
	}
	if got := testing.AllocsPerRun(2000, deny); got != 0 {
		t.Errorf("%v allocations for a denial, from the connection to its end; want 0", got)
	}
	if _, accepted := h.Connections(); accepted < 2000 {
		t.Errorf("%d connections for 2000 denials", accepted)
	}
}

func TestAConnectionHasTheMemoryOfAnEarlierOneThatHasEnded(t *testing.T) {
	h, m, event := serveMemory(t, func(_ context.Context, e *Event) error {
		n, _ := e.Local.(int) // 0 in the first event
		e.Local = n + 1
		e.Exit(200+n, nil, nil)
		return nil
	})
	seen := 0
	for range 100 {
		awaitIdle(t, h.Server)
		if written := m.Run(event); bytes.Contains(written, appendExit(nil, 200+seen, nil, nil)) {
			seen++
		}
	}
	assert.Equal(t, 100, seen, "%d of 100 events have the Local of the one before", seen)
}

// awaitIdle returns when all connections have ended and a worker is idle.
func awaitIdle(t *testing.T, s *Server) {
	t.Helper()
	await.That(t, "a worker is idle", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0 && len(s.idle) > 0
	})
}

func TestOnlySoManyWorkersStayIdle(t *testing.T) {
	h := serve(t, pass, nil)
	workers := make([]*kongtest.Worker, 2*maxIdle)
	for i := range workers {
		workers[i] = h.dial()
		workers[i].StartInstance(1, "{}")
	}
	for _, k := range workers {
		require.NoError(t, k.Conn.Close())
	}
	await.That(t, "no connection is open", func() bool {
		open, _ := h.Connections()
		return open == 0
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if idle := len(h.idle); idle > maxIdle {
		t.Errorf("%d workers are idle, want at most %d", idle, maxIdle)
	}
}

func TestAfterAPanicOutsideOfEventsNothingOfTheConnectionIsUsedAgain(t *testing.T) {
	h := serve(t, nil, func(o *Options) { o.Start = func(Config) Instance { panic("a bug") } })
	for range 3 {
		k := h.dial()
		k.Write(kongtest.StartCall(t, "{}"))
		if _, err := k.Receive(); err == nil {
			t.Error("the call was answered")
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Empty(t, h.idle, "%d workers wait for a connection; want none, for each has panicked", len(h.idle))
}

// TestAResetConnKeepsNothingButMemory fills all fields of a conn before: a field that it does not fill fails it, too.
func TestAResetConnKeepsNothingButMemory(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	c := newConn(New(Options{}))
	c.open(ours)
	secret := []byte("secret")
	c.net.raw, c.net.unsent, c.net.answered, c.net.last = rawConn{}, secret, true, true
	c.net.spare, c.net.replaced = os.Stderr, true
	c.net.into, c.net.n, c.net.err, c.net.ended = secret, 1, errHalfFrame, true
	c.net.closed.Store(true)
	c.in.r.Reset(bytes.NewReader(secret))
	if _, err := c.in.r.Peek(1); err != nil {
		t.Fatal(err)
	}
	c.in.begun, c.in.size, c.in.consumed, c.in.long, c.in.tooLong = true, 1, 1, secret, true
	c.out, c.unanswered, c.queued, c.lost, c.between = secret, 1, 1, errors.New("lost"), true
	c.event.Local, c.event.began, c.event.exiting, c.event.logs = "plugin's", 1, true, true
	c.busyUntil.Store(1)
	c.wholeUntil.Store(1)
	parts := []struct {
		part any
		kept []string
	}{
		{c, []string{"server", "net", "in", "out", "event"}},
		{c.net, []string{"writes", "spare", "attempt"}},
		{&c.in, []string{"r", "source"}},
		{&c.event, []string{"Local", "conn"}},
	}
	for _, p := range parts {
		if missing := fields(p.part, true); len(missing) > 0 {
			t.Errorf("fields %q of %T are not filled", missing, p.part)
		}
	}
	c.reset()
	for _, p := range parts {
		if kept := fields(p.part, false); !slices.Equal(kept, p.kept) {
			t.Errorf("a reset keeps %q of %T, want %q", kept, p.part, p.kept)
		}
	}
	if len(c.out) != 0 || c.in.buffered() != 0 {
		t.Errorf("a reset keeps %q to be sent, and %d bytes to be read", c.out, c.in.buffered())
	}
}

// fields returns the names of the fields of a struct that are zero, or that are not.
func fields(pointer any, zero bool) (names []string) {
	value := reflect.ValueOf(pointer).Elem()
	for i := range value.NumField() {
		if value.Field(i).IsZero() == zero {
			names = append(names, value.Type().Field(i).Name)
		}
	}
	return names
}

// rawConn stands for a connection of the system.
type rawConn struct{ syscall.RawConn }

func TestALongBufferIsNotKeptForAnotherConnection(t *testing.T) {
	c := newConn(New(Options{}))
	c.out, c.in.long = make([]byte, 0, 2*bufferSize), make([]byte, 2*bufferSize)
	c.reset()
	assert.Zero(t, cap(c.out)+cap(c.in.long), "bytes are kept")
}
