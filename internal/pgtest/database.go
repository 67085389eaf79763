package pgtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// template is the database that has the tables of this version and no rows; those of the tests are copies of it.
const template = "migrated"

var (
	shared     = sync.OnceValues(startShared)
	sharedMade atomic.Pointer[Server]
	databases  atomic.Int64 // made so far, for their names
)

func startShared() (*Server, error) {
	s, err := create()
	sharedMade.Store(s)
	return s, err
}

// Shared is the server that all tests of this process use; the first call starts it, and [Main] stops it.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared()
	must(t, "start postgres", err)
	return s
}

// Main is the whole TestMain of a package that uses [Shared]: it runs the tests, ends the server, and fails when a
// goroutine has outlived them.
func Main(m *testing.M) {
	leaktest.Main(m, func() error {
		if s := sharedMade.Load(); s != nil {
			return s.remove()
		}
		return nil
	})
}

// Empty makes a database without tables, dropped at the end of the test, and is its connection string.
func (s *Server) Empty(t testing.TB) string {
	t.Helper()
	return s.database(t, "template1")
}

// Database makes a database with the tables of this version and no rows, dropped at the end of the test, and is its
// connection string.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	s.templateOnce.Do(func() { s.templateErr = s.migrate() })
	must(t, "migrate the template of the databases", s.templateErr)
	return s.database(t, template)
}

func (s *Server) migrate() error {
	if err := s.do("CREATE DATABASE " + template); err != nil {
		return err
	}
	config, err := pgx.ParseConfig(s.DSN(template))
	if err != nil {
		return err
	}
	_, err = migrations.Up(context.Background(), config)
	return err
}

func (s *Server) database(t testing.TB, from string) string {
	t.Helper()
	name := fmt.Sprint("test_", databases.Add(1))
	must(t, "make a database", s.do("CREATE DATABASE "+name+" TEMPLATE "+from))
	t.Cleanup(func() {
		select {
		case <-s.ended: // and its databases with it
		default:
			must(t, "drop the database", s.do("DROP DATABASE "+name+" WITH (FORCE)"))
		}
	})
	return s.DSN(name)
}

// do runs one statement beside the databases of the tests.
func (s *Server) do(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := pgx.Connect(ctx, s.DSN(superuser))
	if err != nil {
		return err
	}
	_, err = connection.Exec(ctx, statement)
	if closed := connection.Close(ctx); err == nil {
		err = closed
	}
	return err
}

// Pool returns a pool of connections to a database, closed at the end of the test.
func Pool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	must(t, "open a pool", err)
	t.Cleanup(pool.Close)
	return pool
}

// AsBefore11 runs statements as a program could before migration 00011, which denies policies of the slot candidate.
func AsBefore11(t testing.TB, pool *pgxpool.Pool, statements string) {
	t.Helper()
	_, err := pool.Exec(
		context.Background(),
		`ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_slot_active; `+statements+`;
		ALTER TABLE rate_limiter.policies ADD CONSTRAINT policies_slot_active CHECK (slot = 'active') NOT VALID`,
	)
	must(t, "write as before migration 00011", err)
}
