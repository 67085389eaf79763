package simulate

import (
	"cmp"
	"slices"

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
func (l *ledger) add(d *decision.Decision, began, now limit.Micros) {
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
			at = status.Now
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
