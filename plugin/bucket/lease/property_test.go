package lease

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

const (
	lifetime = 5 * limit.Second // a node counts for so long after it was last heard of
	trust    = 2 * limit.Second // a node believes a count for so long
)

// member is a node among others, as it is seen from outside.
type member struct {
	*node
	called      map[policy.Key]limit.Micros // the bank's clock when the last request called it for a bucket
	since, beat limit.Micros                // when its heartbeats began without a gap, and the last
	known       int                         // nodes that it counted then
	down        bool
}

// behind is the bank behind a member, which records when a request called it.
type behind struct {
	*bank
	member *member
}

// Take implements store.Store.
func (b behind) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := b.bank.Take(ctx, bounds, statuses)
	for i := range bounds {
		b.member.called[bounds[i].Key] = statuses[i].Now
	}
	return err
}

// fleet is some nodes of one bank, and what all of them have admitted.
type fleet struct {
	bank     *bank
	members  []*member
	bounds   []policy.Bound
	limits   map[policy.Key]*limit.Limit
	admitted map[policy.Key][]limit.Admission
	sharePct int
	unpeeked bool // requests are not compared with peeks
}

// leasable generates limits that a lease matters for, and now and then one that is never leased.
func leasable(t *rapid.T) *limit.Limit {
	spec := limit.Spec{
		Algorithm: rapid.SampledFrom([]limit.Algorithm{
			limit.TokenBucket, limit.TokenBucket, limit.TokenBucket, limit.FixedWindow, limit.FixedWindow, limit.SlidingWindow,
		}).Draw(t, "algorithm"),
		Quantity: rapid.Int64Range(200, 3000).Draw(t, "quantity"),
		Window:   limit.Micros(rapid.SampledFrom([]int{1, 1, 2, 7, 60, 600, 86_400}).Draw(t, "window")) * limit.Second,
	}
	if spec.Algorithm == limit.TokenBucket && rapid.Bool().Draw(t, "with burst") {
		spec.Burst = rapid.Int64Range(200, 30_000).Draw(t, "burst")
	}
	if rapid.IntRange(0, 3).Draw(t, "thresholds") == 0 {
		spec.SoftPct, spec.HardPct = 80, rapid.Int64Range(100, 130).Draw(t, "hard")
	}
	l, err := limit.New(spec)
	require.NoError(t, err, "compile %+v", spec)
	return &l
}

func drawFleet(t *rapid.T) *fleet {
	f := &fleet{
		bank: newBank(), limits: map[policy.Key]*limit.Limit{}, admitted: map[policy.Key][]limit.Admission{},
		sharePct: rapid.IntRange(2, MaxSharePct).Draw(t, "share"),
	}
	f.bank.ahead = limit.Micros(rapid.Int64Range(0, 1e7).Draw(t, "ahead"))
	f.bank.fast = limit.Micros(rapid.Int64Range(0, 1).Draw(t, "fast"))
	f.bank.there = limit.Micros(rapid.SampledFrom([]int{0, 0, 200, 20_000}).Draw(t, "there"))
	f.bank.back = limit.Micros(rapid.SampledFrom([]int{0, 0, 200, 20_000}).Draw(t, "back"))
	for range rapid.IntRange(1, 4).Draw(t, "nodes") {
		f.members = append(f.members, f.join())
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "buckets") {
		p := &policy.Policy{
			Name: fmt.Sprint("policy-", i), Limit: *leasable(t), Cost: -1, FailMode: policy.FailClosed,
			Mode: rapid.SampledFrom([]policy.Mode{
				policy.Enforce, policy.Enforce, policy.Enforce, policy.Shadow,
			}).Draw(t, "mode"),
		}
		b := policy.Bound{Policy: p, Key: policy.Key{Policy: p.Name, Group: policy.ByTenant, GroupID: "acme"}}
		f.bounds, f.limits[b.Key] = append(f.bounds, b), &p.Limit
	}
	for range 6 { // so that some are settled
		f.beats()
		f.bank.clock.Advance(limit.Second)
	}
	f.beats()
	return f
}

