package metrics

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
)

const (
	defaultBusiest = 500
	// turnEvery is how often it is looked at who is busiest, and how long the series of a tenant that is not any more stay
	// after its last request was counted: longer than the pause between two scrapes, so that no count is lost.
	turnEvery = time.Minute
	// idleAfter is how long a tenant may be silent that nobody wants to take the place of.
	idleAfter = time.Hour
	// nameBytes is how long a tenant's id may be to become a label.
	nameBytes = 256
	// lanesEach is how many lanes there are for each tenant with a label, on average.
	lanesEach = 20
)

// TenantLabels says which tenants are told apart by the label org_id. All others are "other".
type TenantLabels struct {
	// Busiest is how many are, those who send the most requests. 0: 500; negative: none. Thousands are possible, and
	// cost their series in Prometheus: one for each endpoint, tier and result.
	Busiest int
	// Always are the ids of tenants that are in any case, and do not count as Busiest. What Validate refuses is left out.
	Always []string
}

// Validate tells which of Always cannot be labels: empty ids, long ones, those that are no text, and our own words.
func (l TenantLabels) Validate() error {
	var errs []error
	for _, id := range l.Always {
		if !nameable(id) {
			errs = append(errs, fmt.Errorf("%.40q cannot be a label: it must be UTF-8, 1 to %d bytes, and neither %s nor %s", id, nameBytes, other, none))
		}
	}
	return errors.Join(errs...)
}

// tenants decides who has a label, and keeps what is counted by it.
//
// While there is room, a tenant has its own label from its first request on. When there is none, its requests count as
// other's and are counted in a sketch; each minute those of the sketch that sent more than the least busy take their
// places, at most a quarter of all, and what was counted is worth half. A tenant that leaves keeps its series for
// another minute, in which nothing is added to them: so every scraper reads the last value of a series before it ends,
// and what the tenant sends from then on is other's. Nothing is counted twice or lost. One that comes back later begins
// at 0, which Prometheus takes for the restart of a counter.
type tenants struct {
	busiest int // how many
	known   atomic.Pointer[map[string]*tenant]
	free    atomic.Int64 // how many more may be known
	lanes   atomic.Int64 // of all tenants
	ceiling int64        // of lanes

	strangers, other *tenant
	rest             *sketch // of those who are not known

	mu      sync.Mutex // who is known, or leaves; their scores
	leaving map[string]*tenant
	turned  time.Time
}

func newTenants(labels TenantLabels) *tenants {
	if labels.Busiest == 0 {
		labels.Busiest = defaultBusiest
	}
	t := &tenants{
		busiest: max(labels.Busiest, 0), strangers: newTenant(none), other: newTenant(other),
		leaving: map[string]*tenant{}, turned: time.Now(),
	}
	known := map[string]*tenant{}
	for _, id := range labels.Always {
		if nameable(id) {
			known[id] = newTenant(id)
			known[id].always = true
		}
	}
	t.known.Store(&known)
	t.free.Store(int64(t.busiest))
	t.ceiling = int64(max(maxSeries, lanesEach*(t.busiest+len(known))))
	t.rest = newSketch(t.busiest)
	return t
}

// nameable tells whether an id can be a label of its own: it is none of our words, and no other id looks like it.
func nameable(id string) bool {
	return id != "" && id != other && id != none && len(id) <= nameBytes && utf8.ValidString(id)
}

// of is whom a request counts for.
func (t *tenants) of(id *identity.Identity) *tenant {
	if id.Tenant.Kind != identity.Tenant {
		return t.strangers
	}
	if who, ok := (*t.known.Load())[id.Tenant.ID]; ok {
		return who
	}
	return t.ofUnknown(id.Tenant.ID)
}

func (t *tenants) ofUnknown(id string) *tenant {
	if t.busiest == 0 || !nameable(id) {
		return t.other
	}
	if t.free.Load() > 0 {
		if who := t.welcome(id); who != nil {
			return who
		}
	}
	t.rest.count(id)
	return t.other
}

