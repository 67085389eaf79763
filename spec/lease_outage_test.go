package spec

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// On a busy machine a quota may end before both nodes lease, and the first request of an outage may come after the life
// of the leases. Such an outage keeps the other promises, and another one follows.
func TestAnOutageIsDecidedFromLeasesFirstAndThenByFailModes(t *testing.T) {
	t.Parallel()
	proxy := proxyTo(t, redistest.Single(t))
	f := onRedis(t, fmt.Sprintf(`"host":"127.0.0.1","port":%d,"send_timeout":3000,"read_timeout":3000`, proxy.Port()))
	nodes := f.joinAll(2)
	const most = 5
	for n := range most {
		if closed, local := f.strike(t, n, proxy, nodes); closed > 0 && local > 0 {
			return
		}
	}
	t.Errorf("in %d outages no lease was spent while Redis was unavailable", most)
}

// strike makes Redis unavailable to two nodes with tokens on lease, and compares the decisions with the promises. It
// returns how many requests leases have admitted meanwhile, of a tenant with each fail mode.
func (f *fleet) strike(t *testing.T, n int, proxy *faultproxy.Proxy, nodes []*member) (closed, local int) {
	t.Helper()
	const connections = 8
	f.awaitLeases(nodes...)
	awaitTurn(t)
	quota := yearly(2000)
	modes := []string{"closed", "local"}
	flows := make([]*traffic, len(modes))
	for i, mode := range modes {
		limit := quota
		limit.others = fmt.Sprintf(`,"fail_mode":%q`, mode)
		flows[i] = f.offer(by(fmt.Sprintf("%s-%d", mode, n)), steady(500))
		flows[i].to(nodes[i], nodes[i].open(`"degraded_header":true,`, limit.config()), connections)
	}
	leasing := false
	await.That(t, "leases of both tenants, or the end of a quota", func() bool {
		leasing = nodes[0].out() > 0 && nodes[1].out() > 0
		return leasing || flows[0].count(http.StatusTooManyRequests)+flows[1].count(http.StatusTooManyRequests) > 0
	})
	if !leasing {
		flows[0].stop()
		flows[1].stop()
		return 0, 0
	}
	var struck time.Duration
	// No request is in flight when Redis goes away, and the next ones follow within the life of a lease.
	flows[0].between(func() {
		flows[1].between(func() {
			proxy.Partition()
			struck = f.since()
		})
	})
	flows[1].awaitDenials(t, 100) // this node's share of the limit is exhausted, too
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	away := span{struck, f.since()}
	leased := make([]int, len(modes))
	for i, mode := range modes {
		flows[i].awaitDenialByRedis(t, away.To)
		t.Run(fmt.Sprintf("%s-%d", mode, n), func(t *testing.T) {
			leased[i] = checkOutage(t, mode == "local", flows[i].stop(), away, quota, connections)
		})
	}
	return leased[0], leased[1]
}

// awaitDenialByRedis waits until Redis has denied a request after an instant.
func (tr *traffic) awaitDenialByRedis(t *testing.T, after time.Duration) {
	t.Helper()
	await.That(t, "a denial by Redis", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		last := tr.samples[len(tr.samples)-1]
		return last.Status == http.StatusTooManyRequests && !last.Degraded && last.Sent > after
	})
}

// checkOutage compares the decisions about a quota with the promise for a time without Redis. It returns how many
// requests leases have admitted meanwhile.
func checkOutage(t *testing.T, local bool, samples []sample, away span, quota bound, connections int) (leased int) {
	t.Helper()
	alone, undecided := 0, 0
	for _, one := range samples {
		switch meanwhile := one.Sent > away.From && one.Answered < away.To; {
		case one.Status == http.StatusServiceUnavailable:
			undecided++
		case one.Status == http.StatusOK && one.Degraded:
			alone++
		case one.Status == http.StatusOK && meanwhile:
			leased++
		}
	}
	all, share := counted(samples, http.StatusOK), quota.limit*chaosShare/100
	t.Logf("%d admitted in all; while Redis was unavailable %d from leases and %d by this node; %d not decided",
		all, leased, alone, undecided)
	if leased > quota.share() {
		t.Errorf("%d were admitted from leases while Redis was unavailable, want at most %d", leased, quota.share())
	}
	if !local {
		share = 0
	}
	if local == (alone == 0) || alone > share {
		t.Errorf("%d were admitted by this node alone, at most %d may be", alone, share)
	}
	if local == (undecided > 0) {
		t.Errorf("%d were not decided", undecided)
	}
	// Requests in flight when Redis went away may have spent tokens without an answer, and leases may have expired.
	if least := quota.limit - quota.share() - 2*connections; all > quota.limit+share || all < least {
		t.Errorf("%d were admitted in all, want from %d to %d", all, least, quota.limit+share)
	}
	return leased
}
