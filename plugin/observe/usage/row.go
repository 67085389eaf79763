package usage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

const (
	// MaxDenials bounds the tenants with denials in a batch.
	MaxDenials = 512
	// maxDenied bounds the tenants with denials of all stripes. The denials of further ones count in rows only.
	maxDenied = 4096
)

// Denials counts why requests of a tenant were denied, and from how many.
type Denials struct {
	Tenant      string `json:"tenant"`
	Limited     int64  `json:"limited,omitzero"`     // by limits of the tenant that had no room, or by the meta limit
	Penalized   int64  `json:"penalized,omitzero"`   // of Limited: only by limits that a penalty has lowered
	Unavailable int64  `json:"unavailable,omitzero"` // only because the central store was away
	Users       Sketch `json:"users,omitzero"`       // of Limited, as the next two
	Addresses   Sketch `json:"addresses,omitzero"`
	Credentials Sketch `json:"credentials,omitzero"`
}

func (n *Denials) valid() bool {
	return n.Limited >= 0 && n.Limited <= maxCount && n.Penalized >= 0 && n.Penalized <= n.Limited &&
		n.Unavailable >= 0 && n.Unavailable <= maxCount && n.Users.valid() && n.Addresses.valid() && n.Credentials.valid()
}

// Merge adds the denials of another process or time.
func (n *Denials) Merge(o *Denials) {
	n.Limited = sum(n.Limited, o.Limited)
	n.Penalized = sum(n.Penalized, o.Penalized)
	n.Unavailable = sum(n.Unavailable, o.Unavailable)
	n.Users.Merge(&o.Users)
	n.Addresses.Merge(&o.Addresses)
	n.Credentials.Merge(&o.Credentials)
}

// cause says why limits denied a request.
type cause struct {
	limited     bool // limits of the tenant itself had no room
	penalized   bool // and a penalty has lowered each of these
	unavailable bool // a limit denied because the central store was away: by fail mode closed, or by a node's share
}

// causeOf returns why limits denied a request. A limit that tenants share may be full because of others, and a node's
// share of a limit while the store is away because of the outage. Bans and missing names are no limits.
func causeOf(d *decision.Decision) cause {
	if d.Reason != decision.Counted {
		return cause{limited: d.Reason == decision.MetaLimited, unavailable: d.Reason == decision.StoreAway}
	}
	of := cause{penalized: true}
	for i := range d.Resolution.Bounds {
		b, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		switch {
		case !decision.Denies(b, status):
		case status.Source == decision.Local || status.Source == decision.Unanswered:
			of.unavailable = true
		case !b.Key.Shared():
			of.limited, of.penalized = true, of.penalized && b.Penalty != 0
		}
	}
	return of
}

// countDenial counts why a request was denied, if there is room for its tenant. s.mu is held.
func (c *Counter) countDenial(s *stripe, tenant string, d *decision.Decision) {
	of := causeOf(d)
	if tenant == "" || !of.limited && !of.unavailable {
		return
	}
	n := s.denials[tenant]
	if n == nil {
		if c.denied.Add(1) > maxDenied {
			c.denied.Add(-1)
			c.dropped.Add(1)
			return
		}
		n = &Denials{Tenant: strings.Clone(tenant)}
		if s.denials == nil {
			s.denials = map[string]*Denials{}
		}
		s.denials[n.Tenant] = n
	}
	if !of.limited {
		n.Unavailable++
		return
	}
	n.Limited++
	if of.penalized {
		n.Penalized++
	}
	id := &d.Identity
	if id.User.Kind == identity.User {
		n.Users.add(id.User.ID)
	}
	if id.IP != "" {
		n.Addresses.add(id.IP)
	}
	if id.Credential != "" {
		n.Credentials.add(id.Credential)
	}
}

