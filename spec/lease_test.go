package spec

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

// churn is the sequence of joins (+) and leaves (-) of the oldest member. A node leases five seconds, or seven steps,
// after it has joined. It leaves only then, so nodes join and leave while others lease.
const (
	churn     = "++.+.+.+..+.+--.-+---"
	churnStep = 700 * time.Millisecond
)

// TestSoakNoIntervalExceedsTheLimitWhileLeasingNodesJoinAndLeave runs with the largest lease share.
func TestSoakNoIntervalExceedsTheLimitWhileLeasingNodesJoinAndLeave(t *testing.T) {
	t.Parallel()
	awaitTurn(t)
	f := onSocket(t, redistest.Single(t))
	bounds := []bound{
		{algorithm: "token_bucket", limit: 100, window: time.Second, burst: 2000},
		{algorithm: "fixed_window", limit: 1000, window: 10 * time.Second},
	}
	var crowd crowd
	for _, b := range bounds {
		crowd.flows = append(crowd.flows, &flow{bound: b, traffic: f.offer(by(b.algorithm), steady(3*int(b.rate())))})
	}
	crowd.join(f)
	steps := max(len(churn), int(soak.For(t, 0)/churnStep))
	for step := range steps {
		switch n := len(crowd.members); churn[step%len(churn)] {
		case '+':
			if n < 8 {
				crowd.join(f)
			}
		case '-':
			if n > 1 {
				await.That(t, "the oldest node leases", func() bool { return crowd.members[0].drawn() > 0 })
				crowd.leave()
			}
		}
		elapse(t.Context(), churnStep)
	}
	for _, w := range crowd.flows {
		await.That(t, "as many denials as the limit", func() bool {
			return w.traffic.count(http.StatusTooManyRequests) >= w.bound.limit
		})
	}
	for len(crowd.members) > 0 {
		crowd.leave()
	}
	for _, w := range crowd.flows {
		w.bound.check(t, w.traffic.stop(), 10)
	}
	t.Logf("%d of %d limits were answered from leases", crowd.drawn, crowd.queried+crowd.drawn)
	if crowd.drawn < crowd.queried/10 {
		t.Errorf("%d limits were answered from leases, and %d by Redis: want more from leases", crowd.drawn, crowd.queried)
	}
	if crowd.left < 3 {
		t.Errorf("%d nodes with leases left, want at least 3", crowd.left)
	}
}

// crowd is a set of members with traffic from their joins to their leaves.
type crowd struct {
	members []*member
	flows   []*flow
	parts   map[*member][]*part

	drawn, queried int // limits that members who left had answered from leases, and from Redis
	left           int // members who left and had answered from leases
}

// flow is the traffic on one limit.
type flow struct {
	bound   bound
	traffic *traffic
}

// join starts a member and its part of all traffic.
func (c *crowd) join(f *fleet) {
	m := f.join("-lease-share", "5")
	c.members = append(c.members, m)
	if c.parts == nil {
		c.parts = map[*member][]*part{}
	}
	for _, w := range c.flows {
		id := m.open("", w.bound.config())
		c.parts[m] = append(c.parts[m], w.traffic.to(m, id, 4))
	}
}

// leave ends the oldest member under its load.
func (c *crowd) leave() {
	m := c.members[0]
	c.members = c.members[1:]
	now := m.numbers()
	drawn := int(now.sum("rate_limiter_answered_limits_total", `by="lease"`))
	if drawn > 0 {
		c.left++
	}
	c.drawn += drawn
	c.queried += int(now.sum("rate_limiter_answered_limits_total", `by="redis"`))
	for _, part := range c.parts[m] {
		part.over.Store(true)
	}
	m.terminate()
}

func TestSoakFourProcessesOnOneRedisNeverExceedAnyAlgorithmsBound(t *testing.T) {
	t.Parallel()
	f := onSocket(t, redistest.Single(t))
	members := f.joinAll(4)
	awaitTurn(t)
	const limit = 300 // a second: a third of the load
	for _, b := range []bound{
		{algorithm: "token_bucket", burst: limit},
		{algorithm: "leaky_bucket"},
		{algorithm: "fixed_window"},
		{algorithm: "sliding_window"},
		{algorithm: "sliding_log"},
	} {
		b.limit, b.window = limit, time.Second
		tr := f.offer(by(b.algorithm), steady(3*limit))
		for _, m := range members {
			tr.to(m, m.open(`"accuracy":"exact",`, b.config()), 8)
		}
		tr.awaitDenials(t, 100)
		// Most of the limit must be used. A bucket without burst admits one request at a time, and on a busy machine requests
		// come together.
		mostUnder := 60.0
		if b.algorithm == "leaky_bucket" {
			mostUnder = 90
		}
		b.check(t, tr.lastFor(soak.For(t, time.Second)), mostUnder)
	}
}

