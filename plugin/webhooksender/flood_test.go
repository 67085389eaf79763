package webhooksender

import (
	"net/http"
	"testing"
)

func TestABacklogOfOneTenantDoesNotDelayTheDeliveriesOfAnother(t *testing.T) {
	w := newWorld(t)
	unread := int64(-1)
	fast := w.newReceiver(func(to http.ResponseWriter, _ *http.Request) {
		if err := w.pool.QueryRow(t.Context(), `SELECT s.last - c.position FROM rate_limiter.outbox_state s,
			rate_limiter.outbox_cursors c WHERE c.consumer = $1`, Consumer).Scan(&unread); err != nil {
			t.Error(err)
		}
		to.WriteHeader(200)
	})
	flooded := w.newReceiver(status(200))
	w.subscribe("fast", fast.URL)
	w.subscribe("flooded", flooded.URL)
	w.happen("fast", 1)
	w.happen("flooded", 3*maxRead)
	w.work()
	w.want(fast, 1)
	if unread != 3*maxRead+1-maxRead {
		t.Errorf("the delivery was sent with %d events unread, want it after the first %d", unread, maxRead)
	}
}
