package lease

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// offer sends so many requests a second to each node for some seconds, and answers how many of each were admitted.
func offer(t *testing.T, nodes []*node, rates []int, seconds int, bounds []policy.Bound) []int {
	t.Helper()
	const step = 1000 // µs
	admissions, sent := make([]int, len(nodes)), make([]int, len(nodes))
	clock := nodes[0].bank.clock
	for ms := range seconds * 1000 {
		for i, n := range nodes {
			for ; sent[i] < rates[i]*(ms+1)/1000; sent[i]++ {
				if n.admits(t, bounds...) {
					admissions[i]++
				}
			}
		}
		clock.Advance(step)
		for _, n := range nodes {
			n.run()
		}
	}
	return admissions
}

func TestSoakNodesGetOfAScarceBucketWhatTheyNeedOrAnEqualPart(t *testing.T) {
	t.Parallel()
	seconds := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 3000, Window: limit.Second}
	minutes := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 180_000, Window: 60 * limit.Second, Burst: 12_000}
	for _, test := range []struct {
		name  string
		spec  limit.Spec
		rates []int
		want  []int // a second
	}{
		{"all are equal", seconds, []int{4000, 4000, 4000, 4000}, []int{750, 750, 750, 750}},
		{"the share is large", minutes, []int{4000, 4000, 4000, 4000}, []int{750, 750, 750, 750}},
		{"one is busier", minutes, []int{9000, 1500, 1500, 1500}, []int{750, 750, 750, 750}},
		{"three need little", minutes, []int{9000, 300, 300, 300}, []int{2100, 300, 300, 300}},
		{"three need nothing", minutes, []int{9000, 0, 0, 0}, []int{3000, 0, 0, 0}},
	} {
		b := newBank()
		nodes := make([]*node, len(test.rates))
		for i := range nodes {
			nodes[i] = newNode(b, Options{})
			nodes[i].live = len(nodes)
		}
		bounds := []policy.Bound{bound(t, "scarce", test.spec), perSecond(t, 1_000_000, "roomy")[0]}
		offer(t, nodes, test.rates, 3, bounds) // until the burst is spent
		lasts := soak.Count(1, 4)
		got := offer(t, nodes, test.rates, lasts, bounds)
		for i, admissions := range got {
			if want := lasts * test.want[i]; admissions < want*9/10 || admissions > want*11/10+1 {
				t.Errorf("%s: node %d of those that are offered %v a second was admitted %d, want about %d",
					test.name, i, test.rates, admissions, want)
			}
		}
	}
}

func TestSoakWhatRequestsNeedThatCostMoreThanALeaseIsNotLeased(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		spec  limit.Spec // of 1000 tokens a second
		cost  int64
		nodes int
	}{
		{limit.Spec{Quantity: 1000, Window: limit.Second, Burst: 10_000}, 250, 1}, // a lease has 200 at most
		{limit.Spec{Quantity: 1000, Window: limit.Second, Burst: 10_000}, 60, 4},  // and of four nodes 50
		{limit.Spec{Quantity: 1000, Window: limit.Second, Burst: 5000}, 120, 1},
		{limit.Spec{Quantity: 60_000, Window: 60 * limit.Second}, 60, 4}, // 300, but one comes in 80 ms
	} {
		test.spec.Algorithm = limit.TokenBucket
		b := bound(t, "costly", test.spec)
		bank, nodes, rates := newBank(), make([]*node, test.nodes), make([]int, test.nodes)
		for i := range nodes {
			nodes[i] = newNode(bank, Options{})
			nodes[i].live = test.nodes
			rates[i] = int(3000 / test.cost / int64(test.nodes))
		}
		nodes[0].admits(t, withCost(b, b.Policy.Limit.Spec().Burst*95/100))
		b.Cost = test.cost
		offer(t, nodes, rates, 6, []policy.Bound{b}) // until the burst is spent
		seconds := soak.Count(8, 20)
		sum := int64(0)
		for _, admissions := range offer(t, nodes, rates, seconds, []policy.Bound{b}) {
			sum += int64(admissions) * test.cost
		}
		if sum < int64(seconds)*1000*98/100 {
			t.Errorf("%s, %d nodes, requests that cost %d: %d tokens a second were admitted",
				b.Policy.Describe(), test.nodes, test.cost, sum/int64(seconds))
		}
	}
}