// join is a new node, that is not counted yet.
func (f *fleet) join() *member {
	m := &member{called: map[policy.Key]limit.Micros{}}
	m.node = newNode(f.bank, Options{SharePct: f.sharePct, Nodes: func(string) int {
		now := f.bank.clock.Now()
		if now-m.beat >= trust || m.beat-m.since < lifetime {
			return 0
		}
		return m.known
	}})
	m.view = m.Store(behind{m.bank, m})
	return m
}

// beats has every node that is up report that it lives.
func (f *fleet) beats() {
	for _, m := range f.members {
		f.heartbeat(m)
	}
}

func (f *fleet) heartbeat(m *member) {
	now := f.bank.clock.Now()
	if m.down {
		return
	}
	if now-m.beat >= lifetime {
		m.since = now
	}
	m.beat, m.known = now, 0
	for _, other := range f.members {
		if now-other.beat < lifetime {
			m.known++
		}
	}
}

// step is a burst of requests, or one of the things that happen around requests.
func (f *fleet) step(t *rapid.T) {
	i := rapid.IntRange(0, len(f.members)-1).Draw(t, "node")
	m := f.members[i]
	switch rapid.IntRange(0, 21).Draw(t, "step") {
	case 0:
		f.bank.set(rapid.SampledFrom([]condition{up, up, up, up, unreachable, deaf}).Draw(t, "bank becomes"))
	case 1: // the others believe that it lives until its time is up; one comes instead
		crashed := *m
		crashed.down = true
		if f.members = append(f.members, &crashed); len(f.members) > 8 {
			f.members = f.members[:8:8]
		}
		f.members[i] = f.join()
	case 2:
		m.down = !m.down // its heartbeats do not arrive
	case 3:
		f.bounds[0].Policy = with(f.bounds[0], func(*policy.Policy) {}).Policy // another version with the same limit
	case 4:
		f.bank.clock.Advance(limit.Micros(rapid.Int64Range(0, 8e6).Draw(t, "silence")))
	case 5, 6, 7:
		f.bank.clock.Advance(limit.Micros(rapid.Int64Range(0, 300_000).Draw(t, "pause")))
	case 8, 9, 10:
		m.background()
	case 11:
		f.beats()
	case 12:
		for range rapid.IntRange(1, 7).Draw(t, "seconds") {
			f.bank.clock.Advance(limit.Second)
			f.beats()
		}
	case 13:
		f.bank.late = !f.bank.late
	case 14:
		f.bank.deliver()
	case 15, 16:
		f.squeeze(t, rapid.SampledFrom(f.bounds).Draw(t, "bucket"))
	case 17:
		f.drain(t, rapid.SampledFrom(f.bounds).Draw(t, "bucket"))
	default:
		f.burst(t, m)
	}
}

// burst is several equal requests at one node, at times with others in between.
func (f *fleet) burst(t *rapid.T, m *member) {
	var bounds []policy.Bound
	for _, b := range f.bounds {
		if rapid.IntRange(0, 3).Draw(t, "applies") > 0 {
			b.Cost = rapid.SampledFrom([]int64{0, 1, 1, 1, 3, 10, 60}).Draw(t, "cost")
			bounds = append(bounds, b)
		}
	}
	for range rapid.SampledFrom([]int{1, 4, 20, 100}).Draw(t, "requests") {
		f.request(t, m, bounds)
	}
	if rapid.Bool().Draw(t, "then renews") {
		m.background()
	}
	switch other := rapid.SampledFrom(f.members).Draw(t, "other"); rapid.IntRange(0, 2).Draw(t, "meanwhile") {
	case 0:
		f.bank.during = func() { other.background(); f.check(t) }
	case 1:
		f.bank.during = func() { f.request(t, other, bounds) }
	}
}

