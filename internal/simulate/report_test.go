package simulate

import (
	"math"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Report is what a simulation found. Rates are per second of the load.
type Report struct {
	Offered, Admitted, Denied uint64

	UnderPct   float64 // percent of what one store without nodes and latency admits that were denied in addition
	OverTokens int64   // above the bound of any bucket, in the worst interval

	FromLeasePct float64 // requests that did not wait for Redis: by a lease or a remembered denial
	LocalPct     float64 // decided by fail modes
	WaitP99      float64

	RedisOps   float64
	OpsPer1000 float64
	RedisCores float64
	NodeCores  float64
	BusiestPct float64 // for which the busiest master was busy
	Queue      float64 // the longest that a command waited for the thread of a master, in milliseconds

	Granted, Spent int64 // leased tokens
}

// report returns what was counted.
func (s *simulation) report() *Report {
	c, seconds := &s.count, s.scenario.Load.For.Seconds()
	decided := float64(sum(c.answered[:]))
	r := &Report{
		Offered: c.offered, Admitted: c.admitted, Denied: c.offered - c.admitted, Granted: s.granted, Spent: s.spent,
		UnderPct:     max(percent(float64(c.ideal)-float64(c.admitted), float64(c.ideal)), 0),
		FromLeasePct: percent(float64(c.answered[decision.Leased]), decided),
		LocalPct:     percent(float64(c.answered[decision.Local]+c.answered[decision.Unanswered]), decided),
		WaitP99:      c.waits.percentile(.99),
	}
	var all use
	for i, m := range s.masters {
		all.ops, all.cpu = all.ops+m.ops, all.cpu+m.cpu
		r.BusiestPct = max(r.BusiestPct, 100*m.cpu/1e6/seconds)
		r.Queue = max(r.Queue, float64(s.network.masters[i].queued)/1000)
	}
	r.RedisOps, r.RedisCores = float64(all.ops)/seconds, all.cpu/1e6/seconds
	r.OpsPer1000 = 1000 * float64(all.ops) / max(float64(r.Offered), 1)
	r.NodeCores = (float64(r.Offered)*eventCost + float64(all.ops)*callCost) / 1e6 / seconds
	for _, a := range s.ledger.accounts {
		r.OverTokens = max(r.OverTokens, a.worst)
	}
	return r
}

func percent(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * part / whole
}

// micros is a duration in the unit of package limit.
func micros(d time.Duration) limit.Micros { return limit.Micros(d.Microseconds()) }

// counts is what is counted while the load comes.
type counts struct {
	offered, admitted, ideal uint64
	answered                 [decision.Sources]uint64
	waits                    waits
}

// decided counts a decision.
func (c *counts) decided(r *request, now limit.Micros) {
	if !r.Decision.Denied() {
		c.admitted++
	}
	c.answered[answeredBy(&r.Decision)]++
	c.waits.add(now - r.began)
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

// The measured costs that the report multiplies. They are those of one machine, two shared cores of an AMD
// EPYC with Redis 7.0.15; docs/benchmarks.md and the README of package redis say how to measure yours.
const (
	// commandCost is the CPU time of Redis for a command with one bucket, in µs, and bucketCost that of each further one:
	// 5.2 with one and 10.8 with four, of 64 callers (docs/benchmarks.md, "Taking and settling, in the store").
	commandCost, bucketCost = 5.2, 1.87
	// pingCost is that of a PING, in µs (plugin/bucket/redis/README.md, "Redis CPU").
	pingCost = 0.3

	// eventCost is the CPU time of a node for a request that is answered from a lease, in µs, and callCost what a call of
	// Redis adds: 11.7 and 25.2 − 11.7, at 16 connections (docs/benchmarks.md, "Events through the plugin's socket").
	eventCost, callCost = 11.7, 13.5
)

// redisCost returns the CPU time of Redis for a command with so many buckets, in µs.
func redisCost(buckets int) float64 {
	if buckets == 0 {
		return pingCost
	}
	return commandCost + bucketCost*float64(buckets-1)
}
