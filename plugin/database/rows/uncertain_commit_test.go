package rows_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// wired returns a store on a pool whose config edit has changed.
func wired(t *testing.T, dsn string, edit func(*pgxpool.Config)) *rows.DB {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	edit(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return rows.New(pool)
}

func TestWaitingWritersLeaveConnectionsToReaders(t *testing.T) {
	const connections = 4
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	s := wired(t, pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = connections })
	busy, err := pool.Begin(t.Context()) // a writer with a long transaction
	if err == nil {
		_, err = busy.Exec(t.Context(), `SELECT rate_limiter.await_turn()`)
	}
	require.NoError(t, err)
	var writers errgroup.Group
	for range 2 * connections {
		writers.Go(func() error {
			_, _, err := s.PutPolicy(t.Context(), ann, daily())
			return err
		})
	}
	awaitBlocked(t, pool)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = s.Policies(ctx, rows.PolicyFilter{})
	assert.NoError(t, err, "want a connection for a reader while writers wait")
	assert.NoError(t, errors.Join(busy.Rollback(t.Context()), writers.Wait()))
}

// awaitBlocked returns once writers wait for the lock of writes.
func awaitBlocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	await.That(t, "two writers wait", func() (wait bool) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) >= 2 `+stopped).Scan(&wait))
		return wait
	})
}

// severed is a connection that breaks after it has sent a COMMIT, once it is armed.
type severed struct {
	net.Conn
	armed *atomic.Bool
}

func (c severed) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && bytes.Contains(b, []byte("commit")) && c.armed.Load() {
		err = c.Close()
	}
	return n, err
}

func TestAWriteWithoutAnAnswerToItsCommitIsUncertainAndMayBeSentAgain(t *testing.T) {
	var armed atomic.Bool
	s := wired(t, pgtest.Shared(t).Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return severed{conn, &armed}, err
		}
	})
	armed.Store(true)
	_, _, err := s.PutPolicy(t.Context(), once("k", "a request"), daily())
	assert.ErrorAs(t, err, new(*rows.UncertainError))
	armed.Store(false)
	_, _, err = s.PutPolicy(t.Context(), once("k", "a request"), daily())
	require.NoError(t, err)
	if version, entries := versions(t, s); version != 1 || entries != 1 {
		t.Errorf("version %d and %d entries, want one write", version, entries)
	}
}

func TestARejectedWriteIsNotUncertain(t *testing.T) {
	s, _ := open(t)
	bad := daily()
	bad.Limit.Limit = -1
	_, _, err := s.PutPolicy(t.Context(), ann, bad)
	if uncertain := new(rows.UncertainError); err == nil || errors.As(err, &uncertain) {
		t.Errorf("%v, want an error that is certain", err)
	}
}
