// Package redistest starts real Redis servers for a test, and ends them with it: one server ([Single]), a cluster
// ([Cluster]) or a master watched by Sentinels ([Sentinel]). They have temporary folders, unix sockets and free ports
// of the loopback, and no persistence.
//
// A test without Redis fails and is never skipped. If redis-server is missing, this package installs it with apt-get,
// once and if the environment asks for it (package debian).
//
// Tests inject real faults with [Server.Hang], [Server.Kill] and [Server.Restart]. Package faultproxy injects faults of
// the network.
package redistest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/daemon"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// serverTimeout bounds the wait for an answer. It is long because tests share a busy machine.
const serverTimeout = 2 * time.Minute

// Server is one running redis-server.
type Server struct {
	Socket string // path of its unix socket
	Host   string // 127.0.0.1
	Port   int    // on the loopback
	Dir    string // its folder

	command     []string // program and arguments
	environment []string // added to that of this process
	process     *daemon.Process
}

// Single starts one Redis without persistence. args are more options of redis-server, as on its command line:
// "--maxmemory", "10mb".
func Single(t testing.TB, args ...string) *Server {
	t.Helper()
	return Start(t, nil, args...)
}

// Address returns the server's host:port.
func (s *Server) Address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Client returns a connection pool to the server, through its socket. It does not retry. The end of the test closes it.
func (s *Server) Client(t testing.TB) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: s.Socket, MaxRetries: -1, DisableIdentity: true,
		DialTimeout: serverTimeout, ReadTimeout: serverTimeout, WriteTimeout: serverTimeout,
	})
	t.Cleanup(func() { _ = client.Close() }) // it fails only if it is closed already
	return client
}

// Hang suspends the process of the server: connections stay open and the server does not answer. Resume ends that.
func (s *Server) Hang(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume continues a suspended server.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

// Sentinel returns a connection to a server that is a Sentinel. The end of the test closes it.
func (s *Server) Sentinel(t testing.TB) *redis.SentinelClient {
	client := redis.NewSentinelClient(&redis.Options{Addr: s.Address()})
	t.Cleanup(func() { require.NoError(t, client.Close(), "close the connection to a Sentinel") })
	return client
}

// signal sends a signal to the process.
func (s *Server) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	require.NoErrorf(t, s.process.Signal(signal), "send %v to redis-server", signal)
}

// Kill ends the server at once, as a crash would. A server that has ended is no error.
func (s *Server) Kill() { _ = s.process.End(syscall.SIGKILL) }

// HasEnded reports whether the process of the server has ended.
func (s *Server) HasEnded() bool { return s.process.HasEnded() }

// Restart starts a killed server again, on the same port and socket. It is empty. A replica gets the data of its
// master.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	require.NoError(t, s.run(), "start redis-server again")
}

// Start is [Single] with variables that are added to the environment of the server.
func Start(t testing.TB, environment []string, args ...string) *Server {
	t.Helper()
	path, err := debian.Program("redis-server", "redis-server")
	require.NoError(t, err)
	s := &Server{Host: "127.0.0.1", Port: freeport.Port(t), Dir: folder(t), environment: environment}
	s.Socket = filepath.Join(s.Dir, "redis.sock")
	s.command = append([]string{path}, args...)
	s.command = append(s.command, "--bind", s.Host, "--port", strconv.Itoa(s.Port), "--dir", s.Dir, "--daemonize", "no",
		"--save", "", "--appendonly", "no", "--unixsocket", s.Socket, "--unixsocketperm", "700")
	require.NoError(t, s.run(), "start redis-server")
	t.Cleanup(s.Kill)
	return s
}

// run starts the process and waits until it listens. It sends no command: the server may need a password or TLS.
func (s *Server) run() (err error) {
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Env = append(os.Environ(), s.environment...)
	s.process, err = daemon.Start(cmd, daemon.Listens(s.Address()))
	return err
}

// folder creates a temporary folder with a short path, because the path of a unix socket has at most 107 bytes.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis")
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the folder of redis-server: %v", err)
		}
	})
	return dir
}

// do sends a command that must succeed.
func do(t testing.TB, client *redis.Client, args ...any) {
	t.Helper()
	require.NoErrorf(t, client.Do(context.Background(), args...).Err(), "%v", args)
}
