package spec

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestAnOutageIsDecidedFromLeasesFirstAndThenByFailModes(t *testing.T) {
	t.Parallel()
	const connections = 8
	proxy := proxyTo(t, redistest.Single(t))
	f := onRedis(t, fmt.Sprintf(`"host":"127.0.0.1","port":%d,"send_timeout":3000,"read_timeout":3000`, proxy.Port()))
	nodes := f.joinAll(2)
	f.awaitLeases(nodes...)
	awaitTurn(t)
	closed, local := yearly(2000), yearly(2000)
	local.others = `,"fail_mode":"local"`
	flows := map[string]*traffic{}
	for i, flow := range []struct {
		tenant string
		bound  bound
	}{{"closed", closed}, {"local", local}} {
		flows[flow.tenant] = f.offer(by(flow.tenant), steady(500))
		flows[flow.tenant].to(nodes[i], nodes[i].open(`"degraded_header":true,`, flow.bound.config()), connections)
	}
	var struck time.Duration
	// When Redis goes away each node has tokens on lease for its tenant, and no request is in flight. The next ones follow
	// within the life of a lease.
	await(t, "leases of both tenants", func() (both bool) {
		flows["closed"].between(func() {
			flows["local"].between(func() {
				if both = nodes[0].out() > 0 && nodes[1].out() > 0; both {
					proxy.Partition()
					struck = f.since()
				}
			})
		})
		return both
	})
	flows["local"].awaitDenials(t, 100) // this node's share of the limit is exhausted, too
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := f.since()
	for name, tr := range flows {
		tr.awaitDenialByRedis(t, healed)
		t.Run(name, func(t *testing.T) {
			checkOutage(t, name == "local", tr.stop(), span{struck, healed}, closed, connections)
		})
	}
}

// awaitDenialByRedis waits until Redis has denied a request after an instant.
func (tr *traffic) awaitDenialByRedis(t *testing.T, after time.Duration) {
	t.Helper()
	await(t, "a denial by Redis", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		last := tr.samples[len(tr.samples)-1]
		return last.Status == http.StatusTooManyRequests && !last.Degraded && last.Sent > after
	})
}

// checkOutage compares the decisions about a quota with the promise for a time without Redis.
func checkOutage(t *testing.T, local bool, samples []sample, away span, quota bound, connections int) {
	leased, alone, undecided := 0, 0, 0
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
	if leased == 0 || leased > quota.share() {
		t.Errorf("%d were admitted from leases while Redis was unavailable, want some and at most %d", leased, quota.share())
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
}
