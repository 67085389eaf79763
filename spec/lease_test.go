package spec

import (
	"net/http"
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
	for len(crowd.members) > 0 {
		crowd.leave()
	}
	for _, w := range crowd.flows {
		samples := w.traffic.stop()
		if denied := counted(samples, http.StatusTooManyRequests); denied < w.bound.limit {
			t.Errorf("%s: %d of %d requests were denied: that is no load", w.bound.algorithm, denied, len(samples))
		}
		w.bound.check(t, samples, 10)
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