// squeeze lets the nodes lease what they may of one bucket, then the bucket recover, and then drains both.
func (f *fleet) squeeze(t *rapid.T, b policy.Bound) {
	f.bank.set(up)
	b.Cost = 1
	for _, m := range f.members {
		for range rapid.IntRange(0, 40).Draw(t, "requests") {
			f.request(t, m, []policy.Bound{b})
		}
		m.renewDue(context.Background())
	}
	f.check(t)
	pause := limit.Micros(rapid.Int64Range(0, 2_100_000).Draw(t, "pause"))
	switch rapid.IntRange(0, 2).Draw(t, "recovery") {
	case 0:
		f.bank.clock.Advance(pause)
	case 1:
		f.bank.clock.Advance(limit.Second - f.bank.Now()%limit.Second)
	default:
		f.bank.clock.Advance(limit.Second)
		f.beats()
		f.bank.clock.Advance(pause / 3)
	}
	f.drain(t, b)
}

// drain takes all that any node can get of one bucket at one instant: the worst that clients can do.
func (f *fleet) drain(t rapid.TB, b policy.Bound) {
	there, back := f.bank.there, f.bank.back
	f.bank.there, f.bank.back = 0, 0
	defer func() { f.bank.there, f.bank.back = there, back }()
	for b.Cost = 243; b.Cost > 0; b.Cost /= 3 {
		for _, m := range f.members {
			for before := -1; before < len(f.admitted[b.Key]); {
				before = len(f.admitted[b.Key])
				f.request(t, m, []policy.Bound{b})
			}
		}
	}
}

func (f *fleet) request(t rapid.TB, m *member, bounds []policy.Bound) {
	t.Helper()
	statuses := make([]decision.Status, len(bounds))
	clear(m.called)
	now := f.bank.Now()
	var peeked storetest.Peeked
	// A peek is answered at the instant of the take.
	if !f.unpeeked && f.bank.there+f.bank.back == 0 && f.bank.during == nil {
		before := m.Stats()
		if peeked = storetest.Peek(t, m.view, bounds); m.Stats() != before {
			t.Fatalf("a peek changes %+v to %+v", before, m.Stats())
		}
	}
	if err := m.view.Take(context.Background(), bounds, statuses); err != nil {
		t.Fatalf("take %d bounds: %v", len(bounds), err)
	}
	peeked.Check(t, statuses)
	passed := admitted(bounds, statuses)
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		if status.Charged && (!passed || !status.Admits()) {
			t.Fatalf("bound %d of a request that is denied was charged: %+v", i, status)
		}
		if !status.Charged {
			continue
		}
		at, ok := m.called[b.Key]
		if !ok {
			at = now // from a lease, when the request came
		}
		f.admitted[b.Key] = append(f.admitted[b.Key], limit.Admission{At: at, Cost: b.Cost})
	}
}

// check checks what must hold at any time.
func (f *fleet) check(t *rapid.T) {
	out := map[policy.Key]int64{}
	for n, m := range f.members {
		stats := m.Stats()
		sums, requested, leaving := stats.Tokens, int64(0), int64(0)
		for i := range m.shards {
			for _, e := range m.shards[i].entries {
				e.holdings.expire(m.now())
				out[e.key] += e.holdings.outstanding()
				requested += e.holdings.requested
				leaving += e.holdings.returning
			}
		}
		if held := sums.Granted - sums.Spent - sums.Returned - sums.Expired; held != stats.Out-requested+leaving {
			t.Fatalf("node %d: %+v leave %d out, and it says %d", n, sums, held, stats.Out-requested)
		}
	}
	for key, tokens := range out {
		most := percentOf(f.limits[key].Spec().Burst, int64(f.sharePct))
		require.True(t, tokens <= most, "%d tokens of %s are out, at most %d may", tokens, key.Policy, most)
	}
}

func TestNoBucketAdmitsTooMuchWhateverHappensToNodesAndStore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := drawFleet(rt)
		for range rapid.IntRange(10, 100).Draw(rt, "steps") {
			f.step(rt)
			f.check(rt)
		}
		for key, admissions := range f.admitted {
			require.NoError(rt, (storetest.Bound{Limit: f.limits[key]}).Check(admissions), "%s", key.Policy)
		}
	})
}
