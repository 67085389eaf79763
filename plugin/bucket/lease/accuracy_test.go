package lease

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const minute = 60 * limit.Second

// arrivals are the instants of requests, from the beginning of a shape of traffic.
type arrivals []limit.Micros

// pages are so many requests at once, each time after a pause.
func pages(requests int, pause, lasts limit.Micros) (at arrivals) {
	for begin := limit.Micros(0); begin < lasts; begin += pause {
		for range requests {
			at = append(at, begin)
		}
	}
	return at
}

// poisson are requests that know nothing of each other, so many a second on average. Each seed has its own.
func poisson(seed uint64, perSecond float64, lasts limit.Micros) (at arrivals) {
	random := rand.New(rand.NewPCG(seed, 2))
	for now := 0.0; now < float64(lasts); now += random.ExpFloat64() / perSecond * float64(limit.Second) {
		at = append(at, limit.Micros(now))
	}
	return at
}

// shape is traffic below or at a limit.
type shape struct {
	bounds  string
	traffic string
	limit   limit.Spec
	spent   int64 // of the bucket, when the traffic begins
	at      arrivals
}

func (s *shape) String() string { return s.traffic + " of " + s.bounds }

var (
	perMinute = shape{
		bounds: "12000-per-minute", spent: 11_700,
		limit: limit.Spec{Algorithm: limit.TokenBucket, Quantity: 12_000, Window: minute},
	}
	slow = shape{
		bounds: "600-per-minute", spent: 580,
		limit: limit.Spec{Algorithm: limit.TokenBucket, Quantity: 600, Window: minute},
	}
	perDay = shape{
		bounds: "million-per-day", spent: 999_970,
		limit: limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1_000_000, Window: 1440 * minute},
	}
	aligned = shape{
		bounds: "window-of-12000",
		limit:  limit.Spec{Algorithm: limit.FixedWindow, Quantity: 12_000, Window: minute},
	}
)

// of returns traffic that is offered to a limit.
func (s shape) of(traffic string, at arrivals) shape {
	s.traffic, s.at = traffic, at
	return s
}

// regular are the shapes that leave nothing to chance.
func regular() []shape {
	return []shape{
		perMinute.of("90-each-500-ms", pages(90, limit.Second/2, 3*minute)),
		perDay.of("5-each-500-ms", pages(5, limit.Second/2, 3*minute)),
		perMinute.of("pages-of-12-at-96-%", pages(12, 62_500, 3*minute)),
		slow.of("pages-of-12-at-96-%", pages(12, 1_250_000, 3*minute)),
		aligned.of("90-each-500-ms", pages(90, limit.Second/2, 3*minute)),
	}
}

// random are the others, as a seed has them.
func random(seed uint64) (all []shape) {
	for _, pct := range []float64{80, 90, 95, 100} {
		for _, of := range []shape{perMinute, slow, perDay, aligned} {
			perSecond := pct / 100 * float64(of.limit.Quantity) / float64(of.limit.Window/limit.Second)
			all = append(all, of.of(fmt.Sprintf("poisson-at-%g-%%", pct), poisson(seed, perSecond, 3*minute)))
		}
	}
	return all
}

// until lets time pass, and every node do what is due meanwhile, in its order.
func until(b *bank, nodes []*node, at limit.Micros) {
	for {
		next, first := at, (*node)(nil)
		for _, n := range nodes {
			due := max(n.next, b.clock.Now()+minSleep)
			select {
			case <-n.wake:
				due = b.clock.Now()
			default:
			}
			if due <= next {
				next, first = due, n
			}
		}
		b.clock.Advance(max(next-b.clock.Now(), 0))
		if first == nil {
			return
		}
		first.run()
	}
}

// play sends a shape's requests to nodes in turn, and returns which were denied.
func (s *shape) play(t testing.TB, name string, count int) (denied []bool, admitted []limit.Admission) {
	t.Helper()
	central := newBank()
	p := bound(t, name, s.limit)
	p.Cost = 1
	var nodes []*node
	for range count {
		n := newNode(central, Options{})
		n.live = count
		nodes = append(nodes, n)
	}
	l := nodes[0].storePolicy(p.Policy).Limit
	if s.spent > 0 {
		state := limit.State{}
		l.Advance(&state, central.Now())
		l.Spend(&state, central.Now(), s.spent)
		central.states[p.Key] = state
	}
	began := central.clock.Now()
	for i, at := range s.at {
		until(central, nodes, began+at)
		var statuses [1]decision.Status
		bounds := [1]policy.Bound{p}
		require.NoError(t, nodes[i%count].view.Take(t.Context(), bounds[:], statuses[:]))
		denied = append(denied, !statuses[0].Admits())
		if statuses[0].Admits() {
			admitted = append(admitted, limit.Admission{At: central.Now(), Cost: 1})
		}
	}
	return denied, admitted
}

