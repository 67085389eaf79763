// Package pgtest starts real Postgres servers for a test, and ends them with it. A server has a temporary folder (in
// memory, if enough is free), a unix socket there and a free port of the loopback. It does not sync to disk: its data
// survives a kill of its process, but not the end of the machine.
//
// [Shared] returns one server for all tests of a package, each with a database of its own. The TestMain of the package
// is [Main]. A test that stops or kills a server starts another one ([Start]). Servers start with a copy of the data of
// the first one, because initdb and the migrations take long. The packages of one run of go test share that data.
//
// A test without Postgres fails and is never skipped. If Postgres is missing, this package installs it with apt-get,
// once and if the environment asks for it (package debian). Postgres does not run as root, so for root its programs run
// as the user postgres.
//
// Package migrations defines the tables; this package only applies them.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/daemon"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

const (
	// serverTimeout bounds the wait for an answer. It is long because tests share a busy machine.
	serverTimeout = 60 * time.Second
	// superuser owns the server. It has no password: the server trusts every connection.
	superuser = "postgres"
)

// settings make a server fast. Its data need not survive the end of the machine.
var settings = []string{
	"fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=100",
	"log_min_messages=warning", "max_wal_size=256MB", "autovacuum=off", "jit=off",
}

// durable is the environment variable with which servers keep their data on the disk, as those of production do, with
// the default settings: for benchmarks.
const durable = "PGTEST_DURABLE"

var durableSettings = []string{"max_connections=100", "log_min_messages=warning"}

// Server controls one Postgres, running or not.
type Server struct {
	Host string // 127.0.0.1
	Port int    // on the loopback; it never changes
	Dir  string // its folder, with its unix socket

	process *daemon.Process

	mu         sync.Mutex
	connection *pgx.Conn // to the superuser's database, while the process runs
}

// Start starts a server for one test. The end of the test ends it.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := create()
	require.NoError(t, err, "start postgres")
	t.Cleanup(func() { require.NoError(t, s.remove(), "end postgres") })
	return s
}

// DSN returns the connection string of one of the server's databases, over the loopback, for its superuser.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", superuser, s.Address(), url.PathEscape(database))
}

// Address returns the server's host:port.
func (s *Server) Address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Stop shuts the server down: it closes connections and writes committed data to disk. A server that has ended is no
// error.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	require.NoError(t, s.end(syscall.SIGINT), "stop postgres")
}

// Kill ends the server at once, as a crash of its process would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, s.end(syscall.SIGKILL), "kill postgres")
}

// Start starts a server that was stopped or killed, on the same address with the same data, and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	require.NoError(t, s.restart(), "start postgres again")
}

// create starts a server that has the template of the databases.
func create() (*Server, error) { return migratedCluster.start() }

// launch starts a server in a new folder after fill has filled it.
func launch(fill func(*Server) error) (*Server, error) {
	if _, err := programs(); err != nil {
		return nil, err
	}
	dir, err := folder()
	if err != nil {
		return nil, fmt.Errorf("create a folder for postgres: %w", err)
	}
	s := &Server{Host: "127.0.0.1", Dir: dir}
	if err = fill(s); err == nil {
		s.Port, err = freeport.Find()
	}
	if err == nil {
		err = s.run()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

func (s *Server) initialize() error {
	cmd, err := command("initdb", "--pgdata", s.data(), "--username", superuser, "--auth", "trust", "--encoding", "UTF8",
		"--locale", "C.UTF-8", "--wal-segsize", "1", "--no-sync", "--no-instructions")
	if err != nil {
		return err
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, debian.LastLine(output))
	}
	return nil
}

func (s *Server) run() error {
	args := []string{"-D", s.data(), "-h", s.Host, "-p", strconv.Itoa(s.Port), "-k", s.Dir}
	chosen := settings
	if os.Getenv(durable) != "" {
		chosen = durableSettings
	}
	for _, setting := range chosen {
		args = append(args, "-c", setting)
	}
	cmd, err := command("postgres", args...)
	if err != nil {
		return err
	}
	s.process, err = daemon.Start(cmd, s.reconnect)
	return err
}

// restart runs a server again. Postgres does not start while children of a killed server still run.
func (s *Server) restart() error {
	var err error
	for deadline := time.Now().Add(serverTimeout); time.Now().Before(deadline); {
		if err = s.run(); err == nil {
			return nil
		}
	}
	return err
}

func (s *Server) reconnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
	defer cancel()
	connection, err := pgx.Connect(ctx, s.DSN(superuser))
	if err == nil {
		s.connect(connection)
	}
	return err
}

// connect replaces the connection to the superuser's database. With nil there is none.
func (s *Server) connect(connection *pgx.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection != nil {
		_ = s.connection.Close(context.Background()) // the server may be gone
	}
	s.connection = connection
}

func (s *Server) end(signal os.Signal) error {
	s.connect(nil)
	return s.process.End(signal)
}

// remove shuts the server down, with its children, and removes its folder.
func (s *Server) remove() error {
	return errors.Join(s.end(syscall.SIGINT), os.RemoveAll(s.Dir))
}
