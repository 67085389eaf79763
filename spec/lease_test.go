package spec

import (
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

// churn is who joins (+) and who leaves (-), the one that has been there for longest, step by step. A node leases from
// five seconds after it has joined, which is seven steps; so nodes leave, and join, among some that lease.
const (
	churn     = "++.+.+.+..+.+--.-+---"
	churnStep = 700 * time.Millisecond
)

// TestSoakNoIntervalExceedsTheLimitWhileLeasingNodesJoinAndLeave runs with as much out on lease as may be set.
func TestSoakNoIntervalExceedsTheLimitWhileLeasingNodesJoinAndLeave(t *testing.T) {
	f := onSocket(t, redistest.Single(t))
	bounds := []bound{
		{algorithm: "token_bucket", limit: 500, window: time.Second, burst: 2000},
		{algorithm: "fixed_window", limit: 1000, window: 2 * time.Second},
	}
	var crowd crowd
	for _, b := range bounds {
		crowd.flows = append(crowd.flows, &flow{bound: b, traffic: f.offer(by(b.algorithm), steady(3*int(b.rate())))})
	}
	lasts := soak.For(t, time.Duration(len(churn))*churnStep)
	begun := time.Now()
	crowd.join(f)
	for step := 0; time.Since(begun) < lasts; step++ {
		switch n := len(crowd.members); churn[step%len(churn)] {
		case '+':
			if n < 8 {
				crowd.join(f)
			}
		case '-':
			if n > 1 {
				crowd.leave()
			}
		}
		elapse(t.Context(), time.Until(begun.Add(time.Duration(step+1)*churnStep)))
	}
	for len(crowd.members) > 0 {
		crowd.leave()
	}
	for _, w := range crowd.flows {
		samples := w.traffic.stop()
		if least := int(2 * w.bound.rate() * lasts.Seconds()); len(samples) < least {
			t.Errorf("%s: %d requests in %v are no load: the machine is too slow", w.bound.algorithm, len(samples), lasts)
		}
		w.bound.check(t, samples, 10)
	}
	t.Logf("%d of %d limits were answered from leases", crowd.drawn, crowd.asked+crowd.drawn)
	if crowd.drawn < crowd.asked/10 {
		t.Errorf("%d limits were answered from leases, and %d by Redis: leases were hardly in use", crowd.drawn, crowd.asked)
	}
	if crowd.left < 3 {
		t.Errorf("%d nodes left that had leased: too few to tell", crowd.left)
	}
}

// TestSoakLeasesHeldInACalmAddNothingToABurst has nodes hold leases while the bucket is full: spent on top of
// the burst, they would exceed it.
func TestSoakLeasesHeldInACalmAddNothingToABurst(t *testing.T) {
	t.Parallel()
	f := onSocket(t, redistest.Single(t))
	members := f.joinAll(4, "-lease-share", "5")
	f.awaitLeases(members...)
	alone(t)
	b := bound{algorithm: "token_bucket", limit: 1000, window: time.Second, burst: 1000}
	tr := f.offer(by("acme"), rushes(3*b.limit))
	for _, m := range members {
		tr.to(m, m.open("", b.config()), 4)
	}
	b.check(t, tr.lastFor(soak.For(t, 6*time.Second)), 6)
}

// crowd is members that take traffic from when they join until they leave.
type crowd struct {
	members []*member
	flows   []*flow
	parts   map[*member][]*part

	drawn, asked int // limits of requests that the members who left had answered from leases, and from Redis
	left         int // members who left and had answered from leases
}

// flow is the traffic on one limit.
type flow struct {
	bound   bound
	traffic *traffic
}

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

// leave ends the member that has been there for longest, in the midst of its load.
func (c *crowd) leave() {
	m := c.members[0]
	c.members = c.members[1:]
	now := m.numbers()
	drawn := int(now.sum("rate_limiter_answered_limits_total", `by="lease"`))
	if drawn > 0 {
		c.left++
	}
	c.drawn += drawn
	c.asked += int(now.sum("rate_limiter_answered_limits_total", `by="redis"`))
	for _, part := range c.parts[m] {
		part.over.Store(true)
	}
	m.terminate()
}
