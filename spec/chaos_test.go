package spec

import (
	"context"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// The chaos specs inject faults of Redis, the network and the plugin's process, each into nodes of its own. They wait
// for most of their time, so some run at once. The load is on three routes whose limits fail open, closed and locally.
// Counts are asserted; times are printed, with one loose ceiling.

const (
	// chaosLimit is the quantity a second and the burst of every limit.
	chaosLimit = 20
	// chaosShare is a node's share of it while Redis is unavailable, before it is divided by the nodes: 0.7 of the limit.
	chaosShare = 14
	// chaosTimeout is redis.read_timeout. It is twelve times the default, so that a healthy Redis on a busy machine is not
	// taken for a dead one.
	chaosTimeout = 600 * time.Millisecond
	// chaosPatience is redis.read_timeout where no promise depends on it.
	chaosPatience = 10 * time.Second
	// chaosCeiling is longer than a request takes beside its wait for Redis.
	chaosCeiling = 1400 * time.Millisecond
	// failureLasts is the duration of immediate failures of Redis, and silenceLasts that of a Redis that does not answer.
	// The breaker opens within both, and probes some times.
	failureLasts = time.Second
	silenceLasts = chaosTimeout + 2400*time.Millisecond
	// mostFailures is the number of calls, besides those in flight, that can fail before a breaker opens.
	mostFailures = 10
	// mostProbes is the number of probes that a breaker can send in a disaster: after 0.2, 0.4, 0.8, 1.6 and then every 2
	// s, with jitter, until 10 s have passed.
	mostProbes = 10
)

// disaster is one fault.
type disaster struct {
	name string
	// stage starts the Redis with the fault.
	stage func(t *testing.T) *stage
	// harmless means that Redis always answers, so no fail mode may decide.
	harmless bool
	// kills means that the plugin's process dies, and Kong answers 500 meanwhile.
	kills bool
	// quiet means that it may be over before a breaker opens.
	quiet bool
	// refills is the number of times that buckets may become full early: data is lost, or a clock steps forward or far
	// back.
	refills int
	// breaks is the number of times that Redis goes away; 0 means once.
	breaks int
}

// stage is a Redis, the nodes that use it, and their fault.
type stage struct {
	redis []string // for each node, its plugin's redis block in YAML
	// strike starts the fault, and end ends it. Each returns when that is done.
	strike, end func(s *storm)
	lasts       time.Duration // from one to the other, at least
	answers     bool          // Redis answers or is unavailable at once, so a call may take longer on a busy machine
	bystander   string        // key of a consumer whose tenant is not affected; "": none
	pool        string        // the redis block of the tier essentials, in YAML; "": all tiers have one Redis
}

// timeout returns how long a call of Redis may take.
func (s *stage) timeout() time.Duration {
	if s.answers {
		return chaosPatience
	}
	return chaosTimeout
}

func TestChaosEveryDisasterIsAnsweredByTheFailModes(t *testing.T) {
	t.Parallel()
	table := make(chaosTable, len(disasters))
	t.Cleanup(func() { table.publish(t) })
	for i, d := range disasters {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			table[i] = d.play(t)
		})
	}
}

// play runs load before, during and after a disaster, checks the answers, and returns its rows of the table.
func (d disaster) play(t *testing.T) []chaosRow {
	at := d.stage(t)
	c := course{disaster: d, timeout: at.timeout()}
	s := startStorm(t, at)
	s.awaitRedis("load")
	s.awaitLimits(0)
	before := s.nodes[0].scrape()
	if before["process_open_fds"] == 0 || before["go_goroutines"] == 0 {
		t.Fatalf("the metrics lack goroutines or files: %v", before)
	}

	c.begun = s.since()
	at.strike(s)
	if !d.harmless && !d.kills && !d.quiet {
		await.That(t, "the metrics to report a degraded Redis", func() bool {
			return s.nodes[0].scrape().sum("rate_limiter_degraded") > 0
		})
	}
	elapse(t.Context(), c.begun+at.lasts-s.since())
	at.end(s)
	c.ended = s.since()
	s.awaitRedis("decisions by Redis again")
	c.recovered = s.since()
	s.awaitLimits(c.recovered)
	s.end()

	c.check(s)
	checkGrowth(t, s.nodes[0].scrape, before)
	if !d.kills {
		c.checkTotals(s)
	}
	return c.report(s)
}

// elapse waits: the duration is part of the scenario.
func elapse(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// course has the instants of a disaster, on the clock of the load.
type course struct {
	disaster
	timeout      time.Duration // of calls of Redis
	begun, ended time.Duration
	recovered    time.Duration // when Redis had decided all requests for a while
}

// broken returns the number of times that Redis went away.
func (c *course) broken() int {
	if c.harmless {
		return 0
	}
	return max(c.breaks, 1)
}

// mostUnanswered bounds the requests of a node that Redis may have run without an answer. Each time that Redis goes
// away these are the requests in flight and those that open the breaker. The probes are added.
func (c *course) mostUnanswered(connections int) int {
	if c.broken() == 0 {
		return 0
	}
	return c.broken()*(connections+mostFailures) + mostProbes
}
