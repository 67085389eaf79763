package simulate

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// ledger compares what was admitted with the bounds of the limits, over any interval. For each bucket it charges a
// state of package limit with what was really spent, whether or not there is room. What that lacks beyond its capacity
// is what some interval has admitted too much.
//
// What counts is the true instant of each decision: of the master that decided, or of the request if it was leased.
// Decisions become known in another order, so the ledger waits for two seconds before it charges them.
type ledger struct {
	accounts map[policy.Key]*account
	pending  []admission
	flushAt  limit.Micros
}

// settleTime is longer than the time from any decision to the end of its request.
const settleTime = 2 * limit.Second

// account is one bucket.
type account struct {
	key    policy.Key
	policy *policy.Policy
	state  limit.State
	spent  int64 // tokens
	worst  int64 // tokens above the bound, in the worst interval
}

// admission is what a request spent from a bucket.
type admission struct {
	of   *account
	at   limit.Micros
	cost int64
}

func newLedger() *ledger { return &ledger{accounts: map[policy.Key]*account{}} }

// add records what an admitted request has spent. Times are times of day.
func (l *ledger) add(d *decision.Decision, began, now limit.Micros, ahead func(*policy.Key) limit.Micros) {
	for i := range d.Resolution.Bounds {
		b, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if !b.Enforced() || b.Cost <= 0 || !b.Policy.Limit.Settles() || b.Policy.Limit.Spec().SoftOnly {
			continue
		}
		of := l.accounts[b.Key]
		if of == nil {
			of = &account{key: b.Key.Clone(), policy: b.Policy}
			l.accounts[of.key] = of
		}
		at := now
		switch status.Source {
		case decision.Redis:
			at = status.Now - ahead(&b.Key)
		case decision.Leased:
			at = began
		}
		l.pending = append(l.pending, admission{of, at, b.Cost})
	}
	if now >= l.flushAt {
		l.flush(now - settleTime)
		l.flushAt = now + settleTime
	}
}

// flush charges what was spent before an instant.
func (l *ledger) flush(before limit.Micros) {
	slices.SortStableFunc(l.pending, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	n := 0
	for ; n < len(l.pending) && l.pending[n].at < before; n++ {
		l.pending[n].of.charge(l.pending[n].at, l.pending[n].cost)
	}
	l.pending = append(l.pending[:0], l.pending[n:]...)
}

func (a *account) charge(at limit.Micros, cost int64) {
	l := &a.policy.Limit
	l.Settle(&a.state, at, 0, cost, limit.Receipt{})
	a.spent += cost
	a.worst = max(a.worst, l.Status(&a.state, at).Used-l.Capacity())
}

// unlimited is more tokens than any bound.
const unlimited = 1 << 62

// recovery is how long after an outage nodes may still decide alone: the longest pause between two probes, and a call.
const recovery = 2500 * time.Millisecond

// documented returns how many tokens above the bound the docs allow for what goes wrong in a scenario: see
// docs/outages.md.
func (s *simulation) documented(a *account) (tokens int64) {
	holder, restarts := s.network.holder(&a.key).number, int64(0)
	for i := range s.scenario.Faults {
		if f := &s.scenario.Faults[i]; f.Kind == NodeDies && f.For > 0 {
			restarts++
		}
	}
	faults := s.scenario.Faults
	if s.network.latency.exceeds(s.network.timeout) {
		faults = append(faults[:len(faults):len(faults)], Fault{Kind: RedisHangs, For: s.scenario.Duration()})
	}
	for i := range faults {
		f := &faults[i]
		if f.Master != 0 && f.Master-1 != holder {
			continue
		}
		switch {
		case f.Kind == ClockStep && f.Master != 0:
			tokens += a.afterStep(f.By)
		case s.isOutage(f) && a.policy.FailMode == policy.FailOpen:
			return unlimited
		case s.isOutage(f) && a.policy.FailMode == policy.FailLocal:
			share := a.most(f.For+recovery) * s.scenario.config.LocalSharePct / 100
			tokens += (1 + restarts) * max(share, int64(s.scenario.Nodes))
		}
		if f.LosesData {
			tokens += a.policy.Limit.Capacity()
		}
	}
	return tokens
}

// isOutage reports whether a fault makes nodes decide by fail modes.
func (s *simulation) isOutage(f *Fault) bool {
	switch f.Kind {
	case RedisUnavailable, RedisHangs:
		return true
	case RedisSlow: // such that calls count as failed
		return micros(f.By+s.scenario.Redis.Latency.P99) > s.network.timeout*4/5
	default:
		return false
	}
}

// most returns the most tokens that the bucket admits in a time.
func (a *account) most(lasts time.Duration) int64 {
	spec := a.policy.Limit.Spec()
	elapsed := micros(lasts)
	if spec.Algorithm == limit.FixedWindow {
		return a.policy.Limit.Capacity() * int64(1+(elapsed+spec.Window-1)/spec.Window)
	}
	return a.policy.Limit.Capacity() + int64(float64(spec.Quantity)*float64(elapsed)/float64(spec.Window)) + 1
}

// afterStep returns what a step of the master's clock gives back.
func (a *account) afterStep(by time.Duration) int64 {
	spec, capacity := a.policy.Limit.Spec(), a.policy.Limit.Capacity()
	switch {
	case by < -time.Hour, by > 0 && spec.Algorithm == limit.FixedWindow:
		return capacity
	case by > 0:
		refill := float64(spec.Quantity) * float64(by.Microseconds()) / float64(spec.Window)
		return int64(min(float64(capacity), refill)) + 1
	default:
		return 0
	}
}
