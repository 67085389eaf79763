package spec

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// BenchmarkAccuracy compares the admissions of four processes, leased and exact, with those of an ideal limiter.
// Traffic is three times the limit, spread evenly over the processes. More admissions than the limit are a failure.
func BenchmarkAccuracy(b *testing.B) {
	server := redistest.Single(b)
	a := accuracy{fleet: onSocket(b, server), client: server.Client(b)}
	a.members = a.fleet.joinAll(4)
	a.fleet.awaitLeases(a.members...)
	limits := []bound{
		{algorithm: "token_bucket", limit: 1000, window: time.Second, burst: 2000},
		{algorithm: "fixed_window", limit: 1000, window: time.Second},
	}
	shapes := []struct {
		name string
		at   func(perSecond int) schedule
	}{{"steady", steady}, {"bursty", bursty}, {"on-off", onOff}, {"rushes", rushes}}
	for _, limited := range limits[:shortly(len(limits))] {
		for _, traffic := range shapes[:shortly(len(shapes))] {
			for _, how := range []string{"leased", "exact"} {
				b.Run(fmt.Sprintf("algorithm=%s/traffic=%s/accuracy=%s", limited.algorithm, traffic.name, how), func(b *testing.B) {
					for b.Loop() {
						a.measure(b, limited, traffic.at, how)
					}
					b.ReportMetric(0, "ns/op") // the length of a run is fixed
				})
			}
		}
	}
}

// accuracy is a fleet that is measured repeatedly, each time with a new tenant.
type accuracy struct {
	fleet   *fleet
	client  *redis.Client
	members []*member
	tenants int
}

// mostUnder is the percentage by which leased limits may admit fewer requests than the ideal limiter: the lease share
// and half a percent.
const mostUnder = 2.5

// measure loads a bucket of a new tenant for some seconds, and reports the accuracy.
func (a *accuracy) measure(b *testing.B, limited bound, at func(perSecond int) schedule, how string) {
	const lasts, offered = 6 * time.Second, 3
	a.tenants++
	ids := make([]int32, len(a.members))
	for i, m := range a.members {
		ids[i] = m.open(fmt.Sprintf(`"accuracy":%q,`, how), limited.config())
	}
	before := scripts(b, a.client)
	each, start := make([]*traffic, len(a.members)), time.Now()
	for i, m := range a.members {
		each[i] = a.fleet.offer(by(fmt.Sprint("tenant-", a.tenants)), at(offered*limited.limit/len(a.members)))
		each[i].start = start // equal starts, because the first process gets the most of a burst
		each[i].to(m, ids[i], 4)
	}
	var all []sample
	least, most := 0, 0
	for i, tr := range each {
		samples := tr.lastFor(lasts)
		n := counted(samples, http.StatusOK)
		if most = max(most, n); i == 0 || n < least {
			least = n
		}
		all = append(all, samples...)
	}
	over, under := limited.over(all), limited.under(all)
	b.ReportMetric(100*over/float64(limited.ideal(all)), "over-%")
	b.ReportMetric(under, "under-%")
	b.ReportMetric(float64(least)/float64(max(most, 1)), "fairness")
	b.ReportMetric(1000*float64(scripts(b, a.client)-before)/float64(len(all)), "scripts/1000")
	b.ReportMetric(float64(len(all))/lasts.Seconds(), "offered/s")
	if over > 1e-6 {
		b.Errorf("%.1f requests were admitted above the limit, in the worst interval", over)
	}
	if how == "leased" && under > mostUnder {
		b.Errorf("%.2f %% fewer were admitted than the limit allows, at most %g %% may be", under, mostUnder)
	}
}