// welcome gives a tenant a label of its own if there is room.
func (t *tenants) welcome(id string) *tenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := *t.known.Load()
	if who, ok := known[id]; ok {
		return who // welcomed in the meantime
	}
	if t.free.Load() <= 0 {
		return nil
	}
	more := maps.Clone(known)
	who := t.enter(more, id)
	t.rest.remove(id)
	t.known.Store(&more)
	return who
}

// enter adds a tenant to those who are to be known; one that was about to leave goes on from where it was. t.mu is held.
func (t *tenants) enter(known map[string]*tenant, id string) *tenant {
	who, ok := t.leaving[id]
	if ok {
		delete(t.leaving, id)
	} else {
		who = newTenant(id)
	}
	who.active = time.Now()
	known[who.name] = who
	t.free.Add(-1)
	return who
}

// leave ends that a tenant is known. t.mu is held.
func (t *tenants) leave(known map[string]*tenant, who *tenant) {
	delete(known, who.name)
	t.leaving[who.name] = who
	t.free.Add(1)
}

// turn chooses anew who is known, if it is time. t.mu is held.
func (t *tenants) turn(now time.Time) {
	halvings := int64(now.Sub(t.turned) / turnEvery)
	if halvings <= 0 {
		return
	}
	t.turned = now
	clear(t.leaving) // their series end
	known := maps.Clone(*t.known.Load())
	byScore := t.scored(known, now)
	moves := max(t.busiest/4, 1)
	moves -= t.exchange(known, byScore, moves)
	for _, who := range byScore {
		if moves > 0 && now.Sub(who.active) >= idleAfter && known[who.name] == who {
			t.leave(known, who)
			moves--
		}
	}
	t.known.Store(&known)

	t.rest.decay(uint(min(halvings, 63)))
	lanes := t.strangers.size() + t.other.size()
	for _, who := range known {
		who.score = math.Ldexp(who.score, -int(min(halvings, 1000)))
		who.forget(now)
		lanes += who.size()
	}
	for _, who := range t.leaving {
		lanes += who.size()
	}
	t.lanes.Store(int64(lanes))
}

// scored adds to the scores what was counted since the last turn. It returns the tenants that may lose their places,
// the least busy first.
func (t *tenants) scored(known map[string]*tenant, now time.Time) []*tenant {
	byScore := make([]*tenant, 0, len(known))
	for _, who := range known {
		if who.always {
			continue
		}
		total := who.total()
		if total > who.scored {
			who.active = now
		}
		who.score, who.scored = who.score+float64(total-who.scored), total
		byScore = append(byScore, who)
	}
	slices.SortFunc(byScore, func(a, b *tenant) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
	})
	return byScore
}

// exchange gives the places of the least busy to those of the sketch who are clearly busier: by a quarter, so that
// equals do not change places all the time. It returns how many have left.
func (t *tenants) exchange(known map[string]*tenant, byScore []*tenant, most int) int {
	candidates := slices.DeleteFunc(t.rest.candidates(), func(c candidate) bool { return known[c.id] != nil })
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.sure, a.sure), cmp.Compare(a.id, b.id))
	})
	n := min(len(candidates), len(byScore), most)
	for i := range n {
		out, in := byScore[i], candidates[i]
		if float64(in.sure) <= out.score*1.25 {
			return i
		}
		t.leave(known, out)
		t.rest.remove(in.id)
		t.rest.put(out.name, uint64(out.score))
		who := t.enter(known, in.id)
		who.score, who.scored = float64(in.sure), who.total()
	}
	return n
}

// shown are all that have series: tenants that are known or leave, other and strangers. t.mu is held.
func (t *tenants) shown() []*tenant {
	all := []*tenant{t.strangers, t.other}
	all = slices.AppendSeq(all, maps.Values(*t.known.Load()))
	return slices.AppendSeq(all, maps.Values(t.leaving))
}
