package outage

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

var tenants = []string{"acme", "globex", "initech"}

// witness is a node, and what was seen of it from outside.
type witness struct {
	*world
	fewest  int // nodes that it ever shared among
	local   map[policy.Key][]limit.Admission
	tallies map[string]Tally // without what reconciling adds
}

// timeline is some nodes of one central store, whose servers come and go.
type timeline struct {
	central  *servers
	nodes    []*witness
	bounds   []policy.Bound
	admitted map[policy.Key][]limit.Admission // by the central store
	spent    map[string]int64                 // by policy: what the central store was charged by requests
}

func drawTimeline(t *rapid.T) *timeline {
	line := &timeline{
		central: newServers(storetest.NewClock()), admitted: map[policy.Key][]limit.Admission{}, spent: map[string]int64{},
	}
	for range rapid.IntRange(1, 2).Draw(t, "nodes") {
		line.nodes = append(line.nodes, &witness{
			world:  nodeOf(line.central, Options{}, StoreOptions{SharePct: rapid.IntRange(1, 100).Draw(t, "share")}),
			fewest: 1, local: map[policy.Key][]limit.Admission{}, tallies: map[string]Tally{},
		})
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "buckets") {
		p := &policy.Policy{
			Name: fmt.Sprint("policy-", i), Limit: *storetest.Limits().Draw(t, "limit"), Cost: -1,
			FailMode: rapid.SampledFrom([]policy.FailMode{
				policy.FailLocal, policy.FailLocal, policy.FailOpen, policy.FailClosed,
			}).Draw(t, "fail mode"),
			Mode: rapid.SampledFrom([]policy.Mode{
				policy.Enforce, policy.Enforce, policy.Enforce, policy.Shadow,
			}).Draw(t, "mode"),
		}
		line.bounds = append(line.bounds, policy.Bound{Policy: p, Key: policy.Key{
			Policy: p.Name, Group: policy.ByTenant, GroupID: rapid.SampledFrom(tenants).Draw(t, "tenant"),
		}})
	}
	return line
}

// step is a request, or one of the things that happen around requests.
func (l *timeline) step(t *rapid.T) {
	node := rapid.SampledFrom(l.nodes).Draw(t, "node")
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
		l.central.set(rapid.SampledFrom(tenants).Draw(t, "server"),
			rapid.SampledFrom([]condition{up, up, unreachable, unreachable, silent, deaf, foreign}).Draw(t, "becomes"))
	case 2:
		l.central.clock.Advance(max(0, storetest.Gap(t, &rapid.SampledFrom(l.bounds).Draw(t, "limit").Policy.Limit)))
	case 3:
		l.central.live = rapid.IntRange(1, 5).Draw(t, "live nodes")
		node.store.beatOnce(context.Background())
	case 4:
		node.store.reconcile(context.Background())
	default:
		l.request(t, node)
	}
}

func (l *timeline) request(t *rapid.T, node *witness) {
	bounds := make([]policy.Bound, 0, len(l.bounds))
	for _, b := range l.bounds {
		if b.Cost = storetest.Cost(t, &b.Policy.Limit); rapid.IntRange(0, 2).Draw(t, "applies") > 0 {
			bounds = append(bounds, b)
		}
	}
	statuses := make([]decision.Status, len(bounds))
	peeked := storetest.Peek(t, node.view, bounds)
	require.NoError(t, node.view.Take(context.Background(), bounds, statuses), "take %d bounds", len(bounds))
	peeked.Check(t, statuses)
	node.fewest = min(node.fewest, node.view.live())
	admitted, byShared := true, false
	for i := range bounds {
		denies := decision.Denies(&bounds[i], &statuses[i])
		admitted = admitted && !denies
		byShared = byShared || (denies && statuses[i].Source == decision.Redis)
	}
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		if status.Charged && (!admitted || !status.Admits()) {
			t.Fatalf("bound %d of a request that is denied was charged: %+v", i, status)
		}
		require.Equal(t, failureOf[l.central.is[b.Key.GroupID]], status.Failure, "bound %d failed by", i)
		if b.Enforced() && status.Failure != decision.NoFailure && !byShared {
			node.tally(b, status, admitted)
		}
		switch at := (limit.Admission{At: status.Now, Cost: b.Cost}); {
		case !status.Charged:
		case status.Source == decision.Local:
			node.local[b.Key] = append(node.local[b.Key], at)
		case status.Source == decision.Redis:
			l.spent[b.Policy.Name] += b.Cost
			l.admitted[b.Key] = append(l.admitted[b.Key], at)
		}
	}
}

// tally counts a bound that the central store did not answer, as it looks from outside.
func (w *witness) tally(b *policy.Bound, status *decision.Status, admitted bool) {
	sum := w.tallies[b.Policy.Name]
	switch {
	case admitted && status.Failure == decision.TimedOut:
		sum.Unknown += b.Cost
	case admitted && status.Failure == decision.WrongType:
		sum.Unchargeable += b.Cost
	case admitted:
		sum.Unverified += b.Cost
	case !decision.Denies(b, status):
	case b.Policy.FailMode == policy.FailLocal:
		sum.DeniedLocally++
	default:
		sum.DeniedClosed++
	}
	w.tallies[b.Policy.Name] = sum
}

// check checks what must hold at any time.
func (l *timeline) check(t *rapid.T) {
	charged := map[string]int64{}
	for n, node := range l.nodes {
		stats := node.store.Stats()
		for name, got := range stats.Policies {
			charged[name] += got.Charged
			want := node.tallies[name]
			stats.Pending -= got.Unverified - got.Charged - got.WrittenOff
			if want.Charged, want.WrittenOff = got.Charged, got.WrittenOff; got != want {
				t.Fatalf("node %d, %s: %+v, want %+v", n, name, got, want)
			}
		}
		require.Zero(t, stats.Pending, "node %d: more tokens are pending than the tallies say", n)
	}
	for _, b := range l.bounds {
		if name := b.Policy.Name; b.Enforced() && l.central.spent[name] != l.spent[name]+charged[name] {
			t.Fatalf("%s: the shared store was charged %d, want %d by requests and %d afterwards",
				name, l.central.spent[name], l.spent[name], charged[name])
		}
	}
}

// bound checks what was admitted: each bucket saw at most its limit's bound from the central store and, on each node,
// at most the bound of the node's largest share. So all of it is at most the sum of these.
func (l *timeline) bound(t *rapid.T) {
	for _, b := range l.bounds {
		if err := (storetest.Bound{Limit: &b.Policy.Limit}).Check(l.admitted[b.Key]); err != nil {
			t.Fatalf("%s, by the shared store: %v", b.Policy.Name, err)
		}
		for n, node := range l.nodes {
			share, err := localLimit(b.Policy.Limit.Spec(), node.view.shares.pct, int64(node.fewest))
			require.NoError(t, err)
			if err := (storetest.Bound{Limit: &share}).Check(node.local[b.Key]); err != nil {
				t.Fatalf("%s, by node %d alone: %v", b.Policy.Name, n, err)
			}
		}
	}
}

func TestWhateverHappensBoundsHoldAndTotalsAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		line := drawTimeline(rt)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			line.step(rt)
			line.check(rt)
		}
		line.bound(rt)
		for _, tenant := range tenants {
			line.central.set(tenant, up)
		}
		for n, node := range line.nodes {
			node.store.reconcile(context.Background())
			if stats := node.store.Stats(); stats.Pending != 0 || stats.Buckets != 0 {
				rt.Fatalf("node %d: %d tokens of %d buckets are pending after all servers are back",
					n, stats.Pending, stats.Buckets)
			}
		}
		line.check(rt)
	})
}
