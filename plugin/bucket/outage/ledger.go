package outage

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// maxNames bounds the policy names that are counted separately.
const maxNames = 1000

// otherNames stands for the policy names beyond those that are counted separately.
const otherNames = "other"

// Tally counts what a policy did without the shared store. Unverified is always Charged + WrittenOff + what is pending.
type Tally struct {
	// Unverified counts tokens that can be charged: admitted by this process alone (fail mode local) or unchecked (open),
	// or what a request cost beyond its reservation.
	Unverified int64
	Charged    int64 // tokens of Unverified that the shared store was charged later
	WrittenOff int64 // tokens of Unverified that were not: refilled or expired meanwhile, no room left, or no answer again

	Unknown      int64 // tokens admitted where the shared store may have been charged: never charged again
	Unchargeable int64 // tokens admitted for keys of the shared store that hold something else

	DeniedLocally int64 // requests that this node's share of the limit had no room for
	DeniedClosed  int64 // requests that the fail mode closed denied
}

func (t *Tally) add(other Tally, sign int64) {
	t.Unverified += sign * other.Unverified
	t.Charged += sign * other.Charged
	t.WrittenOff += sign * other.WrittenOff
	t.Unknown += sign * other.Unknown
	t.Unchargeable += sign * other.Unchargeable
	t.DeniedLocally += sign * other.DeniedLocally
	t.DeniedClosed += sign * other.DeniedClosed
}

// ledger records what was admitted without the shared store and is to be charged to it, and the tallies of all
// policies.
type ledger struct {
	clock    func() time.Time // for reports
	mu       sync.Mutex
	debts    map[policy.Key]*debt
	room     room
	pending  int64            // tokens of Unverified, neither charged nor written off
	tallies  map[string]Tally // since the start
	reported map[string]Tally // the part of tallies that was reported
	since    time.Time        // the first record after the last report; zero: there was none
	last     Report
}

// debt is what was admitted from one bucket.
type debt struct {
	key    policy.Key
	policy *policy.Policy // of the last request, with the whole limit
	// state is a bucket of the whole limit that only these admissions are spent from, so that what would have refilled
	// or expired in the shared bucket does here, too.
	state  limit.State
	tokens int64
}

func newLedger(most int, clock func() time.Time) *ledger {
	return &ledger{
		clock:    clock,
		debts:    map[policy.Key]*debt{},
		room:     newRoom(most),
		tallies:  map[string]Tally{},
		reported: map[string]Tally{},
	}
}

// recordRequest records a request of which the shared store did not answer all bounds.
func (l *ledger) recordRequest(bounds []policy.Bound, statuses []decision.Status, admitted bool, now limit.Micros) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		var t Tally
		switch {
		case !b.Enforced() || status.Failure == decision.NoFailure:
		case admitted && b.Cost > 0:
			t = l.recordAdmission(b, status.Failure, now)
		case admitted || !decision.Denies(b, status):
		case status.Source == decision.Local:
			t.DeniedLocally = 1
		default:
			t.DeniedClosed = 1
		}
		if t != (Tally{}) {
			l.record(b.Policy.Name, t)
		}
	}
}

// record adds to a policy's tally what happened without the shared store.
func (l *ledger) record(name string, t Tally) {
	if l.since.IsZero() {
		l.since = l.clock()
	}
	l.addTally(name, t)
}

// addTally adds to a policy's tally.
func (l *ledger) addTally(name string, t Tally) {
	if _, known := l.tallies[name]; !known && len(l.tallies) >= maxNames {
		name = otherNames
	}
	sum := l.tallies[name]
	sum.add(t, 1)
	l.tallies[name] = sum
	l.pending += t.Unverified - t.Charged - t.WrittenOff
}

// recordAdmission records the admission of one bound, and returns its tally.
func (l *ledger) recordAdmission(b *policy.Bound, failure decision.Failure, now limit.Micros) Tally {
	switch {
	case failure.MayHaveSpent():
		return Tally{Unknown: b.Cost}
	case failure == decision.WrongType:
		return Tally{Unchargeable: b.Cost}
	}
	d := l.debts[b.Key]
	if d == nil {
		if !l.room.take(&b.Key) {
			return Tally{Unverified: b.Cost, WrittenOff: b.Cost}
		}
		d = &debt{key: b.Key.Clone()}
		l.debts[d.key] = d
	}
	d.policy = b.Policy
	d.spend(b.Cost, now)
	d.tokens += b.Cost
	return Tally{Unverified: b.Cost}
}

