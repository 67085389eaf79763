package policy

import (
	"maps"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// zoneCache keeps the variants of a policy by time zone. Its key is a zone of the embedded data, which bounds it.
type zoneCache = atomic.Pointer[map[string]*Policy]

// InZone returns the policy with its calendar in a time zone: that of the tenant that the bucket belongs to. The policy
// itself is returned if it has no calendar, or for "". The first request that needs a zone derives the variant; later
// ones get the cached one.
func (p *Policy) InZone(zone string) *Policy {
	if p.zones == nil || zone == "" {
		return p
	}
	for {
		cached := p.zones.Load()
		if variant := (*cached)[zone]; variant != nil {
			return variant
		}
		variants := maps.Clone(*cached)
		variants[zone] = p.inZone(zone)
		p.zones.CompareAndSwap(cached, &variants) // if another request was faster, this one gets its result
	}
}

func (p *Policy) inZone(zone string) *Policy {
	spec := p.Limit.Spec()
	zoned, err := spec.Calendar.In(zone)
	if err != nil || zoned == spec.Calendar {
		return p
	}
	spec.Calendar, spec.Burst = zoned, 0 // a window has no burst
	compiled, err := limit.New(spec)
	if err != nil {
		return p
	}
	return p.withLimit(compiled)
}

// withLimit returns the policy with another limit, which is in the zone that it has.
func (p *Policy) withLimit(l limit.Limit) *Policy {
	changed := *p
	changed.Limit, changed.zones = l, nil
	changed.Quota = changed.quotaItem()
	return &changed
}

// cacheZones gives a policy that was copied or compiled a cache of its own.
func (p *Policy) cacheZones() {
	if p.zones = nil; p.Limit.Calendar() != nil {
		p.zones = new(zoneCache)
		p.zones.Store(&map[string]*Policy{})
	}
}

// IsZone reports whether text is the name of a time zone, or "", which stands for UTC.
func IsZone(text string) bool {
	_, err := calendar.Location(text)
	return text == "" || err == nil
}

// Zone returns the time zone of the tenant's row, or "" if it has no row, or none that is known.
func (a *TenantRows) Zone() string {
	if a == nil || !a.knowsZone {
		return ""
	}
	return a.timeZone
}