// worstMinute returns by how many percent of what was offered in a minute more was denied by leases, in the worst one.
func (s *shape) worstMinute(leased, exact []bool) float64 {
	worst, extra, from := 0.0, 0, 0
	for i, at := range s.at {
		extra += one(leased[i]) - one(exact[i])
		for ; s.at[from] <= at-minute; from++ {
			extra -= one(leased[from]) - one(exact[from])
		}
		if at >= minute { // a whole one
			worst = max(worst, 100*float64(extra)/float64(i-from+1))
		}
	}
	return worst
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// outcome is what became of a shape's requests, in percent of them.
type outcome struct {
	exact, leased float64 // denied
	worst         float64 // by how much leases deny more, in the worst minute
}

// exactly plays a shape without leases. One node decides as several do, because all of them ask the store.
func (s *shape) exactly(t testing.TB) (denied []bool) {
	t.Helper()
	denied, _ = s.play(t, "exact", 1)
	return denied
}

// compare plays a shape leased and compares it with what was denied without leases. It fails the test if leases admit
// more than the limit.
func (s *shape) compare(t testing.TB, nodes int, exact []bool) (o outcome) {
	t.Helper()
	leased, admitted := s.play(t, "leased", nodes)
	for i := range leased {
		o.exact += 100 * float64(one(exact[i])) / float64(len(exact))
		o.leased += 100 * float64(one(leased[i])) / float64(len(leased))
	}
	o.worst = s.worstMinute(leased, exact)
	l := bound(t, "leased", s.limit).Policy.Limit
	assert.NoError(t, (storetest.Bound{Limit: &l}).Check(admitted), "%s at %d nodes", s, nodes)
	return o
}

// mostDenied is how many percent of what is offered in any minute leases deny more than calls for every request.
const mostDenied = 2

// In every shape of traffic below the limit, leases deny in any minute at most 2 % of what is offered more than a
// limiter that asks for every request, and never admit more than the limit. BenchmarkBelowTheLimit plays twenty seeds.
func TestSoakLeasesDenyHardlyMoreThanAskingForEveryRequest(t *testing.T) {
	t.Parallel()
	const seed = 9 // it was among the worst when a lease could be spent for two seconds
	// The short form plays 65 s of a shape, at four nodes. It leaves out random traffic at 80 and 90 % of a limit and a
	// single node, where leases deny less.
	lasts, from, fewest := limit.Micros(soak.Count(65, 180))*limit.Second, soak.Count(8, 0), soak.Count(1, 0)
	for _, s := range append(regular(), random(seed)[from:]...) {
		end, _ := slices.BinarySearch(s.at, lasts)
		s.at = s.at[:end]
		exact := s.exactly(t)
		for _, nodes := range []int{1, 4}[fewest:] {
			o := s.compare(t, nodes, exact)
			t.Logf("%s at %d nodes: %.2f %% denied, exact %.2f %%, in the worst minute %.2f %% more", &s, nodes, o.leased,
				o.exact, o.worst)
			if o.worst > mostDenied {
				t.Errorf("%s at %d nodes: %.2f %% more are denied in the worst minute, at most %d may be",
					&s, nodes, o.worst, mostDenied)
			}
		}
	}
}

// BenchmarkBelowTheLimit reports the same of all shapes, with twenty seeds for those that have one: the worst minute is
// that of all of them. It runs on virtual time, so each run has the same numbers.
func BenchmarkBelowTheLimit(b *testing.B) {
	seeds := 20
	if testing.Short() {
		seeds = 2
	}
	for i, s := range append(regular(), random(1)...) {
		for _, nodes := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("limit=%s/traffic=%s/live-nodes=%d", s.bounds, s.traffic, nodes), func(b *testing.B) {
				o := s.compare(b, nodes, s.exactly(b))
				if chance := i - len(regular()); chance >= 0 {
					for seed := range uint64(seeds - 1) {
						other := random(seed + 2)[chance]
						again := other.compare(b, nodes, other.exactly(b))
						o = outcome{o.exact + again.exact, o.leased + again.leased, max(o.worst, again.worst)}
					}
					o.exact, o.leased = o.exact/float64(seeds), o.leased/float64(seeds)
				}
				b.ReportMetric(o.exact, "exact-denied-%")
				b.ReportMetric(o.leased, "leased-denied-%")
				b.ReportMetric(o.worst, "worst-minute-%")
				b.ReportMetric(0, "ns/op")
				if o.worst > mostDenied {
					b.Errorf("%.2f %% more are denied in the worst minute, at most %d may be", o.worst, mostDenied)
				}
			})
		}
	}
}
