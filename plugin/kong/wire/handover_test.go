package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

// copyOf returns the end of a queue as another process has it.
func copyOf(t *testing.T, end *os.File) *net.UnixConn {
	t.Helper()
	c, err := net.FileConn(end)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

func TestKongNoticesNothingWhenServersHandOverUnderLoad(t *testing.T) {
	path := t.TempDir() + "/s"
	owned, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer owned.Close()
	queue, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	require.NoError(t, err)
	in, out := os.NewFile(uintptr(queue[0]), "in"), os.NewFile(uintptr(queue[1]), "out")
	defer in.Close()
	defer out.Close()
	handed, running := int64(0), atomic.Int64{}
	next := func() (*Server, func() error) {
		t.Helper()
		file, err := owned.(*net.UnixListener).File()
		require.NoError(t, err)
		defer file.Close()
		listener, err := net.FileListener(file)
		require.NoError(t, err)
		s := New(Options{Start: func(Config) Instance {
			return Instance{Access: func(ctx context.Context, e *Event) error {
				running.Add(1)
				defer running.Add(-1)
				return greet(ctx, e)
			}}
		}})
		if state := s.Adopt(copyOf(t, in), copyOf(t, out)); state != nil {
			info, err := state.Stat()
			require.NoError(t, err)
			handed = info.Size()
			require.NoError(t, state.Close())
		}
		return s, kongtest.Serve(t, listener, s.Serve)
	}
	_, err = out.Write([]byte{0}) // there is no server before
	require.NoError(t, err)
	server, stop := next()
	k := kongtest.Dial(t, path)
	given, own := k.StartInstance(7, "{}"), k.StartRaw([]byte(`{"__seq__":0}`))
	var load sync.WaitGroup
	over := make(chan struct{})
	for range 20 {
		worker := kongtest.Dial(t, path)
		worker.Answers = kongtest.AnswersOf(t, "key-auth")
		load.Go(func() {
			for ended := false; !ended; {
				for _, id := range []int32{given, own} {
					assert.NoError(t, worker.Event(id))
				}
				select {
				case <-over:
					ended = true
				default:
				}
			}
		})
	}
	for i := range int64(10) {
		begun := time.Now()
		server.HandOver(func() *os.File {
			if time.Since(begun) < quietTime { // else a busy machine has used up the wait for them
				assert.Zero(t, running.Load(), "events run when the state is saved")
			}
			state, err := os.CreateTemp(t.TempDir(), "")
			require.NoError(t, err)
			require.NoError(t, state.Truncate(i))
			return state
		})
		before, ended := server, make(chan error, 1)
		go func() { ended <- stop() }()
		server, stop = next()
		assert.NoError(t, <-ended)
		assert.Equal(t, i, handed)
		assert.Zero(t, before.Counters().UnknownInstances+before.Counters().Failures)
	}
	assert.Greater(t, k.StartRaw([]byte(`{}`)), own, "a new id is the one of an instance")
	close(over)
	load.Wait()
	assert.Zero(t, server.Counters().UnknownInstances)
}

// newQueue returns the ends of a queue.
func newQueue(t *testing.T) (in, out *net.UnixConn) {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	require.NoError(t, err)
	files := [2]*os.File{os.NewFile(uintptr(ends[0]), "in"), os.NewFile(uintptr(ends[1]), "out")}
	in, out = copyOf(t, files[0]), copyOf(t, files[1])
	require.NoError(t, errors.Join(files[0].Close(), files[1].Close()))
	return in, out
}

func TestAStateThatComesTooLateIsClosed(t *testing.T) {
	in, out := newQueue(t)
	s := New(Options{Start: func(Config) Instance { return Instance{} }})
	require.Nil(t, s.Adopt(in, out), "nothing was handed over in time")
	from, to, err := os.Pipe()
	require.NoError(t, err)
	defer from.Close()
	_, _, err = out.WriteMsgUnix(stateMessage, syscall.UnixRights(int(to.Fd())), nil)
	require.NoError(t, errors.Join(err, to.Close()))
	require.NoError(t, from.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = from.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF, "the server has closed it")
	assert.NoError(t, s.stopReading())
}

func TestAConnectionThatDoesNotFitIsNoEndOfTheHandover(t *testing.T) {
	in, out := newQueue(t)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	_, _, err = out.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(file.Fd())), nil)
	require.NoError(t, err)
	var before, few syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	few = before
	few.Cur = 1 // no more can be opened
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	begun := time.Now()
	s := New(Options{Start: func(Config) Instance { return Instance{} }})
	s.Adopt(in, out)
	took := time.Since(begun)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	assert.GreaterOrEqual(t, took, adoptTime, "the wait for the end")
	assert.NoError(t, s.stopReading())
}
