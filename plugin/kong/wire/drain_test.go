package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestServeFinishesRunningEventsAndEndsIdleConnections(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	h := serve(t, func(ctx context.Context, e *Event) error {
		close(entered)
		<-release
		return greet(ctx, e)
	}, nil)
	idle, running := h.dial(), h.dial()
	id := idle.StartInstance(1, "{}")
	ended := make(chan error, 1)
	go func() {
		defer close(ended) // also when the event fails the test
		ended <- running.Event(id)
	}()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }()
	if _, err := idle.Receive(); err == nil {
		t.Error("the idle connection was not closed")
	}
	if _, err := net.Dial("unix", h.path); err == nil {
		t.Error("a new connection was accepted")
	}
	close(release)
	if err := <-ended; err != nil || running.Headers["X-Consumer"] != alice {
		t.Errorf("the running event: %v, headers %v", err, running.Headers)
	}
	assert.NoError(t, <-stopped)
}

func TestADrainingConnectionSendsEverythingAndReadsTheAnswersToCome(t *testing.T) {
	h := serve(t, greet, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	k.Begin(id, getConsumer)
	k.Send(k.Answers["kong.client.get_consumer"])
	if frame, err := k.Receive(); err != nil || string(frame) != "kong.response.set_headers" {
		t.Fatalf("received %q, %v", frame, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }()
	for !h.draining.Load() {
		runtime.Gosched()
	}
	for range 2 { // the headers, and the end of the event
		if _, err := k.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Return(); err != nil {
		t.Fatal(err)
	}
	k.Send(nil) // the answer to come: the connection must still be there
	if _, err := k.Receive(); err == nil {
		t.Error("the connection was not closed")
	}
	assert.NoError(t, <-stopped)
}

// pipeListener accepts connections without a network, which a test with a virtual clock needs.
type pipeListener struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// servePipes serves pipes. connect makes one and wraps the end of the server.
func servePipes(
	t *testing.T, access accessFunc, wrap func(net.Conn) net.Conn,
) (h *harness, connect func() *kongtest.Worker) {
	t.Helper()
	p := newPipeListener()
	h = serveOn(t, access, nil, func(l net.Listener) net.Listener {
		assert.NoError(t, l.Close())
		return p
	})
	return h, func() *kongtest.Worker {
		t.Helper()
		ours, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		p.accepted <- wrap(ours)
		k := kongtest.NewWorker(t, theirs)
		k.Answers = kongtest.AnswersOf(t, "key-auth")
		return k
	}
}

// unwrapped returns c.
func unwrapped(c net.Conn) net.Conn { return c }

// failingListener fails as in a process without free file descriptors.
type failingListener struct{ *pipeListener }

func (f failingListener) Accept() (net.Conn, error) {
	select {
	case <-f.closed:
		return nil, net.ErrClosed
	default:
		return nil, syscall.EMFILE
	}
}

func TestServeRetriesAcceptAndStillEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := failingListener{newPipeListener()}
		h := serveOn(t, greet, nil, func(l net.Listener) net.Listener {
			assert.NoError(t, l.Close())
			return p
		})
		time.Sleep(10500 * time.Millisecond) // on the virtual clock: the pauses have grown
		if tries := h.log.Count("\n"); tries < 10 || tries > 20 {
			t.Errorf("tried %d times in 10 s, want pauses that grow to a second", tries)
		}
		before := time.Now()
		assert.NoError(t, h.stop())
		if took := time.Since(before); took != 0 {
			t.Errorf("Serve took %v to end: it waited for the next try", took)
		}
	})
}

func TestServeReturnsAnErrorIfItsListenerIsClosedFromOutside(t *testing.T) {
	for name, dials := range map[string]bool{"before it serves": false, "while it serves": true} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			require.NoError(t, err)
			ended := make(chan error, 1)
			s := New(Options{
				Budget: 100 * time.Millisecond,
				Start:  func(Config) Instance { return Instance{Access: greet} },
			})
			start := func() { go func() { ended <- s.Serve(t.Context(), listener) }() }
			if dials {
				start()
				k := kongtest.Dial(t, listener.Addr().String())
				defer k.Conn.Close()
				k.StartInstance(1, "{}") // it has been accepted
			}
			require.NoError(t, listener.Close())
			if !dials {
				start()
			}
			if err := <-ended; err == nil {
				t.Error("Serve ended without an error before its context")
			}
		})
	}
}

// hookedConn calls set before it sets a deadline.
type hookedConn struct {
	net.Conn
	set func(time.Time)
}

func (h hookedConn) SetDeadline(at time.Time) error {
	h.set(at)
	return h.Conn.SetDeadline(at)
}

