package spec

import (
	"context"
	"testing"
	"time"
)

// What Redis, the network or the plugin's own process can do wrong, one after the other, each under load on three
// routes whose limits fail open, closed and locally. Counts are asserted; times are printed, with one loose ceiling.

const (
	// chaosLimit is every limit here: tokens a second, and the burst.
	chaosLimit = 100
	// chaosShare is a node's share of it while Redis is away, before it is divided by the nodes: 0.7 of the limit.
	chaosShare = 70
	// chaosTimeout is redis.read_timeout. It is twelve times the default, so that a healthy Redis on a busy machine is not
	// taken for a dead one.
	chaosTimeout = 600 * time.Millisecond
	// chaosLate is longer than anything but a wait for Redis takes.
	chaosLate = chaosTimeout * 3 / 4
	// chaosCeiling is what no request may take.
	chaosCeiling = 2 * time.Second
	// failureLasts is how long Redis fails at once, and silenceLasts how long it lets its callers wait: the breaker opens
	// within, and probes some times.
	failureLasts = time.Second
	silenceLasts = chaosTimeout + 2400*time.Millisecond
	// mostFailures is how many calls, beside those under way, can fail before a breaker opens: it looks at the last ten.
	mostFailures = 10
	// mostProbes is how many probes a breaker can send in a disaster: after 0.2, 0.4, 0.8, 1.6 and then every 2 s, with
	// jitter, until 10 s have passed.
	mostProbes = 10
)

// disaster is one thing that goes wrong.
type disaster struct {
	name string
	// stage starts the Redis that it befalls.
	stage func(t *testing.T) *stage
	// harmless: Redis answers all the time, so no fail mode may decide anything.
	harmless bool
	// kills: the plugin's process dies, and Kong answers 500 meanwhile.
	kills bool
	// quiet: it may be over before a breaker opens.
	quiet bool
	// refills is how often buckets may become full out of turn: data lost, or a clock that steps forward, or far back.
	refills int
	// breaks is how often it takes Redis away; 0 counts as once.
	breaks int
}

// stage is a Redis, the nodes that use it, and what is done to them.
type stage struct {
	redis []string // for each node, its plugin's redis block in YAML
	// strike does the harm, and end makes it good; each returns when that is done.
	strike, end func(s *storm)
	lasts       time.Duration // from one to the other, at least
	bystander   string        // key of a consumer whose tenant the disaster does not concern; "": there is none
}

func TestChaosEveryDisasterIsAnsweredByTheFailModes(t *testing.T) {
	table := &chaosTable{}
	t.Cleanup(func() { table.publish(t) })
	for _, d := range disasters {
		t.Run(d.name, func(t *testing.T) { d.play(t, table) })
	}
}

// play runs load before, during and after a disaster, and checks what it did.
func (d disaster) play(t *testing.T, table *chaosTable) {
	at := d.stage(t)
	s := brew(t, at)
	s.awaitRedis("load")
	s.awaitLimits(0)
	before := s.nodes[0].scrape()
	if before["process_open_fds"] == 0 || before["go_goroutines"] == 0 {
		t.Fatalf("the plugin's metrics do not tell its goroutines and files: %v", before)
	}

	c := course{disaster: d, begun: s.since()}
	at.strike(s)
	if !d.harmless && !d.kills && !d.quiet {
		await(t, "the metrics to call Redis degraded", func() bool { return s.nodes[0].scrape().sum("rate_limiter_degraded") > 0 })
		c.opened = s.since()
	}
	elapse(t.Context(), c.begun+at.lasts-s.since())
	at.end(s)
	c.ended = s.since()
	s.awaitRedis("decisions by Redis again")
	c.recovered = s.since()
	s.awaitLimits(c.recovered)
	s.end()

	c.check(s)
	c.checkLeaks(s, before)
	if !d.kills {
		c.checkTotals(s)
	}
	c.report(s, table)
}

// elapse lets time pass: what a disaster lasts.
func elapse(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// course is how a disaster went, on the clock of the load.
type course struct {
	disaster
	begun, ended time.Duration
	opened       time.Duration // when the first node's breaker was known to be open; 0: nobody looked
	recovered    time.Duration // when Redis had decided everything for a while again
}

// broken is how often Redis was taken away.
func (c *course) broken() int {
	if c.harmless {
		return 0
	}
	return max(c.breaks, 1)
}

// mostUnanswered is how many requests of a node with so many connections may be without an answer of Redis that may have
// run them: for each time that it was taken away those under way and those that the breaker looks at, and the probes.
func (c *course) mostUnanswered(connections int) int {
	if c.broken() == 0 {
		return 0
	}
	return c.broken()*(connections+mostFailures) + mostProbes
}
