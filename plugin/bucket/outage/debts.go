package outage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// maxNames bounds the policy names that are counted separately.
const maxNames = 1000

// otherNames stands for the policy names beyond those that are counted separately.
const otherNames = "other"

// Tally counts what a policy did without the central store. Unverified is always Charged + WrittenOff + what is
// pending.
type Tally struct {
	// Unverified counts tokens that can be charged: admitted by this process alone (fail mode local) or unchecked (open),
	// or what a request cost beyond its reservation.
	Unverified int64
	Charged    int64 `metric:"reconciled_tokens_total outcome=charged"`     // tokens of Unverified that were charged later
	WrittenOff int64 `metric:"reconciled_tokens_total outcome=written_off"` // of Unverified: refilled, expired, or no room left

	Unknown      int64 // tokens admitted where the central store may have been charged: never charged again
	Unchargeable int64 // tokens admitted for keys of the central store that hold something else

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

// debts record what was admitted without the central store and is to be charged to it, and the tallies of all
// policies.
type debts struct {
	clock    func() time.Time        // for reports
	hash     func(policy.Key) uint64 // orders equal debts
	mu       sync.Mutex
	byKey    map[policy.Key]*debt
	room     room
	pending  int64            // tokens of Unverified, neither charged nor written off
	tallies  map[string]Tally // since the start
	reported map[string]Tally // the part of tallies that was reported
	lost     []lostSlot
	since    time.Time // the first record after the last report; zero: there was none
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
	since  limit.Micros // the first admission; what was admitted before is not due from it
}

func newDebts(most int, clock func() time.Time, hash func(policy.Key) uint64) *debts {
	return &debts{
		clock:    clock,
		hash:     hash,
		byKey:    map[policy.Key]*debt{},
		room:     room{most: most, perTenant: map[tenantKey]int{}},
		tallies:  map[string]Tally{},
		reported: map[string]Tally{},
	}
}

// recordRequest records a request of which the central store did not answer all bounds.
func (ds *debts) recordRequest(bounds []policy.Bound, statuses []decision.Status, admitted bool, now limit.Micros) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		var t Tally
		switch {
		case !b.Enforced() || status.Failure == decision.NoFailure:
		case admitted && b.Key.Slots: // a request in flight is due nowhere else
		case admitted && b.Cost > 0:
			if status.Source == decision.Unanswered {
				status.Now = now
			}
			t = ds.recordAdmission(b, status.Failure, status.Now, now)
		case admitted || !decision.Denies(b, status):
		case status.Source == decision.Local:
			t.DeniedLocally = 1
		default:
			t.DeniedClosed = 1
		}
		if t != (Tally{}) {
			ds.record(b.Policy.Name, t)
		}
	}
}

// record adds to a policy's tally what happened without the central store.
func (ds *debts) record(name string, t Tally) {
	if ds.since.IsZero() {
		ds.since = ds.clock()
	}
	ds.addTally(name, t)
}

// addTally adds to a policy's tally.
func (ds *debts) addTally(name string, t Tally) {
	if _, known := ds.tallies[name]; !known && len(ds.tallies) >= maxNames {
		name = otherNames
	}
	sum := ds.tallies[name]
	sum.add(t, 1)
	ds.tallies[name] = sum
	ds.pending += t.Unverified - t.Charged - t.WrittenOff
}

// recordAdmission records the admission of one bound at an instant, and returns its tally.
func (ds *debts) recordAdmission(b *policy.Bound, failure decision.Failure, at, now limit.Micros) Tally {
	switch {
	case failure.MayHaveSpent():
		return Tally{Unknown: b.Cost}
	case failure == decision.WrongType:
		return Tally{Unchargeable: b.Cost}
	}
	d := ds.byKey[b.Key]
	if d == nil {
		if !ds.room.take(&b.Key) {
			return Tally{Unverified: b.Cost, WrittenOff: b.Cost}
		}
		d = &debt{key: b.Key.Clone(), since: at}
		ds.byKey[d.key] = d
	}
	d.policy, d.since = b.Policy, min(d.since, at)
	d.spend(b.Cost, now)
	d.tokens += b.Cost
	return Tally{Unverified: b.Cost}
}