// cancel removes what is due for the statuses that are Charged by this process, because it is refunded.
func (l *ledger) cancel(bounds []policy.Bound, statuses []decision.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range statuses {
		if status := &statuses[i]; status.Charged && isFallback(status) {
			l.cancelAdmission(&bounds[i], status.Failure)
		}
	}
}

// cancelAdmission removes the bound's cost from what is due, unless it is not due any more.
func (l *ledger) cancelAdmission(b *policy.Bound, failure decision.Failure) {
	if d := l.debts[b.Key]; d != nil && d.tokens >= b.Cost && !failure.MayHaveSpent() {
		d.tokens -= b.Cost
		l.addTally(b.Policy.Name, Tally{Unverified: -b.Cost})
	}
}

// forget writes off what is due from buckets.
func (l *ledger) forget(keys []policy.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range keys {
		if d := l.debts[keys[i]]; d != nil {
			l.addTally(d.policy.Name, Tally{WrittenOff: d.tokens})
			d.tokens = 0
		}
	}
}

// spend adds to what is due, which never exceeds a full bucket.
func (d *debt) spend(cost int64, now limit.Micros) {
	l := &d.policy.Limit
	l.Advance(&d.state, now)
	room := l.Capacity() - l.Status(&d.state, now).Used
	l.Spend(&d.state, now, min(cost, max(room, 0)))
}

// due returns the tokens that are worth charging now.
func (d *debt) due(now limit.Micros) int64 {
	l := &d.policy.Limit
	l.Advance(&d.state, now)
	return min(l.Status(&d.state, now).Used, d.tokens)
}

// drain removes and returns all debts by their importance: first those of whole tenants and of shared limits, then the
// others, each time the largest first. Each must then be settled or put back.
func (l *ledger) drain(now limit.Micros) []*debt {
	debts := l.removeAll()
	owed := make(map[*debt]int64, len(debts))
	for _, d := range debts {
		owed[d] = d.due(now)
	}
	slices.SortFunc(debts, func(a, b *debt) int {
		return cmp.Or(cmp.Compare(kindOf(&a.key), kindOf(&b.key)), cmp.Compare(owed[b], owed[a]))
	})
	return debts
}

// removeAll removes and returns all debts, in no order.
func (l *ledger) removeAll() []*debt {
	l.mu.Lock()
	defer l.mu.Unlock()
	debts := slices.Collect(maps.Values(l.debts))
	clear(l.debts)
	l.room.clear()
	return debts
}

// putBack returns a debt to the ledger, for the next time. Requests may have made a new one meanwhile. It keeps its
// place even if others have taken all the room since.
func (l *ledger) putBack(d *debt, now limit.Micros) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if newer := l.debts[d.key]; newer != nil {
		newer.spend(d.due(now), now)
		newer.tokens += d.tokens
		return
	}
	l.room.reclaim(&d.key)
	l.debts[d.key] = d
}

// settle ends a debt of which charged tokens were charged.
func (l *ledger) settle(d *debt, charged int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addTally(d.policy.Name, Tally{Charged: charged, WrittenOff: d.tokens - charged})
}

// Report describes one outage, from the first request that was decided without the shared store to the end of the
// reconciliation.
type Report struct {
	Start, End time.Time
	Policies   map[string]Tally // of this outage alone
	Pending    int64            // tokens that wait for a server which is still unavailable
}

// report ends an outage: it returns what no report has covered yet, if there is anything.
func (l *ledger) report() (Report, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Report{Start: l.since, End: l.clock(), Policies: map[string]Tally{}, Pending: l.pending}
	for name, t := range l.tallies {
		t.add(l.reported[name], -1)
		if t != (Tally{}) {
			r.Policies[name] = t
		}
	}
	if len(r.Policies) == 0 {
		return Report{}, false
	}
	if r.Start.IsZero() {
		r.Start = l.last.Start // the rest that the last report left pending
	}
	l.reported, l.since, l.last = maps.Clone(l.tallies), time.Time{}, r
	return r, true
}

func (l *ledger) stats(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Policies, s.Buckets, s.Pending, s.Last = maps.Clone(l.tallies), len(l.debts), l.pending, l.last
	s.Last.Policies = maps.Clone(l.last.Policies)
}

// hasDebts reports whether anything is to be charged.
func (l *ledger) hasDebts() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.debts) > 0
}
