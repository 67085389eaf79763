package metrics

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

const (
	defaultBusiest = 500
	// rotateEvery is the least time between two choices of the busiest tenants. The series of a tenant that loses its
	// label stay as long: longer than the pause between two scrapes, so that no count is lost.
	rotateEvery = time.Minute
	// idleAfter is the time without requests after which a tenant loses its label.
	idleAfter = time.Hour
	// nameBytes bounds the ids that can be labels.
	nameBytes = 256
	// lanesEach is the number of lanes for each tenant with a label, on average.
	lanesEach = 20
	// candidatesEach is the number of candidates for each label.
	candidatesEach = 4
)

// TenantLabels selects the tenants with an org_id of their own. All others are "other".
type TenantLabels struct {
	// Busiest is the number of tenants with a label, those with the most requests. 0: 500; negative: none. Thousands are
	// possible, and cost their series in Prometheus: one for each endpoint, tier and result.
	Busiest int
	// Always lists the ids of tenants that always have a label, and do not count as Busiest. Invalid ids are left out.
	Always []string
}

// Validate returns an error for the ids of Always that cannot be labels: empty and long ones, invalid UTF-8, and
// reserved words.
func (l TenantLabels) Validate() error {
	var errs []error
	for _, id := range l.Always {
		if !canBeLabel(id) {
			errs = append(errs, fmt.Errorf("%.40q cannot be a label: it must be UTF-8, 1 to %d bytes, and neither %s nor %s",
				id, nameBytes, other, none))
		}
	}
	return errors.Join(errs...)
}

// tenants chooses the tenants with a label, and counts their requests.
//
// While there is room, a tenant has its own label from its first request on. After that, new tenants count as other,
// and are candidates. Each minute the candidates that sent more than the least busy labelled tenants replace them, at
// most a quarter of all, and all scores are halved.
//
// A tenant that loses its label keeps its series for another minute without new counts, and its requests count as
// other. So every scraper reads the last value of a series before it ends, and no request is lost or counted twice. A
// tenant that gets a label again begins at 0, which Prometheus treats as the restart of a counter.
type tenants struct {
	busiest  int // number of labels
	labelled atomic.Pointer[map[string]*tenant]
	free     atomic.Int64 // number of labels that are free
	lanes    atomic.Int64 // of all tenants
	ceiling  int64        // of lanes

	anonymous, other *tenant
	candidates       candidates

	mu        sync.Mutex // guards changes of labelled and leaving, and the scores
	leaving   map[string]*tenant
	rotatedAt time.Time
}

func newTenants(labels TenantLabels) *tenants {
	if labels.Busiest == 0 {
		labels.Busiest = defaultBusiest
	}
	t := &tenants{
		busiest: max(labels.Busiest, 0), anonymous: newTenant(none), other: newTenant(other),
		leaving: map[string]*tenant{}, rotatedAt: time.Now(),
	}
	labelled := map[string]*tenant{}
	for _, id := range labels.Always {
		if canBeLabel(id) {
			labelled[id] = newTenant(id)
			labelled[id].always = true
		}
	}
	t.labelled.Store(&labelled)
	t.free.Store(int64(t.busiest))
	t.ceiling = int64(max(maxSeries, lanesEach*(t.busiest+len(labelled))))
	t.candidates = candidates{most: candidatesEach * t.busiest, scores: map[string]*uint64{}}
	return t
}

// candidates counts the requests of tenants without a label: of those that come first while there is room. Each minute
// makes room: it drops all but the busiest, and halves the scores. So the more a tenant sends, the sooner it is among
// them, however many others there are.
type candidates struct {
	most int

	mu     sync.Mutex
	scores map[string]*uint64 // by id
}

// count counts a request. It skips the request while another one is counted: an estimate is not worth a wait.
func (c *candidates) count(id string) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if score := c.scores[id]; score != nil {
		*score++
	} else if len(c.scores) < c.most {
		c.scores[strings.Clone(id)] = new(uint64(1)) // an id may be a part of something longer
	}
}

// canBeLabel reports whether an id can be a label: it is no reserved word, and no other id becomes the same label.
func canBeLabel(id string) bool {
	return id != "" && id != other && id != none && len(id) <= nameBytes && utf8.ValidString(id)
}