func TestADrainThatBeginsWhileAnInterruptionIsUndoneEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		interrupted, ended := make(chan struct{}, 2), make(chan time.Duration, 1)
		var h *harness
		var begin sync.Once
		var connect func() *kongtest.Worker
		h, connect = servePipes(t, greet, func(c net.Conn) net.Conn {
			return hookedConn{c, func(at time.Time) {
				if !at.IsZero() {
					interrupted <- struct{}{}
					return
				}
				begin.Do(func() {
					<-interrupted // by the watchdog
					go func() {
						before := time.Now()
						assert.NoError(t, h.stop())
						ended <- time.Since(before)
					}()
					<-interrupted // by the drain, which is about to be undone
				})
			}}
		})
		connect()
		synctest.Wait()
		h.interruptIdle() // as a watchdog that is a moment late
		assert.Zero(t, <-ended, "an idle connection kept the server for")
	})
}

func TestADrainThatInterruptsLateDoesNotCutOffTheAnswersToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := servePipes(t, greet, unwrapped)
		k := connect()
		id := k.StartInstance(1, "{}")
		k.Begin(id, getConsumer)
		h.draining.Store(true) // and the connections are interrupted later
		k.Send(k.Answers["kong.client.get_consumer"])
		for range 4 { // the headers, the end of the event, and its return
			if _, err := k.Receive(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		h.interruptIdle()
		synctest.Wait()
		k.Send(nil) // the answer to come
		if _, err := k.Receive(); err == nil {
			t.Error("the connection was not closed")
		}
	})
}

func TestAnEventThatDoesNotEndIsCutOffAfterTheDrainTime(t *testing.T) {
	entered := make(chan struct{})
	h := serve(t, func(ctx context.Context, _ *Event) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}, func(o *Options) { o.Drain = 20 * time.Millisecond })
	k := h.dial()
	k.CallEvent(k.StartInstance(1, "{}"), "access")
	<-entered
	assert.NoError(t, h.stop())
}

func TestADrainingServerHalfClosesIdleConnectionsSoThatALateCallCanStillBeWritten(t *testing.T) {
	h := serve(t, greet, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }()
	if _, err := k.Receive(); err == nil {
		t.Fatal("the idle connection was not closed")
	}
	event := &pb.CmdHandleEvent{InstanceId: id, EventName: "access"}
	k.Call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: event}}) // fails the test if it cannot be written
	if _, err := k.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the late call: %v, want io.EOF, on which Kong replays it", err)
	}
	assert.NoError(t, k.Conn.Close())
	assert.NoError(t, <-stopped)
}

func TestAPeerThatNeverNoticesTheEndDoesNotHoldUpTheDrain(t *testing.T) {
	h := serve(t, greet, nil)
	h.dial().StartInstance(1, "{}")
	assert.NoError(t, h.stop())
	assert.NotContains(t, h.log.String(), "drain time", "the connection has no event")
}

// closeCall closes an instance, which may be unknown.
var closeCall = &pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: 1}}}

func TestACallThatHasArrivedWhenTheDrainBeginsIsAnswered(t *testing.T) {
	eachSocket(t, func(t *testing.T, s *socket, peer net.Conn, _ *atomic.Uint64) {
		if s.raw == nil {
			t.Log("only a unix socket shows what has arrived; Kong uses no other")
			return
		}
		k := kongtest.NewWorker(t, peer)
		k.Call(closeCall)
		server := New(Options{Name: "plugin"})
		server.draining.Store(true)
		c := newConn(server)
		c.open(s.Conn)
		server.interrupt(c) // before it has read the call
		var serving sync.WaitGroup
		serving.Go(func() { c.serve(t.Context()) })
		if r, err := k.Return(); err != nil || r.GetInstanceStatus().GetName() != "plugin" {
			t.Errorf("%v, %v", r, err)
		}
		assert.NoError(t, peer.Close())
		serving.Wait()
	})
}

func TestConnectionsThatWaitToBeAcceptedWhenTheDrainBeginsAreServed(t *testing.T) {
	gate := make(chan struct{})
	h := serveOn(t, greet, nil, func(l net.Listener) net.Listener { return gatedListener{l.(*net.UnixListener), gate} })
	k := h.dial() // in the queue of the kernel
	k.Call(closeCall)
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }()
	for !h.draining.Load() {
		runtime.Gosched()
	}
	close(gate)
	if _, err := k.Return(); err != nil {
		t.Errorf("a connection that was made before the drain was not served: %v", err)
	}
	assert.NoError(t, <-stopped)
}

// gatedListener accepts nothing until its gate opens.
type gatedListener struct {
	*net.UnixListener
	gate chan struct{}
}

func (g gatedListener) Accept() (net.Conn, error) {
	<-g.gate
	return g.UnixListener.Accept()
}
