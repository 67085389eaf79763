package outage

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