func (t *tenants) byIdentity(id *identity.Identity) *tenant {
	if id.Tenant.Kind != identity.Tenant {
		return t.anonymous
	}
	if who, ok := (*t.labelled.Load())[id.Tenant.ID]; ok {
		return who
	}
	return t.byUnlabelled(id.Tenant.ID)
}

func (t *tenants) byUnlabelled(id string) *tenant {
	if t.busiest == 0 || !canBeLabel(id) {
		return t.other
	}
	if t.free.Load() > 0 {
		if who := t.addLabel(id); who != nil {
			return who
		}
	}
	t.candidates.count(id)
	return t.other
}

// addLabel gives a tenant a label of its own if there is room.
func (t *tenants) addLabel(id string) *tenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	labelled := *t.labelled.Load()
	if who, ok := labelled[id]; ok {
		return who // another goroutine was faster
	}
	if t.free.Load() <= 0 {
		return nil
	}
	more := maps.Clone(labelled)
	who := t.label(more, id)
	t.labelled.Store(&more)
	return who
}

// label adds a tenant to the labelled ones; one that was leaving continues its series. t.mu is held.
func (t *tenants) label(labelled map[string]*tenant, id string) *tenant {
	who, ok := t.leaving[id]
	if ok {
		delete(t.leaving, id)
	} else {
		who = newTenant(id)
	}
	who.active = time.Now()
	labelled[who.name] = who
	t.free.Add(-1)
	return who
}

// unlabel takes the label of a tenant. t.mu is held.
func (t *tenants) unlabel(labelled map[string]*tenant, who *tenant) {
	delete(labelled, who.name)
	t.leaving[who.name] = who
	t.free.Add(1)
}

// rotate chooses the labelled tenants again, if rotateEvery has passed. t.mu is held.
func (t *tenants) rotate(now time.Time) {
	halvings := int64(now.Sub(t.rotatedAt) / rotateEvery)
	if halvings <= 0 {
		return
	}
	t.rotatedAt = now
	clear(t.leaving) // their series end
	labelled := maps.Clone(*t.labelled.Load())
	byScore := t.updateScores(labelled, now)
	moves := max(t.busiest/4, 1)
	moves -= t.exchange(labelled, byScore, moves, halvings)
	for _, who := range byScore {
		if moves > 0 && now.Sub(who.active) >= idleAfter && labelled[who.name] == who {
			t.unlabel(labelled, who)
			moves--
		}
	}
	t.labelled.Store(&labelled)

	lanes := t.anonymous.size() + t.other.size()
	for _, who := range labelled {
		who.score = math.Ldexp(who.score, -int(min(halvings, 1000)))
		who.dropIdleBuckets(now)
		lanes += who.size()
	}
	for _, who := range t.leaving {
		lanes += who.size()
	}
	t.lanes.Store(int64(lanes))
}

// updateScores adds the requests since the last rotation to the scores. It returns the tenants that may lose their
// labels, the least busy first.
func (t *tenants) updateScores(labelled map[string]*tenant, now time.Time) []*tenant {
	byScore := make([]*tenant, 0, len(labelled))
	for _, who := range labelled {
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

// exchange gives the labels of the least busy to candidates that are busier by a quarter, so that tenants of similar
// traffic do not alternate. It returns the number of exchanges. The busier half of the candidates stays.
func (t *tenants) exchange(labelled map[string]*tenant, byScore []*tenant, most int, halvings int64) (n int) {
	c := &t.candidates
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.scores, func(id string, _ *uint64) bool { return labelled[id] != nil }) // it was given one since
	busiest := slices.SortedFunc(maps.Keys(c.scores), func(a, b string) int {
		return cmp.Or(cmp.Compare(*c.scores[b], *c.scores[a]), cmp.Compare(a, b))
	})
	for ; n < min(len(busiest), len(byScore), most); n++ {
		out, id := byScore[n], busiest[n]
		score := *c.scores[id]
		if float64(score) <= out.score*1.25 {
			break
		}
		t.unlabel(labelled, out)
		delete(c.scores, id)
		c.scores[out.name] = new(uint64(out.score))
		who := t.label(labelled, id)
		who.score, who.scored = float64(score), who.total()
	}
	for _, id := range busiest[min(len(busiest), c.most/2):] {
		delete(c.scores, id)
	}
	for id, score := range c.scores {
		if *score >>= halvings; *score == 0 {
			delete(c.scores, id)
		}
	}
	return n
}
