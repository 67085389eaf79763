package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// template is a database with the tables of this version and no rows. The databases of the tests are copies of it.
const template = "migrated"

var (
	shared     = sync.OnceValues(startShared)
	sharedMade atomic.Pointer[Server]
	databases  atomic.Int64 // the number of the last one, for its name
)

func startShared() (*Server, error) {
	s, err := create()
	sharedMade.Store(s)
	return s, err
}

// Shared returns the server that all tests of this process use. The first call starts it, and [Main] stops it.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared()
	require.NoError(t, err, "start postgres")
	return s
}

// Main is the TestMain of a package that uses a server. It runs the tests, calls [Close], and fails if a goroutine
// outlives them. Such tests make many small servers: with Go's default the collector takes a third of their time.
func Main(m *testing.M) {
	debug.SetGCPercent(400)
	leaktest.Main(m, Close)
}

// Empty creates a database without tables and returns its connection string. The end of the test drops it.
func (s *Server) Empty(t testing.TB) string {
	t.Helper()
	return s.database(t, "template1")
}

// Database creates a database with the tables of this version and no rows, and returns its connection string. The end
// of the test drops it.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return s.database(t, template)
}

func (s *Server) makeTemplate() error {
	if err := s.do("CREATE DATABASE " + template); err != nil {
		return err
	}
	return s.migrate(s.DSN(template))
}

func (s *Server) migrate(dsn string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	_, err = migrations.Up(context.Background(), config)
	return err
}

func (s *Server) database(t testing.TB, from string) string {
	t.Helper()
	name := fmt.Sprint("test_", databases.Add(1))
	require.NoError(t, s.copyDatabase(from, name), "create a database")
	t.Cleanup(func() {
		if !s.process.HasEnded() { // else the databases are gone with it
			require.NoError(t, s.do("DROP DATABASE "+name+" WITH (FORCE)"), "drop the database")
		}
	})
	return s.DSN(name)
}

// copyDatabase creates a copy of a database. A copy of the files takes half of the time of one through the log, which
// Postgres makes by default, and has the files with which connections start faster.
func (s *Server) copyDatabase(from, to string) error {
	return s.do("CREATE DATABASE " + to + " TEMPLATE " + from + " STRATEGY file_copy")
}

// do runs one statement in the superuser's database, over its one connection: connecting for each statement takes
// longer than most of them.
func (s *Server) do(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection == nil {
		return errors.New("the server does not run")
	}
	_, err := s.connection.Exec(ctx, statement)
	return err
}

// Pool returns a pool of connections to a database, closed at the end of the test.
func Pool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	require.NoError(t, err, "open a pool")
	t.Cleanup(pool.Close)
	return pool
}

// WrongSecret is the password in the connection string of [Denied].
const WrongSecret = "hunter2"

// Denied starts a server that requires the password of role ann, and returns a connection string with a wrong one.
func Denied(t testing.TB) (dsn string) {
	t.Helper()
	server := Start(t)
	dsn = server.Database(t)
	pool := Pool(t, dsn)
	_, err := pool.Exec(t.Context(), `CREATE ROLE ann LOGIN PASSWORD 'right'`)
	require.NoError(t, err, "create a role")
	server.Stop(t)
	rules := "host all postgres 127.0.0.1/32 trust\nhost all ann 127.0.0.1/32 scram-sha-256\n"
	err = os.WriteFile(filepath.Join(server.data(), "pg_hba.conf"), []byte(rules), 0o600)
	require.NoError(t, err, "require a password")
	server.Start(t)
	parsed, err := url.Parse(dsn)
	require.NoError(t, err, "parse the connection string")
	parsed.User = url.UserPassword("ann", WrongSecret)
	parsed.RawQuery = "" // the default: two attempts, with TLS and without
	return parsed.String()
}

// WantPlain fails the test if a text has the password of [Denied] or words of the driver, or lacks one of words.
func WantPlain(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, noise := range []string{WrongSecret, "SQLSTATE", "failed to connect", "failed SASL", "\n\t"} {
		if strings.Contains(text, noise) {
			t.Errorf("%q is in\n%s", noise, text)
		}
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in\n%s", word, text)
		}
	}
}

// Execer is a pool, a connection or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Exec runs statements.
func Exec(t testing.TB, by Execer, sql string, args ...any) {
	t.Helper()
	_, err := by.Exec(context.Background(), sql, args...)
	require.NoError(t, err, "run statements")
}
