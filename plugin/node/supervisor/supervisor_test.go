package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
)

func TestMain(m *testing.M) {
	if IsWorker(os.Getenv) {
		os.Exit(work(os.Args[1]))
	}
	os.Exit(m.Run())
}

// work is a worker that behaves as a file says, and answers each connection with its process id. It leaves that in
// another file when it hands over.
func work(file string) int {
	switch behaviour, _ := os.ReadFile(file); string(behaviour) {
	case "exits":
		return 3
	case "hangs":
		signal.Ignore(syscall.SIGTERM)
		_ = os.WriteFile(file+".hangs", nil, 0o600) // the test misses it
		for {                                       // select {} would end a program without cgo, all of which waits
			time.Sleep(time.Hour)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	sockets, err := Join(1)
	if err != nil || Report(Ready) != nil {
		return 1
	}
	if n, err := sockets[0].In.Read(make([]byte, 2)); n != 1 || err != nil {
		return 1
	}
	listener := sockets[0].Listener
	context.AfterFunc(ctx, func() { listener.Close() })
	go func() {
		if err := Follow(func(byte) {}); err == nil {
			_ = os.WriteFile(file+".handed", []byte(strconv.Itoa(os.Getpid())), 0o600) // the test misses it
			_, _ = sockets[0].Out.Write(EndOfInstances)
		}
		listener.Close()
	}()
	for {
		c, err := listener.Accept()
		if err != nil {
			return 0
		}
		fmt.Fprintln(c, os.Getpid())
		c.Close()
	}
}

// supervised is a running supervisor.
type supervised struct {
	t          *testing.T
	path, file string // of the socket, and of the workers' behaviour
	log        logtest.Text
	stop       func() error
	ended      chan error
	closed     bool
}

func supervise(t *testing.T, behaviour string) *supervised {
	t.Helper()
	return superviseStart(t, behaviour, await.Longest)
}

// superviseStart bounds the start of a worker by another time.
func superviseStart(t *testing.T, behaviour string, startTime time.Duration) *supervised {
	t.Helper()
	s := &supervised{t: t, path: t.TempDir() + "/s", file: filepath.Join(t.TempDir(), "behaviour")}
	s.behave(behaviour)
	listener, err := net.Listen("unix", s.path)
	require.NoError(t, err)
	file, err := listener.(*net.UnixListener).File()
	require.NoError(t, err)
	fd, err := syscall.Dup(int(file.Fd()))
	require.NoError(t, err)
	require.NoError(t, syscall.SetNonblock(fd, true))
	ctx, cancel := context.WithCancel(context.Background())
	s.ended = make(chan error, 1)
	go func() {
		defer close(s.ended)
		s.ended <- Run(ctx, Options{
			Program: os.Args[0], Args: []string{s.file}, Stderr: os.Stderr, Sockets: []*os.File{os.NewFile(uintptr(fd), "s")},
			Open: func() error { return nil }, Close: func() { s.closed = true }, State: func() byte { return 0 },
			StartTime: startTime, EndTime: await.Longest, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
	}()
	s.stop = func() error { cancel(); return <-s.ended }
	t.Cleanup(func() { assert.NoError(t, s.stop()); listener.Close() })
	return s
}

func (s *supervised) behave(behaviour string) {
	require.NoError(s.t, os.WriteFile(s.file, []byte(behaviour), 0o600))
}

// replace asks for another worker.
func (s *supervised) replace() { require.NoError(s.t, syscall.Kill(os.Getpid(), syscall.SIGHUP)) }

// pid returns the process id of the worker that answers a new connection.
func (s *supervised) pid() int {
	s.t.Helper()
	c, err := net.Dial("unix", s.path)
	require.NoError(s.t, err)
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(s.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(s.t, err)
	return pid
}

func TestASIGHUPReplacesTheWorkerByOneThatIsReady(t *testing.T) {
	s := supervise(t, "serves")
	for range 3 {
		first := s.pid()
		s.replace()
		await.That(t, "another worker", func() bool { return s.pid() != first })
		await.That(t, "the end of the first one", func() bool { return syscall.Kill(first, 0) != nil })
		handed, err := os.ReadFile(s.file + ".handed")
		require.NoError(t, err)
		assert.Equal(t, strconv.Itoa(first), string(handed), "the worker that has handed over")
	}
	require.NoError(t, s.stop())
	assert.True(t, s.closed)
}

func TestANextWorkerThatIsNeverReadyLeavesTheOneBeforeInPlace(t *testing.T) {
	for behaviour, startTime := range map[string]time.Duration{
		"exits": await.Longest, "hangs": 5 * time.Second, // in which the others start
	} {
		s := superviseStart(t, "serves", startTime)
		first := s.pid()
		s.behave(behaviour)
		s.replace()
		s.log.Await(t, "the current one stays")
		assert.Equal(t, first, s.pid())
		s.behave("serves")
		s.replace()
		await.That(t, "a worker that serves", func() bool { return s.pid() != first })
		require.NoError(t, s.stop())
	}
}

func TestANextWorkerThatHangsDoesNotDelayTheEnd(t *testing.T) {
	s := superviseStart(t, "serves", time.Hour)
	s.pid()
	s.behave("hangs")
	s.replace()
	await.That(t, "the next worker hangs", func() bool {
		_, err := os.Stat(s.file + ".hangs")
		return err == nil
	})
	require.NoError(t, s.stop())
	assert.Zero(t, s.log.Count("takes too long"), s.log.String())
}

func TestConnectionsWaitForTheWorkerAfterOneThatDied(t *testing.T) {
	s := supervise(t, "serves")
	for range 2 {
		first := s.pid()
		require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
		assert.NotEqual(t, first, s.pid())
	}
}

func TestAFirstWorkerThatIsNeverReadyIsAnError(t *testing.T) {
	for _, behaviour := range []string{"exits", "hangs"} {
		s := superviseStart(t, behaviour, 500*time.Millisecond)
		assert.ErrorContains(t, <-s.ended, "before it was ready")
	}
}
