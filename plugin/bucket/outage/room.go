package outage

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// room shares the places of a ledger out, so that nobody who makes up names or addresses can keep others from being
// charged after an outage. Debts of whole tenants, of endpoints and of everybody, of which there are only so many, may
// take every place. Those of users and credentials together take half at most, of which one tenant's take an eighth at
// most, and those of addresses without a tenant take a quarter. So a quarter is there for whole tenants alone.
type room struct {
	most   int
	taken  [kinds]int
	owners map[owner]int // places that the users of a tenant take
	all    int
}

// kind is who is in debt, by how much it matters that they are charged.
type kind uint8

const (
	kindTenant  kind = iota // a whole tenant, an endpoint, or everybody
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

func newRoom(most int) room { return room{most: most, owners: map[owner]int{}} }

// take takes a place for a new debt, and reports whether there was one.
func (r *room) take(key *policy.Key) bool {
	k := kindOf(key)
	switch {
	case r.all >= r.most,
		k == kindAddress && r.taken[k] >= max(r.most/4, 1),
		k == kindUser && r.taken[k] >= max(r.most/2, 1),
		k == kindUser && r.owners[ownerOf(key)] >= max(r.most/16, 1):
		return false
	}
	r.reclaim(key)
	return true
}

// reclaim takes the place of a debt that had one before, though there may be none.
func (r *room) reclaim(key *policy.Key) {
	k := kindOf(key)
	r.all++
	r.taken[k]++
	if k == kindUser {
		whose := ownerOf(key)
		whose.name = strings.Clone(whose.name) // it may be cut from a much larger text
		r.owners[whose]++
	}
}

// clear makes all places free.
func (r *room) clear() {
	r.all, r.taken = 0, [kinds]int{}
	clear(r.owners)
}

func ownerOf(key *policy.Key) owner { return owner{key.Group, key.GroupID} }
