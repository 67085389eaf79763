package pgstore

import (
	"fmt"
	"math/bits"
)

// What the scopes and modes of a policy are called, as far as a guard asks for them.
const (
	scopeTenant   = "tenant"
	scopeGlobal   = "global"
	scopeEndpoint = "endpoint"
	modeEnforce   = "enforce"
)

// Shared reports whether p counts the requests of all tenants together.
func (p Policy) Shared() bool { return p.Scope == scopeGlobal || p.Scope == scopeEndpoint }

// MayDenyAll reports whether p can deny the requests of all tenants: it is shared, active and enforced.
func (p Policy) MayDenyAll() bool {
	return p.Shared() && (p.Mode == "" || p.Mode == modeEnforce) && !p.SoftOnly && p.Slot != SlotCandidate
}

// LocksOut returns why p is likely a mistake: it allows all tenants together less than one of the other policies allows
// a single tenant. "" means that it does not, or that p cannot deny all tenants. Others that no request can meet together
// with p do not count.
func LocksOut(p Policy, others []Policy) string {
	if !p.MayDenyAll() {
		return ""
	}
	key := p.Key()
	for _, other := range others {
		k := other.Key()
		if other.Scope == scopeTenant && k.Namespace == key.Namespace && k.Slot == SlotActive && meet(key, k) && slower(p, other) {
			return fmt.Sprintf("%s alone allows one tenant %d per %d s, which is more than this allows all of them", k, other.Limit, other.WindowSize)
		}
	}
	return ""
}

// meet reports whether one request can have both policies: those of two tiers, or of two tenants, it cannot. A tenant may
// be of any tier.
func meet(a, b PolicyKey) bool {
	if a.Tenant != "" && b.Tenant != "" {
		return a.Tenant == b.Tenant
	}
	return a.Tenant != "" || b.Tenant != "" || a.Tier == b.Tier
}

// slower reports whether a allows fewer tokens in the same time than b.
func slower(a, b Policy) bool {
	high, low := bits.Mul64(uint64(a.Limit), uint64(b.WindowSize))
	otherHigh, otherLow := bits.Mul64(uint64(b.Limit), uint64(a.WindowSize))
	return high < otherHigh || (high == otherHigh && low < otherLow)
}
