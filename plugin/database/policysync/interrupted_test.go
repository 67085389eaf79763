package policysync_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// The end of a process interrupts the query that runs then, and with it the connection.
func TestANodeThatEndsDuringAQueryRemovesItsReport(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Node, options.BeatEvery = "busy", 10*time.Millisecond
	n := start(t, options)
	await.That(w, "it reports", func() bool { return w.reports("busy") })
	// A lock on the reports holds the next one up, so that the end comes during it.
	lock, err := w.pool.Begin(context.Background())
	require.NoError(t, err)
	_, err = lock.Exec(context.Background(), `LOCK rate_limiter.nodes IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	const waiting = `SELECT count(*) FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND datname = current_database() AND query NOT LIKE 'DELETE%'`
	await.That(w, "a report waits for the lock", func() bool { return value[int](w, waiting) > 0 })
	ended := make(chan struct{})
	go func() { n.stop(); close(ended) }()
	await.That(w, "the report is interrupted", func() bool { return value[int](w, waiting) == 0 })
	require.NoError(t, lock.Rollback(context.Background()))
	<-ended
	assert.False(t, w.reports("busy"), "its report is left")
}
