package simulate

import (
	"math"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// counts is what is counted while the load comes.
type counts struct {
	lost     uint64
	answered [decision.Sources]uint64
	waits    waits
	point    Point // the one that is counted now
	timeline []Point
	every    limit.Micros // the length of a point

	opsBefore []uint64 // of the masters, at the beginning
	cpuBefore []float64
	opsAt     uint64 // of all, at the beginning of the point
	opsAfter  []uint64
	cpuAfter  []float64
	lease     lease.Stats
	tally     outage.Tally
}

// mostPoints is the number of points of a timeline.
const mostPoints = 60

func newCounts(s *Scenario) counts {
	every := limit.Second / 10
	for step := 0; every*mostPoints < micros(s.Duration()); step++ {
		every = every * [...]limit.Micros{2, 5, 2}[step%3] / [...]limit.Micros{1, 2, 1}[step%3] // 1, 2, 5, 10, …
	}
	return counts{every: every}
}

// arrived counts a request, and whether an ideal limiter admits it.
func (c *counts) arrived(admitted bool) {
	c.point.Offered++
	if admitted {
		c.point.Ideal++
	}
}

// decided counts a decision.
func (c *counts) decided(r *request, now limit.Micros) {
	if !r.Decision.Denied() {
		c.point.Admitted++
	}
	c.answered[answeredBy(&r.Decision)]++
	c.waits.add(now - r.began)
}

// beginCounting takes the numbers at the beginning of the load, and then one point after the other.
func (s *simulation) beginCounting(ends limit.Micros) {
	c := &s.count
	c.opsBefore, c.cpuBefore = s.masterNumbers()
	c.opsAt = sum(c.opsBefore)
	var sample func()
	sample = func() {
		s.endPoint()
		if next := s.world.now + c.every; next <= ends {
			s.world.at(next, sample)
		}
	}
	s.world.at(s.world.now+c.every, sample)
}

// endPoint ends a point of the timeline.
func (s *simulation) endPoint() {
	c := &s.count
	ops, _ := s.masterNumbers()
	now := sum(ops)
	c.point.RedisOps, c.opsAt = now-c.opsAt, now
	c.point.Degraded = s.degraded()
	c.point.At = float64(s.world.now-warmUp) / 1e6
	c.timeline = append(c.timeline, c.point)
	c.point = Point{}
}

// endCounting takes the numbers at the end of the load.
func (s *simulation) endCounting() {
	c := &s.count
	if c.point.Offered > 0 || len(c.timeline) == 0 {
		s.endPoint()
	}
	c.opsAfter, c.cpuAfter = s.masterNumbers()
	for _, n := range slices.Concat(s.ended, s.live) {
		stats := n.lease.Stats()
		c.lease.FromLease += stats.FromLease
		c.lease.FromStore += stats.FromStore
		c.lease.FromMemory += stats.FromMemory
		c.lease.Tokens.Granted += stats.Tokens.Granted
		c.lease.Tokens.Spent += stats.Tokens.Spent
		c.lease.Tokens.Returned += stats.Tokens.Returned
		c.lease.Tokens.Expired += stats.Tokens.Expired
		for _, t := range n.outage.Stats().Policies {
			c.tally.Unverified += t.Unverified
			c.tally.Charged += t.Charged
			c.tally.WrittenOff += t.WrittenOff
			c.tally.Unknown += t.Unknown
		}
	}
}

func (s *simulation) masterNumbers() (ops []uint64, cpu []float64) {
	for _, m := range s.network.masters {
		ops, cpu = append(ops, m.ops), append(cpu, m.cpu)
	}
	return ops, cpu
}

func sum(list []uint64) (total uint64) {
	for _, n := range list {
		total += n
	}
	return total
}

// waits counts how long requests wait, in steps of a twelfth of a factor of two.
type waits struct {
	none  uint64
	steps [stepsPerDouble * 32]uint64
}

const stepsPerDouble = 12

func (w *waits) add(wait limit.Micros) {
	if wait <= 0 {
		w.none++
		return
	}
	w.steps[min(int(stepsPerDouble*math.Log2(float64(wait))), len(w.steps)-1)]++
}

// percentile returns the wait in milliseconds that a part of all requests does not exceed.
func (w *waits) percentile(part float64) float64 {
	all := w.none + sum(w.steps[:])
	left := int64(math.Ceil(part*float64(all))) - int64(w.none)
	for i := range w.steps {
		if left <= 0 {
			break
		}
		if left -= int64(w.steps[i]); left <= 0 {
			return math.Exp2(float64(i+1)/stepsPerDouble) / 1000
		}
	}
	return 0
}
