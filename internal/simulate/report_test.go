package simulate

import (
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
