package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
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

// poisson are requests that know nothing of each other, so many a second on average.
func poisson(perSecond float64, lasts limit.Micros) (at arrivals) {
	random := rand.New(rand.NewPCG(1, 2))
	for now := 0.0; now < float64(lasts); now += random.ExpFloat64() / perSecond * float64(limit.Second) {
		at = append(at, limit.Micros(now))
	}
	return at
}

// shape is traffic below or at a limit.
type shape struct {
	name  string
	limit limit.Spec
	spent int64 // of the bucket, when the traffic begins
	at    arrivals
}

func shapes() []shape {
	perMinute := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 12_000, Window: minute}
	perDay := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1_000_000, Window: 1440 * minute}
	slow := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 600, Window: minute}
	window := limit.Spec{Algorithm: limit.FixedWindow, Quantity: 12_000, Window: minute}
	all := []shape{
		{"pulses of 90 every 500 ms of 12,000 a minute", perMinute, 11_700, pages(90, limit.Second/2, 3*minute)},
		{"pulses of 5 every 500 ms of a million a day", perDay, 999_970, pages(5, limit.Second/2, 3*minute)},
		{"pages of 12 at 0.96 of 12,000 a minute", perMinute, 11_700, pages(12, 62_500, 3*minute)},
		{"pages of 12 at 0.96 of 600 a minute", slow, 580, pages(12, 1_250_000, 3*minute)},
		{"pulses of 90 every 500 ms of a window of 12,000", window, 0, pages(90, limit.Second/2, 3*minute)},
	}
	for _, pct := range []float64{80, 90, 95, 100} {
		all = append(all,
			shape{fmt.Sprintf("poisson at %g %% of 12,000 a minute", pct), perMinute, 11_700, poisson(2*pct, 3*minute)},
			shape{fmt.Sprintf("poisson at %g %% of 600 a minute", pct), slow, 580, poisson(pct/10, 3*minute)},
			shape{fmt.Sprintf("poisson at %g %% of a window of 12,000", pct), window, 0, poisson(2*pct, 3*minute)},
		)
	}
	return all
}

// runner is a node whose background work is done when it is due.
type runner struct {
	*node
	sweeps limit.Micros
}

// until lets time pass, and every node do what is due meanwhile, in its order.
func until(b *bank, nodes []*runner, at limit.Micros) {
	for {
		next, first := at, (*runner)(nil)
		for _, n := range nodes {
			due := max(n.next(n.sweeps), b.clock.Now()+soonest)
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
		first.sweeps = first.step(context.Background(), first.sweeps)
	}
}

// play sends a shape's requests to nodes in turn, and returns which were denied.
func (s *shape) play(t *testing.T, name string, count int) (denied []bool, admitted []limit.Admission) {
	t.Helper()
	shared := newBank()
	p := bound(t, name, s.limit)
	p.Cost = 1
	var nodes []*runner
	for range count {
		n := newNode(shared, Options{})
		n.live = count
		nodes = append(nodes, &runner{n, shared.clock.Now()})
	}
	l := nodes[0].view.Asked(p.Policy).Limit
	if s.spent > 0 {
		state := limit.State{}
		l.Advance(&state, shared.Now())
		l.Spend(&state, shared.Now(), s.spent)
		shared.states[p.Key] = state
	}
	began := shared.clock.Now()
	for i, at := range s.at {
		until(shared, nodes, began+at)
		var statuses [1]decision.Status
		bounds := [1]policy.Bound{p}
		if err := nodes[i%count].view.Take(t.Context(), bounds[:], statuses[:]); err != nil {
			t.Fatal(err)
		}
		denied = append(denied, !statuses[0].Admits())
		if statuses[0].Admits() {
			admitted = append(admitted, limit.Admission{At: shared.Now(), Cost: 1})
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

// In every shape of traffic below the limit, leases deny in any minute at most 2 % of what is offered more than a
// limiter that asks for every request, and never admit more than the limit.
func TestLeasesDenyHardlyMoreThanAskingForEveryRequest(t *testing.T) {
	for _, s := range shapes() {
		for _, nodes := range []int{1, 2, 4} {
			exact, _ := s.play(t, "exact", nodes)
			leased, admitted := s.play(t, "leased", nodes)
			worst, all := s.worstMinute(leased, exact), [2]int{}
			for i := range leased {
				all[0] += one(exact[i])
				all[1] += one(leased[i])
			}
			t.Logf("%s at %d nodes: %.2f %% denied, exact %.2f %%, in the worst minute %.2f %% more",
				s.name, nodes, 100*float64(all[1])/float64(len(leased)), 100*float64(all[0])/float64(len(leased)), worst)
			if worst > 2 {
				t.Errorf("%s at %d nodes: %.2f %% more are denied in the worst minute, at most 2 may be", s.name, nodes, worst)
			}
			l := bound(t, "leased", s.limit).Policy.Limit
			if err := (storetest.Bound{Limit: &l}).Check(admitted); err != nil {
				t.Errorf("%s at %d nodes: %v", s.name, nodes, err)
			}
		}
	}
}
