package usage

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

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
	Tenant    string
	Namespace string // of the config that decided
	Tier      string
	Source    string // row, default, or as a config names it: consumer.tag.tier
}

// compare orders tiers by tenant, namespace, tier and source.
func (t Tier) compare(o Tier) int {
	return cmp.Or(strings.Compare(t.Tenant, o.Tenant), strings.Compare(t.Namespace, o.Namespace),
		strings.Compare(t.Tier, o.Tier), strings.Compare(t.Source, o.Source))
}

// names returns the names that a batch has of t.
func (t *Tier) names() [4]string { return [...]string{t.Tenant, t.Namespace, t.Tier, t.Source} }

// countTier records by which tier a request was decided. It does nothing while the requests of a place are decided by
// the same tier. s.mu is held.
func (c *Counter) countTier(s *stripe, rows *placeRows, tenant string, d *decision.Decision) {
	r := &d.Resolution
	if c.options.Routes != nil || tenant == "" || r.Tier == "" ||
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

// cutTiers takes the tiers out of the counter that were seen since the last call, and returns those that are to be
// reported: of tenants that have several, or another than when they were last reported, or that were not reported for a
// while. Of each tenant the one that was seen last comes last. Call it after cut, from one goroutine.
func (c *Counter) cutTiers(now time.Time) []Tier {
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
	all := make([]Tier, 0, len(order))
	for t := range order {
		all = append(all, t)
	}
	slices.SortFunc(all, Tier.compare)
	var due []Tier
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Tenant == all[0].Tenant {
			n++
		}
		slices.SortFunc(all[:n], func(a, b Tier) int { return cmp.Compare(order[a], order[b]) })
		if len(due)+n <= MaxTiers && c.reported.replace(all[:n], now) {
			due = append(due, all[:n]...)
		}
		all = all[n:]
	}
	return due
}

// reportedTiers holds the tier that was reported of each tenant. The zero value is empty.
type reportedTiers map[string]reportedTier

type reportedTier struct {
	tier Tier // the one that was seen last
	at   time.Time
}

// maxReported bounds the tenants of reportedTiers: beyond it all are reported anew.
const maxReported = 100_000

// replace records the tiers of a tenant, and reports whether they are to be reported.
func (r *reportedTiers) replace(tiers []Tier, now time.Time) bool {
	last, known := (*r)[tiers[0].Tenant]
	if known && len(tiers) == 1 && last.tier == tiers[0] && now.Sub(last.at) < repeatTiers {
		return false
	}
	if *r == nil || len(*r) >= maxReported && !known {
		*r = reportedTiers{}
	}
	(*r)[tiers[0].Tenant] = reportedTier{tiers[len(tiers)-1], now}
	return true
}