// BenchmarkHotTenant measures the cost for Redis of a tenant with four limits at 5,000 requests a second.
func BenchmarkHotTenant(b *testing.B) {
	for _, processes := range []int{1, 4} {
		b.Run(fmt.Sprint("processes=", processes), func(b *testing.B) {
			for b.Loop() {
				calls, decisions, took := hotTenant(b, processes)
				b.ReportMetric(1000*float64(calls)/float64(max(decisions, 1)), "scripts/1000")
				b.ReportMetric(float64(decisions)/took.Seconds(), "decisions/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkFlood measures the cost for Redis of denied requests with four limits, one of which is exhausted.
func BenchmarkFlood(b *testing.B) {
	server := redistest.Single(b)
	m, client := onSocket(b, server).join(), server.Client(b)
	for _, scope := range scopes {
		b.Run("denies="+named(scope), func(b *testing.B) {
			for b.Loop() {
				id := m.openScoped(fmt.Sprint(named(scope), "-", m.plugins), 1000, scope, `"limit":30,"window_size":3600`)
				for range 31 { // the last one is denied
					m.ask(b, id, by("acme"))
				}
				calls, denied := m.flood(b, client, id)
				b.ReportMetric(1000*float64(calls)/float64(max(denied, 1)), "scripts/1000")
				b.ReportMetric(float64(denied), "denials/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// scopes lists the scopes of the four limits of a request.
var scopes = []string{"tenant", "tenant+endpoint", "user", "global"}

// named returns the name of the limit with a scope.
func named(scope string) string { return strings.ReplaceAll(scope, "+", "-") }

// openScoped starts an instance of a config with a limit for each scope in a namespace, of perSecond tokens a second.
// The limit of the scope apart has other settings.
func (m *member) openScoped(namespace string, perSecond int, apart, settings string) int32 {
	m.t.Helper()
	limits := map[string]string{}
	for _, scope := range scopes {
		limits[scope] = fmt.Sprintf(`{"name":%q,"scope":%q,"limit":%d,"window_size":1}`, named(scope), scope, perSecond)
	}
	if apart != "" {
		limits[apart] = fmt.Sprintf(`{"name":%q,"scope":%q,%s}`, named(apart), apart, settings)
	}
	return m.open(fmt.Sprintf(`"namespace":%q,"global":{"limits":[%s]},`, namespace, limits["global"]),
		limits["tenant"]+","+limits["tenant+endpoint"]+","+limits["user"])
}

// flood sends requests that are denied to a member, for a second and at least 1,000, and counts the denials and the
// scripts of Redis.
func (m *member) flood(t testing.TB, client *redis.Client, id int32) (calls, denied int) {
	t.Helper()
	before := scripts(t, client)
	tr := m.fleet.offer(by("acme"), steady(4000))
	tr.to(m, id, 8)
	tr.awaitDenials(t, 1000)
	samples := tr.lastFor(time.Second)
	calls, denied = scripts(t, client)-before, counted(samples, http.StatusTooManyRequests)
	if denied != len(samples) {
		t.Errorf("%d of %d requests were denied, want all", denied, len(samples))
	}
	return calls, denied
}

// hotRate is the number of requests a second that a hot tenant sends, as far as the machine can.
const hotRate = 5000

// hotTenant loads four scopes of one tenant through some processes, and counts the scripts of Redis and the decisions
// in about two seconds.
func hotTenant(t testing.TB, processes int) (calls, decisions int, took time.Duration) {
	server := redistest.Single(t)
	f := onSocket(t, server)
	client := server.Client(t)
	members := f.joinAll(processes)
	f.awaitLeases(members...)
	awaitTurn(t)
	tr := f.offer(by("acme"), steady(hotRate))
	for _, m := range members {
		tr.to(m, m.openScoped("default", 2*hotRate, "", ""), 16/processes)
	}
	elapse(t.Context(), time.Second) // leases grow to the rate
	before, scriptsBefore, begun := tr.count(http.StatusOK), scripts(t, client), time.Now()
	elapse(t.Context(), 2*time.Second)
	decisions, calls, took = tr.count(http.StatusOK)-before, scripts(t, client)-scriptsBefore, time.Since(begun)
	if all := tr.stop(); counted(all, http.StatusOK) != len(all) {
		t.Errorf("%d of %d requests were admitted, want all", counted(all, http.StatusOK), len(all))
	}
	if calls == 0 {
		t.Error("Redis was never called: nothing is limited")
	}
	return calls, decisions, took
}
