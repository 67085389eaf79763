package leadership_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const every = time.Millisecond

func TestTheNextSessionLeadsOnceTheFirstIsClosed(t *testing.T) {
	dsn := pgtest.Shared(t).Empty(t)
	open := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(func() { leadership.Close(conn) })
		return conn
	}
	first, second, other := open(), open(), open()
	require.NoError(t, leadership.Wait(t.Context(), first, 1, every, func() { t.Error("the first session waits") }))
	if leads, err := leadership.TryLock(t.Context(), other, 2); !leads || err != nil {
		t.Errorf("another lock: %v, %v", leads, err)
	}
	tries := 0
	if err := leadership.Wait(t.Context(), second, 1, every, func() {
		if tries++; tries == 2 {
			leadership.Close(first)
		}
	}); err != nil || tries != 2 {
		t.Errorf("the second session waited %d times: %v", tries, err)
	}
	ended, end := context.WithCancel(t.Context())
	if err := leadership.Wait(ended, other, 1, every, end); err == nil || ended.Err() == nil {
		t.Errorf("a session whose context has ended: %v", err)
	}
}
