package spec

import (
	"fmt"
	"net/http"
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

// mostDenied is the percentage of requests that leased limits may deny more than exact ones, in any minute.
const mostDenied = 2

// below is traffic that stays below a limit, or just at it.
type below struct {
	name  string
	limit bound
	left  int             // tokens of its bucket at the start, so few that tokens lost by leases are denials
	at    func() schedule // of all members together
}

// BenchmarkAccuracyBelowTheLimit compares the denials of traffic below a limit with and without leases, in the worst
// minute. The bucket is nearly empty at the start. More denials than mostDenied are a failure.
func BenchmarkAccuracyBelowTheLimit(b *testing.B) {
	perMinute := bound{algorithm: "token_bucket", limit: 12_000, window: time.Minute, burst: 12_000}
	perDay := bound{algorithm: "token_bucket", limit: 1_000_000, window: 24 * time.Hour, burst: 1_000_000}
	shapes := []below{
		{"pulses-of-90", perMinute, 300, func() schedule { return pulses(90, time.Second/2) }},
		{"pulses-of-5-a-day", perDay, 30, func() schedule { return pulses(5, time.Second/2) }},
		{"pages-of-12", perMinute, 300, func() schedule { return pulses(12, 62_500*time.Microsecond) }},
	}
	for _, pct := range []int{80, 90, 100} {
		shapes = append(shapes, below{
			fmt.Sprint("poisson-at-", pct), perMinute, 300,
			func() schedule { return poisson(float64(2 * pct)) },
		})
	}
	server := redistest.Single(b)
	for _, processes := range []int{1, 2, 4}[:shortly(3)] {
		b.Run(fmt.Sprint("processes=", processes), func(b *testing.B) {
			a := accuracy{fleet: onSocket(b, server), client: server.Client(b)}
			a.members = a.fleet.joinAll(processes)
			a.fleet.awaitLeases(a.members...)
			for _, shape := range shapes[:shortly(len(shapes))] {
				b.Run("traffic="+shape.name, func(b *testing.B) {
					for b.Loop() {
						a.measureBelow(b, shape)
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		})
	}
}

// measureBelow sends traffic to a leased and an exact limit at once, of two tenants, and compares the denials.
func (a *accuracy) measureBelow(b *testing.B, shape below) {
	lasts, least := 75*time.Second, 60
	if testing.Short() {
		lasts, least = 3*time.Second, 1 // without a worst minute
	}
	running := map[string]*traffic{}
	for _, how := range []string{"exact", "leased"} {
		a.tenants++
		request, settings := by(fmt.Sprint("tenant-", a.tenants)), fmt.Sprintf(`"accuracy":%q,`, how)
		ids := make([]int32, len(a.members))
		for i, m := range a.members {
			ids[i] = m.open(settings, shape.limit.config())
		}
		drain := shape.limit
		drain.others = fmt.Sprintf(`,"cost":%d`, drain.burst-shape.left)
		if outcome := a.members[0].ask(b, a.members[0].open(settings, drain.config()), request); outcome.Exit != nil {
			b.Fatalf("%s: a full bucket has no %s tokens: %d", how, drain.others, outcome.Exit.Status)
		}
		running[how] = a.fleet.offer(request, shape.at())
		for i, m := range a.members {
			running[how].to(m, ids[i], 8)
		}
	}
	minutes := map[string]perSecond{}
	for how, tr := range running {
		samples := tr.lastFor(lasts)
		if minutes[how] = bySecond(samples, tr.start.Sub(a.fleet.begun)); len(minutes[how]) < least {
			b.Fatalf("%s: requests came for %d s, want at least %d", how, len(minutes[how]), least)
		}
		b.ReportMetric(100*float64(counted(samples, http.StatusTooManyRequests))/float64(max(len(samples), 1)),
			how+"-denied-%")
		if over := shape.limit.over(samples); over > 1e-6 {
			b.Errorf("%s: %.1f requests were admitted above the limit, in the worst interval", how, over)
		}
	}
	worst := minutes["leased"].worstMinute(minutes["exact"])
	b.ReportMetric(worst, "worst-minute-%")
	if worst > mostDenied {
		b.Errorf("leases denied %.2f %% more in the worst minute, at most %d %% may be", worst, mostDenied)
	}
}

// perSecond counts the requests and denials in each second of traffic.
type perSecond []struct{ offered, denied int }

// bySecond counts samples from an instant on.
func bySecond(samples []sample, start time.Duration) (all perSecond) {
	for i := range samples {
		second := int(max(samples[i].Sent-start, 0) / time.Second)
		for len(all) <= second {
			all = append(all, struct{ offered, denied int }{})
		}
		all[second].offered++
		all[second].denied += counted(samples[i:i+1], http.StatusTooManyRequests)
	}
	return all
}

// worstMinute returns the excess of denials over other, in percent of the requests of the worst whole minute.
func (p perSecond) worstMinute(other perSecond) (worst float64) {
	const minute = 60
	for from := 0; from+minute <= min(len(p), len(other)); from++ {
		offered, more := 0, 0
		for second := from; second < from+minute; second++ {
			offered += p[second].offered
			more += p[second].denied - other[second].denied
		}
		worst = max(worst, 100*float64(more)/float64(max(offered, 1)))
	}
	return worst
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
				m.want(b, id, append(times(30, http.StatusOK), http.StatusTooManyRequests))
				calls, denied := m.flood(b, client, id)
				b.ReportMetric(1000*float64(calls)/float64(max(denied, 1)), "scripts/1000")
				b.ReportMetric(float64(denied), "denials/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
