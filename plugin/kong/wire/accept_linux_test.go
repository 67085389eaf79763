package wire

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// listenQuietly returns a quietListener and what dials it.
func listenQuietly(t *testing.T) (l net.Listener, dial func() net.Conn) {
	t.Helper()
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	if l, err = newQuietListener(unix); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have closed it
	return l, func() net.Conn {
		c, err := net.Dial("unix", unix.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

func TestAnAcceptThatWaitsEndsWithTheListenerAndWithItsDeadline(t *testing.T) {
	passed := func(l net.Listener) error { return l.(*quietListener).SetDeadline(time.Unix(1, 0)) }
	for name, test := range map[string]struct {
		end  func(net.Listener) error
		want error
	}{
		"close":    {net.Listener.Close, net.ErrClosed},
		"deadline": {passed, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			l, dial := listenQuietly(t)
			dial()
			if _, err := l.Accept(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := l.Accept()
				ended <- err
			}()
			require.NoError(t, test.end(l))
			if err := <-ended; !errors.Is(err, test.want) {
				t.Errorf("Accept returned %v, want %v", err, test.want)
			}
		})
	}
}

func TestAConnectionAcceptedDuringACloseIsNotLost(t *testing.T) {
	l, dial := listenQuietly(t)
	dial()
	l.(*quietListener).closed.Store(true) // Close has begun, and Accept has not been interrupted yet
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("%v; no one closes what was accepted", err)
	}
	assert.NoError(t, c.Close())
	l.(*quietListener).closed.Store(false)
}

// exhausted is a listener that lacks files until one is closed.
type exhausted struct {
	net.Listener
	closed  *bool
	accepts int
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.accepts++; *l.closed {
		return nil, net.ErrClosed
	}
	return nil, syscall.EMFILE
}

// closing is a connection that records its end.
type closing struct {
	net.Conn
	closed *bool
}

func (c closing) Close() error {
	*c.closed = true
	return nil
}

func TestConnectionsThatWaitToBeClosedMakeRoomForNewOnes(t *testing.T) {
	s, closed := New(Options{}), false
	s.late.add(closing{closed: &closed})
	l := &exhausted{closed: &closed}
	s.accept(t.Context(), l, func(net.Conn) { t.Error("a connection was accepted") })
	if !closed || l.accepts != 2 {
		t.Errorf("Accept was called %d times, want a second call after the close at once", l.accepts)
	}
}

func TestConnectionsInTheQueueAreAcceptedAfterTheListenerHasStopped(t *testing.T) {
	l, dial := listenQuietly(t)
	queued := dial()
	require.True(t, stopListening(l, false), "the listener cannot be stopped")
	if _, err := l.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Accept after the stop: %v, want the end of waiting", err)
	}
	accepted := 0
	err := acceptQueued(l, func(c net.Conn) {
		accepted++
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
	})
	if err != nil || accepted != 1 {
		t.Errorf("%d connections were accepted, want the one in the queue: %v", accepted, err)
	}
	if n, err := queued.Read(make([]byte, 1)); n != 1 {
		t.Errorf("the queued connection has read %d bytes: %v", n, err)
	}
}

func TestNoFileStaysOpenForAConnectionThatHasEnded(t *testing.T) {
	before := openFiles(t)
	h := serve(t, deny, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	require.NoError(t, k.Conn.Close())
	serving := before + 3 // the socket, the copy of it that accepts, and the spare file
	for range 2*len(h.late.conns) + 3 {
		require.NoError(t, h.dial().Event(id))
	}
	await.That(t, "the files of ended connections are closed", func() bool { return openFiles(t) <= serving })
	require.NoError(t, h.dial().Event(id)) // it may be the last of the connections that wait to be closed
	require.NoError(t, h.stop())
	if open := openFiles(t); open > before {
		t.Errorf("%d files are open after the end, want %d", open, before)
	}
}

// openFiles returns the number of this process's open files.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(files)
}
