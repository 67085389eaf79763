package spec

import (
	"net/http"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// share returns the number of tokens that may be on lease by default.
func (b bound) share() int {
	if b.algorithm == "token_bucket" {
		return b.burst * 2 / 100
	}
	return b.limit * 2 / 100
}

func TestAKilledNodeLosesOnlyItsLeasesWhichRefillWithTime(t *testing.T) {
	t.Parallel()
	const connections = 4 // for each limit to each node; each may have one admission without an answer
	f := onSocket(t, redistest.Single(t))
	nodes := f.joinAll(2)
	f.awaitLeases(nodes...)
	awaitTurn(t)
	quota, window := yearly(4000), bound{algorithm: "fixed_window", limit: 240, window: 10 * time.Second}
	bucket := bound{algorithm: "token_bucket", limit: 2000, window: 100 * time.Second, burst: 2000}
	var dying []*part
	press := func(tenant string, b bound, perSecond int) *traffic {
		tr := f.offer(by(tenant), steady(perSecond))
		dying = append(dying, tr.to(nodes[0], nodes[0].open("", b.config()), connections))
		tr.to(nodes[1], nodes[1].open("", b.config()), connections)
		return tr
	}
	onQuota, onWindow, onBucket := press("quota", quota, 1000), press("window", window, 1500), press("bucket", bucket, 800)
	nodes[0].awaitSpent(t, 300)
	for _, part := range dying {
		part.over.Store(true)
	}
	nodes[0].kill()
	killed := f.since()
	spent := onBucket.stop()

	lost := 0.0 // of the token bucket
	t.Run("a token bucket refills the lost tokens", func(t *testing.T) {
		refilled := func(at time.Duration) float64 { return bucket.rate() * (at - spent[0].Sent).Seconds() }
		back := time.Duration(float64(bucket.share()) / bucket.rate() * float64(time.Second))
		elapse(t.Context(), killed+back-f.since()) // the other node releases unused leases meanwhile
		n, now := float64(counted(spent, http.StatusOK)), f.since()
		used := float64(f.used(bucket.config(), "bucket"))
		lost = used - n + refilled(now)
		t.Logf("%.1f tokens were lost with the node", lost)
		if most := float64(bucket.share() + connections); lost > most+1 {
			t.Errorf("%.1f tokens were lost with the node, at most %g may be", lost, most)
		}
		if most := n + connections - refilled(killed); used > most+1 {
			t.Errorf("%g tokens are used after the share has refilled, at most the %g from before the kill may be", used, most)
		}
		bucket.check(t, spent, 5)
	})
	t.Run("a quota loses only them", func(t *testing.T) {
		onQuota.awaitDenials(t, 100)
		samples := onQuota.stop()
		n := counted(samples, http.StatusOK)
		t.Logf("%d of %d were admitted", n, quota.limit)
		if n > quota.limit || n < quota.limit-quota.share()-connections {
			t.Errorf("%d of %d were admitted; a killed node takes at most %d with it, and %d requests",
				n, quota.limit, quota.share(), connections)
		}
		if n == quota.limit && lost < 1 {
			t.Error("nothing was out on lease when the node was killed")
		}
	})
	t.Run("the next fixed window has them again", func(t *testing.T) {
		var whole span // the first window after the kill in which requests were denied: a busy machine may send too few
		await.That(t, "a whole window with denials after the kill", func() bool {
			end := f.since().Truncate(window.window)
			whole = span{end - window.window, end}
			return whole.From > killed && onWindow.denied(whole)
		})
		samples := onWindow.stop()
		if n := window.windows(admitted(samples))[whole.From]; n < window.limit-2*connections {
			t.Errorf("%d were admitted in a window after the kill, want %d (of %d requests in all)",
				n, window.limit, len(samples))
		}
		window.check(t, samples, 5)
	})
}
