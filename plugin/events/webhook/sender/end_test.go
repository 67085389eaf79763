package sender

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestARequestIsFinishedAlsoIfTheProcessEndsWhileTheOutboxIsRead(t *testing.T) {
	w := newWorld(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	r := w.newReceiver(func(to http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		to.WriteHeader(200)
	})
	_, id := w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.session.close()
	w.options.Every, w.options.Drain = time.Millisecond, time.Minute
	w.sender = New(w.options)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.sender.Run(ctx) }()
	<-arrived
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	pgtest.Exec(t, tx, `SELECT FROM rate_limiter.outbox_state FOR UPDATE`)
	await.That(t, "the sender waits for the outbox", func() (waits bool) {
		err := w.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		require.NoError(t, err)
		return waits
	})
	stop()
	require.NoError(t, tx.Commit(t.Context()))
	close(release)
	assert.NoError(t, <-ended)
	if hook := w.hook(id); hook.Waiting != 0 || hook.DeliveredAt.IsZero() {
		t.Errorf("the webhook is %+v, want the delivery recorded", hook)
	}
	w.restart()
}