// cancelAdmission removes the bound's cost from what is due, and reports whether it was due still: since its admission
// it may have been charged or written off.
func (ds *debts) cancelAdmission(b *policy.Bound, admitted *decision.Status) bool {
	d := ds.byKey[b.Key]
	if d == nil || d.tokens < b.Cost || d.since > admitted.Now ||
		admitted.Failure.MayHaveSpent() || admitted.Failure == decision.WrongType {
		return false
	}
	d.tokens -= b.Cost
	ds.addTally(b.Policy.Name, Tally{Unverified: -b.Cost})
	return true
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

// drain removes and returns all debts by their importance: first debts of whole tenants and of shared limits, then the
// others, each time the largest first. Each must then be settled or put back.
func (ds *debts) drain(now limit.Micros) []*debt {
	list := ds.removeAll()
	owed := make(map[*debt]int64, len(list))
	for _, d := range list {
		owed[d] = d.due(now)
	}
	slices.SortFunc(list, func(a, b *debt) int {
		return cmp.Or(cmp.Compare(kindOf(&a.key), kindOf(&b.key)), cmp.Compare(owed[b], owed[a]),
			cmp.Compare(ds.hash(a.key), ds.hash(b.key)))
	})
	return list
}

// removeAll removes and returns all debts, in no order.
func (ds *debts) removeAll() []*debt {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	list := slices.Collect(maps.Values(ds.byKey))
	clear(ds.byKey)
	ds.room.clear()
	return list
}

// putBack returns a debt, for the next time. Requests may have made a new one meanwhile. It keeps its
// place even if others have taken all the room since.
func (ds *debts) putBack(d *debt, now limit.Micros) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if newer := ds.byKey[d.key]; newer != nil {
		newer.spend(d.due(now), now)
		newer.tokens, newer.since = newer.tokens+d.tokens, min(newer.since, d.since)
		return
	}
	ds.room.reclaim(&d.key)
	ds.byKey[d.key] = d
}

// settle ends a debt of which charged tokens were charged.
func (ds *debts) settle(d *debt, charged int64) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.addTally(d.policy.Name, Tally{Charged: charged, WrittenOff: d.tokens - charged})
}

// Report describes one outage, from the first request that was decided without the central store to the end of the
// reconciliation.
type Report struct {
	Start, End time.Time
	Policies   map[string]Tally // of this outage alone
	Pending    int64            // tokens that wait for a server which is still unavailable
}

// report ends an outage: it returns what no report has covered yet, if there is anything.
func (ds *debts) report() (Report, bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	r := Report{Start: ds.since, End: ds.clock(), Policies: map[string]Tally{}, Pending: ds.pending}
	for name, t := range ds.tallies {
		t.add(ds.reported[name], -1)
		if t != (Tally{}) {
			r.Policies[name] = t
		}
	}
	if len(r.Policies) == 0 {
		return Report{}, false
	}
	if r.Start.IsZero() {
		r.Start = ds.last.Start // the rest that the last report left pending
	}
	ds.reported, ds.since, ds.last = maps.Clone(ds.tallies), time.Time{}, r
	return r, true
}

func (ds *debts) stats(s *Stats) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	s.Policies, s.Buckets, s.Pending, s.Last = maps.Clone(ds.tallies), len(ds.byKey), ds.pending, ds.last
	s.Last.Policies = maps.Clone(ds.last.Policies)
}

// hasDebts reports whether anything is to be charged, or a slot to be released.
func (ds *debts) hasDebts() bool {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return len(ds.byKey)+len(ds.lost) > 0
}

// room shares out the places of debts, so that a client that makes up names or addresses cannot keep the debts of
// others from being charged. Debts of whole tenants, of endpoints and of limits for all, whose number is bounded, may
// take every place. Users and credentials take at most half of the places, one tenant's users at most a sixteenth,
// addresses without a tenant at most a quarter. So a quarter is left for whole tenants.
type room struct {
	most      int
	taken     [kinds]int
	perTenant map[tenantKey]int // places that the users of a tenant take
	all       int
}

// kind says whose debt it is, by how much it matters that it is charged.
type kind uint8

const (
	kindTenant  kind = iota // a whole tenant, an endpoint, or all tenants together
	kindUser                // one of a tenant's users, credentials or addresses
	kindAddress             // an address without a tenant
	kinds       = 3
)

func kindOf(key *policy.Key) kind {
	switch {
	case key.Group == policy.ByIP:
		return kindAddress
	case key.Kind != policy.WholeGroup:
		return kindUser
	default:
		return kindTenant
	}
}

// take takes a place for a new debt, and reports whether there was one.
func (r *room) take(key *policy.Key) bool {
	k := kindOf(key)
	switch {
	case r.all >= r.most,
		k == kindAddress && r.taken[k] >= max(r.most/4, 1),
		k == kindUser && r.taken[k] >= max(r.most/2, 1),
		k == kindUser && r.perTenant[tenantKeyOf(key)] >= max(r.most/16, 1):
		return false
	}
	r.reclaim(key)
	return true
}

// reclaim takes the place of a debt that had one before, even if there is none.
func (r *room) reclaim(key *policy.Key) {
	k := kindOf(key)
	r.all++
	r.taken[k]++
	if k == kindUser {
		whose := tenantKeyOf(key)
		whose.name = strings.Clone(whose.name) // it may be cut from a much larger text
		r.perTenant[whose]++
	}
}

// clear frees all places.
func (r *room) clear() {
	r.all, r.taken = 0, [kinds]int{}
	clear(r.perTenant)
}
