package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// Report is what a simulation found. Rates are per second of the load.
type Report struct {
	About   string  `json:"about"`
	Seed    uint64  `json:"seed"`
	Nodes   int     `json:"nodes"`
	Tenants int     `json:"tenants"`
	Seconds float64 `json:"seconds"` // of the load

	Offered    uint64  `json:"offered"`
	Admitted   uint64  `json:"admitted"`
	Denied     uint64  `json:"denied"`
	Lost       uint64  `json:"lost"`      // requests at nodes that died
	Ideal      uint64  `json:"ideal"`     // what one store without nodes, latency and faults admits
	UnderPct   float64 `json:"under_pct"` // percent of Ideal that were denied in addition, all in all
	OverTokens int64   `json:"over_tokens"`
	WithinDocs bool    `json:"within_documented"` // no bucket admitted more than the docs allow

	FromLeasePct float64 `json:"from_lease_pct"` // requests that did not wait for Redis: by a lease or a remembered denial
	FromRedisPct float64 `json:"from_redis_pct"`
	LocalPct     float64 `json:"local_pct"` // decided by fail modes
	WaitP50      float64 `json:"wait_p50_ms"`
	WaitP99      float64 `json:"wait_p99_ms"`
	WaitP999     float64 `json:"wait_p999_ms"`

	RedisOps   float64 `json:"redis_ops_per_second"`
	OpsPer1000 float64 `json:"redis_ops_per_1000_requests"`
	RedisCores float64 `json:"redis_cores"`
	NodeCores  float64 `json:"node_cores"`

	Leases   LeaseCount    `json:"leases"`
	Outage   OutageCount   `json:"outage"`
	Policies []PolicyCount `json:"policies"`
	Masters  []MasterCount `json:"masters"`
	Timeline []Point       `json:"timeline"`

	Took time.Duration `json:"-"` // of the simulation itself
}

// LeaseCount is what became of leased tokens.
type LeaseCount struct {
	Granted       int64   `json:"granted"`
	Spent         int64   `json:"spent"`
	Returned      int64   `json:"returned"`
	Expired       int64   `json:"expired"`
	EfficiencyPct float64 `json:"efficiency_pct"` // of Granted that were spent
}

// OutageCount is what nodes admitted without Redis, in tokens.
type OutageCount struct {
	Unverified int64 `json:"unverified"`
	Charged    int64 `json:"charged"`
	WrittenOff int64 `json:"written_off"`
	Unknown    int64 `json:"unknown"`
}

// PolicyCount is what one policy admitted, by all of its buckets.
type PolicyCount struct {
	Policy     string `json:"policy"`
	Buckets    int    `json:"buckets"` // that were spent from
	Tokens     int64  `json:"tokens"`
	Over       int64  `json:"over"`       // tokens above the bound of the limit, in the worst interval of the worst bucket
	Documented int64  `json:"documented"` // the most that the docs allow there; below 0: any number
	Within     bool   `json:"within"`     // Over is at most Documented, in every bucket
}

// MasterCount is the work of one master.
type MasterCount struct {
	Master int     `json:"master"`
	Ops    float64 `json:"ops_per_second"`
	CPUPct float64 `json:"cpu_pct"`
	Queue  float64 `json:"longest_queue_ms"` // the longest that a command waited for the master's thread
}

// Point is a part of the time.
type Point struct {
	At       float64 `json:"at"` // seconds since the beginning of the load, at its end
	Offered  uint64  `json:"offered"`
	Admitted uint64  `json:"admitted"`
	Ideal    uint64  `json:"ideal"`
	RedisOps uint64  `json:"redis_ops"`
	Degraded int     `json:"degraded"` // nodes that decide by fail modes
}

// report returns what was counted.
func (s *simulation) report() *Report {
	c := &s.count
	last := &c.timeline[len(c.timeline)-1] // with the requests that were under way at its end
	last.Admitted += c.point.Admitted
	r := &Report{
		About: s.scenario.About, Seed: s.scenario.Seed, Nodes: s.scenario.Nodes, Tenants: len(s.load.tenants),
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
