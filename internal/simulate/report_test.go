package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Report is what a simulation found. Rates are per second of the load.
type Report struct {
	Seed    uint64
	Nodes   int
	Tenants int
	Seconds float64 // of the load

	Offered    uint64
	Admitted   uint64
	Denied     uint64
	Lost       uint64  // requests at nodes that died
	Ideal      uint64  // what one store without nodes, latency and faults admits
	UnderPct   float64 // percent of Ideal that were denied in addition, all in all
	OverTokens int64
	WithinDocs bool // no bucket admitted more than the docs allow

	FromLeasePct float64 // requests that did not wait for Redis: by a lease or a remembered denial
	FromRedisPct float64
	LocalPct     float64 // decided by fail modes
	WaitP50      float64
	WaitP99      float64
	WaitP999     float64

	RedisOps   float64
	OpsPer1000 float64
	RedisCores float64
	NodeCores  float64

	Leases   LeaseCount
	Outage   OutageCount
	Policies []PolicyCount
	Masters  []MasterCount
	Timeline []Point
}

// LeaseCount is what became of leased tokens.
type LeaseCount struct {
	Granted       int64
	Spent         int64
	Returned      int64
	Expired       int64
	EfficiencyPct float64 // of Granted that were spent
}

// OutageCount is what nodes admitted without Redis, in tokens.
type OutageCount struct {
	Unverified int64
	Charged    int64
	WrittenOff int64
	Unknown    int64
}

// PolicyCount is what one policy admitted, by all of its buckets.
type PolicyCount struct {
	Policy     string
	Buckets    int // that were spent from
	Tokens     int64
	Over       int64 // tokens above the bound of the limit, in the worst interval of the worst bucket
	Documented int64 // the most that the docs allow there; below 0: any number
	Within     bool  // Over is at most Documented, in every bucket
}

// MasterCount is the work of one master.
type MasterCount struct {
	Master int
	Ops    float64
	CPUPct float64
	Queue  float64 // the longest that a command waited for the master's thread
}

// Point is a part of the time.
type Point struct {
	At       float64 // seconds since the beginning of the load, at its end
	Offered  uint64
	Admitted uint64
	Ideal    uint64
	RedisOps uint64
	Degraded int // nodes that decide by fail modes
}

// report returns what was counted.
func (s *simulation) report() *Report {
	c := &s.count
	last := &c.timeline[len(c.timeline)-1] // with the requests that were under way at its end
	last.Admitted += c.point.Admitted
	r := &Report{
		Seed: s.scenario.Seed, Nodes: s.scenario.Nodes, Tenants: len(s.load.tenants),
		Seconds: s.scenario.Duration().Seconds(), Lost: c.lost, Timeline: c.timeline,
		Outage: OutageCount{c.tally.Unverified, c.tally.Charged, c.tally.WrittenOff, c.tally.Unknown},
	}
	for _, p := range c.timeline {
		r.Offered, r.Admitted, r.Ideal = r.Offered+p.Offered, r.Admitted+p.Admitted, r.Ideal+p.Ideal
	}
	r.Denied = r.Offered - r.Admitted - r.Lost
	r.UnderPct = max(percent(float64(r.Ideal)-float64(r.Admitted), float64(r.Ideal)), 0)
	decided := float64(sum(c.answered[:]))
	r.FromLeasePct = percent(float64(c.answered[decision.Leased]), decided)
	r.FromRedisPct = percent(float64(c.answered[decision.Redis]), decided)
	r.LocalPct = percent(float64(c.answered[decision.Local]+c.answered[decision.Unanswered]), decided)
	r.WaitP50, r.WaitP99, r.WaitP999 = c.waits.percentile(.5), c.waits.percentile(.99), c.waits.percentile(.999)
	tokens := c.lease.Tokens
	r.Leases = LeaseCount{
		tokens.Granted, tokens.Spent, tokens.Returned, tokens.Expired,
		percent(float64(tokens.Spent), float64(tokens.Granted)),
	}
	s.reportMasters(r)
	s.reportPolicies(r)
	return r
}

func percent(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * part / whole
}

func (s *simulation) reportMasters(r *Report) {
	c, ops, cpu := &s.count, uint64(0), 0.0
	for i, m := range s.network.masters {
		did, took := c.opsAfter[i]-c.opsBefore[i], c.cpuAfter[i]-c.cpuBefore[i]
		ops, cpu = ops+did, cpu+took
		r.Masters = append(r.Masters, MasterCount{
			Master: i + 1, Ops: float64(did) / r.Seconds, CPUPct: 100 * took / 1e6 / r.Seconds,
			Queue: float64(m.queued) / 1000,
		})
	}
	r.RedisOps, r.RedisCores = float64(ops)/r.Seconds, cpu/1e6/r.Seconds
	r.OpsPer1000 = 1000 * float64(ops) / max(float64(r.Offered), 1)
	r.NodeCores = (float64(r.Offered)*eventCost + float64(ops)*callCost) / 1e6 / r.Seconds
}

func (s *simulation) reportPolicies(r *Report) {
	found := map[string]*PolicyCount{}
	r.WithinDocs = true
	for _, a := range s.ledger.accounts {
		p := found[a.policy.Name]
		if p == nil {
			p = &PolicyCount{Policy: a.policy.Name, Within: true}
			found[p.Policy] = p
		}
		over, allowed := max(a.worst, 0), s.documented(a)
		p.Buckets++
		p.Tokens += a.spent
		p.Within = p.Within && over <= allowed
		p.Over, p.Documented = max(p.Over, over), max(p.Documented, allowed)
		r.OverTokens = max(r.OverTokens, over)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		p := found[name]
		if p.Documented >= unlimited {
			p.Documented = -1
		}
		r.WithinDocs = r.WithinDocs && p.Within
		r.Policies = append(r.Policies, *p)
	}
}

// Busiest returns the master with the most work.
func (r *Report) Busiest() MasterCount {
	return slices.MaxFunc(r.Masters, func(a, b MasterCount) int { return cmp.Compare(a.CPUPct, b.CPUPct) })
}

// micros is a duration in the unit of package limit.
func micros(d time.Duration) limit.Micros { return limit.Micros(d.Microseconds()) }
