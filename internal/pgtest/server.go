package pgtest

import (
	"bytes"
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

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

const (
	// patience is how long a server may take to do what it was started for. It is long: tests share a busy machine.
	patience = 60 * time.Second
	// glance is how long lies between two looks at something that is to come.
	glance = 10 * time.Millisecond
	// attempts is how often a server is started: somebody else may take a free port first.
	attempts = 5
	// superuser owns the server. It has no password: the server trusts every connection.
	superuser = "postgres"
)

// settings are those of a server that may forget everything when the machine stops, and nothing before.
var settings = []string{
	"fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=100",
	"log_min_messages=warning", "max_wal_size=256MB", "autovacuum=off",
}

// Server controls one Postgres, running or not.
type Server struct {
	Host string // 127.0.0.1
	Port int    // on the loopback; the same over its whole life
	Dir  string // its folder, in which its unix socket is too

	process *os.Process
	ended   chan struct{} // closed once the process is gone
	output  *bytes.Buffer

	templateOnce sync.Once
	templateErr  error
}

// Start starts a server that belongs to the test alone, until its end.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := create()
	must(t, "start postgres", err)
	t.Cleanup(func() { must(t, "end postgres", s.remove()) })
	return s
}

// DSN returns the connection string of one of the server's databases, over the loopback, for its superuser.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", superuser, s.Address(), url.PathEscape(database))
}

// Address returns the server's host:port.
func (s *Server) Address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Stop ends the server in the planned way: connections are told and cut, and what was committed is on disk. It is not
// an error that it has ended already.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	must(t, "stop postgres", s.end(syscall.SIGINT))
}

// Kill ends the server at once, as a crash of its process would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	must(t, "kill postgres", s.end(syscall.SIGKILL))
}

// Start starts a server that was stopped or killed, on the same address with the same data, and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	must(t, "start postgres again", s.again())
}

// create makes a server with an empty database cluster and starts it.
func create() (*Server, error) { return launch((*Server).initialise) }

// launch makes a server whose folder fill fills, and starts it.
func launch(fill func(*Server) error) (*Server, error) {
	if _, err := programs(); err != nil {
		return nil, err
	}
	dir, err := folder()
	if err != nil {
		return nil, fmt.Errorf("make a folder for postgres: %w", err)
	}
	s := &Server{Host: "127.0.0.1", Dir: dir}
	if err = fill(s); err == nil {
		for range attempts {
			if s.Port, err = freeport.Find(); err == nil {
				err = s.run()
			}
			if err == nil {
				return s, nil
			}
		}
	}
	return nil, errors.Join(err, os.RemoveAll(dir))
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

func (s *Server) initialise() error {
	cmd, err := command("initdb", "--pgdata", s.data(), "--username", superuser, "--auth", "trust", "--encoding", "UTF8",
		"--locale", "C.UTF-8", "--no-sync", "--no-instructions")
	if err != nil {
		return err
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, debian.LastLine(output))
	}
	return nil
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	args := []string{"-D", s.data(), "-h", s.Host, "-p", strconv.Itoa(s.Port), "-k", s.Dir}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	cmd, err := command("postgres", args...)
	if err != nil {
		return err
	}
	s.output = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.process, s.ended = cmd.Process, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it ends by a signal
	}()
	if err := s.awake(); err != nil {
		return errors.Join(err, s.end(syscall.SIGKILL), errors.New(debian.LastLine(s.output.Bytes())))
	}
	return nil
}

// again runs a server whose predecessor may have been killed a moment ago: while that one's children have not noticed,
// Postgres refuses to start.
func (s *Server) again() error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(glance) {
		if err = s.run(); err == nil {
			return nil
		}
	}
	return err
}

// awake waits until the server accepts a connection.
func (s *Server) awake() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		select {
		case <-s.ended:
			return errors.New("it ended at once")
		case <-time.After(glance):
		}
		connection, err := pgx.Connect(ctx, s.DSN(superuser))
		if err == nil {
			return connection.Close(ctx)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it did not answer on %s within %v: %w", s.Address(), patience, err)
		}
	}
}

// end sends a signal that ends the process, and waits for that.
func (s *Server) end(signal os.Signal) error {
	if s.process == nil {
		return nil
	}
	if err := s.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to postgres %d: %w", signal, s.process.Pid, err)
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("postgres %d did not end within %v of %v", s.process.Pid, patience, signal)
	}
}

// remove ends the server and all that it kept. It is asked to stop first, so that its children are gone, too.
func (s *Server) remove() error {
	return errors.Join(s.end(syscall.SIGINT), os.RemoveAll(s.Dir))
}