// cutDenials takes all denials out of the counter, sorted by tenant.
func (c *Counter) cutDenials() (all []Denials) {
	byTenant := map[string]*Denials{}
	for i := range c.stripes {
		s := &c.stripes[i]
		s.mu.Lock()
		taken := s.denials
		s.denials = nil
		c.denied.Add(-int64(len(taken)))
		s.mu.Unlock()
		for _, n := range taken {
			n.Tenant = clean(n.Tenant)
			if have := byTenant[n.Tenant]; have != nil {
				have.Merge(n)
			} else {
				byTenant[n.Tenant] = n
			}
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(byTenant)) {
		all = append(all, *byTenant[tenant])
	}
	return all
}

// Key identifies a row.
type Key struct {
	Tenant   string `json:"tenant,omitzero"`   // "": none
	Endpoint string `json:"endpoint,omitzero"` // a pattern or the name of a route; "": none
	Policy   string `json:"policy,omitzero"`   // the text of a policy.Ref; "": the row counts requests
}

// Counts holds the numbers of a row. Make it with noCounts: the zero value has nothing left of a limit.
type Counts struct {
	Admitted     int64 `json:"admitted,omitzero"`      // requests
	Soft         int64 `json:"soft,omitzero"`          // of these, the ones above the soft threshold
	Denied       int64 `json:"denied,omitzero"`        // requests
	ShadowDenied int64 `json:"shadow_denied,omitzero"` // requests that shadow or log mode kept from being denied
	Cost         int64 `json:"cost,omitzero"`          // tokens charged, with settlements; 0 in the row without a policy
	Remaining    int64 `json:"remaining"`              // the least left of the policy's limit; NoRemaining: unknown

	// Unit is that of the policy: Cost and Remaining of usd are millionths of a US dollar. "": they are tokens.
	Unit string `json:"unit,omitzero"`
}

// NoRemaining means that nothing is recorded of what was left of a limit.
const NoRemaining = -1

// maxCount bounds each number of a row: sums stop there.
const maxCount = 1 << 53

var noCounts = Counts{Remaining: NoRemaining}

// Add adds the numbers of another row of the same key.
func (c *Counts) Add(o Counts) {
	c.Admitted = sum(c.Admitted, o.Admitted)
	c.Soft = sum(c.Soft, o.Soft)
	c.Denied = sum(c.Denied, o.Denied)
	c.ShadowDenied = sum(c.ShadowDenied, o.ShadowDenied)
	c.Cost = sum(c.Cost, o.Cost)
	if o.Remaining != NoRemaining {
		c.lower(o.Remaining)
	}
}

// lower records what was left of a limit.
func (c *Counts) lower(remaining int64) {
	if remaining = min(max(remaining, 0), maxCount); c.Remaining == NoRemaining || remaining < c.Remaining {
		c.Remaining = remaining
	}
}

func sum(a, b int64) int64 {
	return min(max(a+min(max(b, -maxCount), maxCount), -maxCount), maxCount)
}

func (c *Counts) valid() bool {
	return min(c.Admitted, c.Soft, c.Denied, c.ShadowDenied) >= 0 && c.Cost >= -maxCount && c.Remaining >= NoRemaining &&
		max(c.Admitted, c.Soft, c.Denied, c.ShadowDenied, c.Cost, c.Remaining) <= maxCount &&
		(c.Unit == "" || c.Unit == "usd")
}

// Row counts what happened under one key.
type Row struct {
	Key
	Counts
}

const (
	// MaxTiers bounds the tiers in a batch. Further ones are reported when they are seen again.
	MaxTiers = 1024
	// maxSeen bounds the tiers of all tenants between two batches.
	maxSeen = 16 * MaxTiers
	// repeatTiers is how often a tier is reported that does not change.
	repeatTiers = 5 * time.Minute
)

// Tier is a tier that requests of a tenant were decided by, and where it was found.
type Tier struct {
	Tenant    string `json:"tenant"`
	Namespace string `json:"namespace"` // of the config that decided
	Tier      string `json:"tier"`
	Source    string `json:"source"` // row, default, or as a config names it: consumer.tag.tier
}

// countTier records by which tier a request was decided. It does nothing while the requests of a place are decided by
// the same tier. s.mu is held.
func (c *Counter) countTier(s *stripe, rows *placeRows, tenant string, d *decision.Decision) {
	r := &d.Resolution
	if c.Routes != nil || tenant == "" || r.Tier == "" ||
		rows.tier.Tier == r.Tier && rows.tier.Source == r.TierSource && rows.tier.Namespace == r.Namespace {
		return
	}
	rows.tier = Tier{strings.Clone(tenant), r.Namespace, strings.Clone(r.Tier), r.TierSource}
	if _, known := s.tiers[rows.tier]; !known {
		if c.tiers.Add(1) > maxSeen {
			c.tiers.Add(-1)
			return
		}
		if s.tiers == nil {
			s.tiers = map[Tier]uint64{}
		}
	}
	s.tiers[rows.tier] = c.tierOrder.Add(1)
}

// cutTiers takes the tiers out of the counter, in the order in which they were seen last, and returns those that are to
// be reported: of a tenant another one than was last reported of it, or one that was not reported for a while. Call it
// after cut, from one goroutine.
func (c *Counter) cutTiers(now time.Time) (due []Tier) {
	order := map[Tier]uint64{}
	for i := range c.stripes {
		s := &c.stripes[i]
		s.mu.Lock()
		seen := s.tiers
		s.tiers = nil
		s.mu.Unlock()
		c.tiers.Add(-int64(len(seen)))
		for t, at := range seen {
			t = Tier{clean(t.Tenant), clean(t.Namespace), clean(t.Tier), clean(t.Source)}
			order[t] = max(order[t], at)
		}
	}
	inOrder := func(a, b Tier) int { return cmp.Compare(order[a], order[b]) }
	for _, t := range slices.SortedFunc(maps.Keys(order), inOrder) {
		if len(due) < MaxTiers && c.reported.replace(t, now) {
			due = append(due, t)
		}
	}
	return due
}

// reportedTiers holds the tier that was last reported of each tenant. The zero value is empty.
type reportedTiers map[string]reportedTier

type reportedTier struct {
	Tier
	at time.Time
}

// maxReported bounds the tenants of reportedTiers: beyond it all are reported anew.
const maxReported = 100_000

// replace records a tier, and reports whether it is to be reported.
func (r *reportedTiers) replace(t Tier, now time.Time) bool {
	last, known := (*r)[t.Tenant]
	if known && last.Tier == t && now.Sub(last.at) < repeatTiers {
		return false
	}
	if *r == nil || len(*r) >= maxReported && !known {
		*r = reportedTiers{}
	}
	(*r)[t.Tenant] = reportedTier{t, now}
	return true
}