func TestAKilledNodeLosesOnlyItsLeases(t *testing.T) {
	t.Parallel()
	const connections = 4 // to each node; each may have one admission without an answer
	f := onSocket(t, redistest.Single(t))
	nodes := f.joinAll(2)
	f.awaitLeases(nodes...)
	awaitTurn(t)
	quota := yearly(4000)
	tr := f.offer(by("acme"), steady(1000))
	dying := tr.to(nodes[0], nodes[0].open("", quota.config()), connections)
	tr.to(nodes[1], nodes[1].open("", quota.config()), connections)
	nodes[0].awaitSpent(t, 300)
	dying.over.Store(true)
	nodes[0].kill()
	tr.awaitDenials(t, 100)
	n := counted(tr.stop(), http.StatusOK)
	t.Logf("%d of %d were admitted", n, quota.limit)
	if n > quota.limit || n < quota.limit-quota.limit*2/100-connections {
		t.Errorf("%d of %d were admitted; a killed node takes at most 2 %% with it, and %d requests", n, quota.limit, connections)
	}
}

// admission is one admitted request: it was decided at some instant from Sent to Answered.
type admission struct {
	Sent, Answered time.Duration
	Tokens         float64 // that it spent
	Above          float64 // tokens that an interval that ends with it may have above the limit
}

// bound is a limit whose promise is compared with the admissions. An admission was decided at some instant from when
// it was sent to when it was answered, so it counts in an interval only if all of it lies there.
type bound struct {
	algorithm string
	limit     int // per window
	window    time.Duration
	burst     int    // of a token bucket
	others    string // settings of the limit, as JSON, each with a comma before
}

// yearly returns a quota that does not refill while a spec runs.
func yearly(quota int) bound {
	return bound{algorithm: "fixed_window", limit: quota, window: 31_536_000 * time.Second}
}

// config returns the limit as JSON of a plugin config.
func (b bound) config() string {
	others := b.others
	if b.burst > 0 {
		others += fmt.Sprintf(`,"burst":%d`, b.burst)
	}
	return fmt.Sprintf(`{"name":"l","scope":"tenant","algorithm":%q,"limit":%d,"window_size":%d%s}`, b.algorithm, b.limit,
		int(b.window.Seconds()), others)
}

func (b bound) rate() float64 { return float64(b.limit) / b.window.Seconds() }

// admitted returns the admitted requests in the order of their answers.
func admitted(samples []sample) []admission {
	var all []admission
	for i := range samples {
		if one := &samples[i]; one.Status == http.StatusOK {
			all = append(all, admission{Sent: one.Sent, Answered: one.Answered, Tokens: 1})
		}
	}
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.Answered, b.Answered) })
	return all
}

// over returns the number of admissions above the limit, in the worst interval or window.
func (b bound) over(samples []sample) float64 {
	all, most := admitted(samples), 0
	switch b.algorithm {
	case "token_bucket", "leaky_bucket":
		return excess(all, b.rate(), float64(max(b.burst, 1)))
	case "sliding_log":
		most = b.longest(all)
	default:
		for _, n := range b.windows(all) {
			most = max(most, n)
		}
	}
	return float64(max(most-b.limit, 0))
}

// longest returns the most admissions in an interval of a window that begins when one of them was sent.
func (b bound) longest(all []admission) (most int) {
	for _, first := range all {
		n := 0
		for _, a := range all[answeredFrom(all, first.Sent):] {
			if a.Answered >= first.Sent+b.window {
				break
			}
			if a.Sent >= first.Sent {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// windows returns the number of admissions in each window, by its start.
func (b bound) windows(all []admission) map[time.Duration]int {
	count := map[time.Duration]int{}
	for _, a := range all {
		if at := a.Sent.Truncate(b.window); at == a.Answered.Truncate(b.window) {
			count[at]++
		}
	}
	return count
}

// ideal returns the number of these requests that an ideal limiter admits: a bucket, or fixed windows.
func (b bound) ideal(samples []sample) int {
	sent := make([]time.Duration, len(samples))
	for i := range samples {
		sent[i] = samples[i].Sent
	}
	slices.Sort(sent)
	n, count := 0, map[time.Duration]int{}
	burst := float64(max(b.burst, 1))
	tokens, before := burst, time.Duration(0)
	for _, at := range sent {
		if b.algorithm == "fixed_window" {
			if w := at.Truncate(b.window); count[w] < b.limit {
				count[w]++
				n++
			}
			continue
		}
		tokens = min(tokens+b.rate()*(at-before).Seconds(), burst)
		if before = at; tokens >= 1 {
			tokens--
			n++
		}
	}
	return n
}

// under returns the percentage by which the admissions are fewer than those of the ideal limiter.
func (b bound) under(samples []sample) float64 {
	ideal := b.ideal(samples)
	return 100 * float64(ideal-counted(samples, http.StatusOK)) / float64(max(ideal, 1))
}

// check fails the test if an interval exceeds the limit, or the admissions are fewer than the ideal ones by more than
// mostUnder percent.
func (b bound) check(t testing.TB, samples []sample, mostUnder float64) {
	t.Helper()
	over, under := b.over(samples), b.under(samples)
	t.Logf("%s: %d requests, %d admitted: %.2g over, %.2f %% under",
		b.algorithm, len(samples), counted(samples, http.StatusOK), over, under)
	if over > 1e-6 {
		t.Errorf("%s: %.1f requests were admitted above %d per %v, in the worst interval",
			b.algorithm, over, b.limit, b.window)
	}
	if under > mostUnder {
		t.Errorf("%s: %.2f %% fewer requests were admitted than the limit allows, at most %g %% may be",
			b.algorithm, under, mostUnder)
	}
}
