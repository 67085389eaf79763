package rows

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The scopes and modes of policies that a guard compares.
const (
	scopeTenant   = "tenant"
	scopeGlobal   = "global"
	scopeEndpoint = "endpoint"
	modeEnforce   = "enforce"
)

// MayDenyAll reports whether p can deny the requests of all tenants: it is shared and enforced, and neither for
// anonymous requests nor for a network.
func (p Policy) MayDenyAll() bool {
	return (p.Scope == scopeGlobal || p.Scope == scopeEndpoint) && p.IP == "" && p.For != schema.ForAnonymous &&
		(p.Mode == "" || p.Mode == modeEnforce) && !p.SoftOnly
}

// LockOut reports a policy that is likely a mistake: it allows all tenants together less than another limit allows one
// of them.
type LockOut struct {
	Key PolicyKey
	Why string
}

// neighbour is a limit that a guard compares.
type neighbour struct {
	Policy
	inConfig bool

	override *Override // whose change the policy has; nil: none
	original *Policy   // without that change; nil: as the policy
}

// String names the limit in words.
func (n neighbour) String() string {
	p := n.Policy
	if n.original != nil {
		p = *n.original
	}
	name := p.Key().String()
	if n.inConfig {
		name += " in the plugin's config"
	}
	if n.override != nil {
		name = fmt.Sprintf("override %d of %s", n.override.ID, name)
	}
	return name
}

// guard compares the written limits of one namespace with each other and with the existing ones. It does no I/O.
type guard struct {
	written  []neighbour
	existing []neighbour
	byName   map[string][]neighbour // both
	tiers    map[string]string      // by tenant, of those whose row sets an existing tier
}

// newGuard returns a guard. It ignores rows with the keys of written policies. A nil config has no limits.
func newGuard(written, rows []Policy, tiers map[string]string, config *resolve.Plan) *guard {
	g := &guard{byName: map[string][]neighbour{}, tiers: tiers}
	isWritten := map[PolicyKey]bool{}
	for _, p := range written {
		isWritten[canonical(p.Key())] = true
		g.written = g.add(g.written, neighbour{Policy: p})
	}
	for _, p := range rows {
		if k := canonical(p.Key()); !isWritten[k] {
			g.existing = g.add(g.existing, neighbour{Policy: p})
		}
	}
	if config != nil {
		for _, p := range config.TenantPolicies() {
			g.existing = g.add(g.existing, neighbour{Policy: configured(config.Namespace(), p), inConfig: true})
		}
	}
	return g
}

func (g *guard) add(list []neighbour, n neighbour) []neighbour {
	g.byName[n.Name] = append(g.byName[n.Name], n)
	return append(list, n)
}

// configured returns the fields of a policy of the plugin's config that a guard compares.
func configured(namespace string, p *policy.Policy) Policy {
	spec := p.Limit.Spec()
	out := Policy{
		Policy: schema.Policy{
			Namespace: namespace,
			Tier:      p.Tier,
			Limit: schema.Limit{
				Name:     p.Name,
				Endpoint: p.Endpoint,
				Scope:    p.Scope.String(),
				Limit:    spec.Quantity,
				Unit:     p.Unit,
				SoftOnly: spec.SoftOnly,
				Mode:     p.Mode.String(),
			},
		},
	}
	out.SetWindow(policy.WindowOf(spec))
	return out
}

// lockOuts returns the written policies that allow all tenants together less than another limit allows one of them,
// each with the first such limit.
func (g *guard) lockOuts() []LockOut {
	shared, own := split(g.written)
	_, existing := split(g.existing)
	own = append(own, existing...)
	var found []LockOut
	for _, all := range shared {
		i := slices.IndexFunc(own, func(one neighbour) bool { return g.conflict(all, one) })
		if i < 0 {
			continue
		}
		one := own[i]
		found = append(found, LockOut{all.Key(), fmt.Sprintf(
			"%s alone allows one tenant %s, which is more than this allows all of them", one, one.Rate())})
	}
	return found
}

// overshoots returns a warning for each existing limit of all tenants that is below what a written policy allows one of
// them. lockOuts reports written limits.
func (g *guard) overshoots() []string {
	_, own := split(g.written)
	shared, _ := split(g.existing)
	var warnings []string
	for _, all := range shared {
		var above []neighbour
		for _, one := range own {
			if g.conflict(all, one) {
				above = append(above, one)
			}
		}
		if len(above) > 0 {
			warnings = append(warnings, overshoot(above, all))
		}
	}
	return warnings
}

func overshoot(above []neighbour, all neighbour) string {
	one := above[0]
	text := fmt.Sprintf("%s allows one tenant %s, which is more than %s allows all of them: %s", one, one.Rate(), all,
		all.Rate())
	switch n := len(above) - 1; n {
	case 0:
		return text
	case 1:
		return text + "; and 1 more does so"
	default:
		return fmt.Sprintf("%s; and %d more do so", text, n)
	}
}

// split returns the limits that can deny all tenants, and those per tenant.
func split(list []neighbour) (shared, own []neighbour) {
	for _, n := range list {
		switch {
		case n.MayDenyAll():
			shared = append(shared, n)
		case n.Scope == scopeTenant:
			own = append(own, n)
		}
	}
	return shared, own
}

// conflict reports whether a request can have both limits and the first allows all tenants less than the second allows
// one of them. A limit with an override conflicts only if the limit without it does not.
func (g *guard) conflict(all, one neighbour) bool {
	if one.original != nil && slower(all.Policy, *one.original) {
		return false
	}
	return slower(all.Policy, one.Policy) && g.coincide(all.Policy, one.Policy) &&
		!g.replaced(all, one) && !g.replaced(one, all)
}

// coincide reports whether one request can have both limits. A request has one tenant and one tier, and a tenant whose
// row sets none may have any tier. Of two limits of one name one replaces the other. Two endpoints must have a request
// in common.
func (g *guard) coincide(a, b Policy) bool {
	x, y := a.Key(), b.Key()
	switch {
	case x.Name == y.Name:
		return false
	case x.Tenant != "" && y.Tenant != "" && x.Tenant != y.Tenant:
		return false
	case x.Tier != "" && y.Tier != "" && x.Tier != y.Tier:
		return false
	case !g.mayHave(x.Tenant, y.Tier), !g.mayHave(y.Tenant, x.Tier):
		return false
	}
	return policy.Overlap(x.Endpoint, y.Endpoint)
}

// mayHave reports whether requests of a tenant can have a tier; "" is any of either.
func (g *guard) mayHave(tenant, tier string) bool {
	own := g.tiers[tenant]
	return tier == "" || own == "" || own == tier
}

// replaced reports whether a more specific row replaces a in all requests that a and b have in common.
func (g *guard) replaced(a, b neighbour) bool {
	for _, row := range g.byName[a.Name] {
		if row.inConfig || row.User != "" || rank(row) <= rank(a) {
			continue
		}
		tenant := row.Tenant != "" && (row.Tenant == a.Tenant || row.Tenant == b.Tenant)
		tier := row.Tier != "" && (row.Tier == a.Tier || row.Tier == b.Tier) || row.For == schema.ForAll
		at := canonical(row.Key()).Endpoint
		where := at == "" || at == canonical(a.Key()).Endpoint || at == canonical(b.Key()).Endpoint
		if (tenant || tier) && where {
			return true
		}
	}
	return false
}

// rank orders limits of one name by precedence: the config, then a row for all requests, of a tier, and of a tenant. No
// other row replaces a limit in all requests of a tenant.
func rank(n neighbour) int {
	switch {
	case n.inConfig:
		return 0
	case n.For == schema.ForAll:
		return 1
	case n.Tenant == "":
		return 2
	}
	return 3
}

// slower reports whether a allows fewer tokens in the same time than b, or fewer requests at once. Of limits of these
// two kinds, and of two units, none is slower.
func slower(a, b Policy) bool {
	if a.Unit != b.Unit {
		return false
	}
	x, y := a.Window().Seconds(), b.Window().Seconds()
	if atOnce := a.MaxDuration != 0; atOnce || b.MaxDuration != 0 {
		return atOnce && b.MaxDuration != 0 && a.Limit.Limit < b.Limit.Limit
	}
	high, low := bits.Mul64(uint64(a.Limit.Limit), uint64(y))
	otherHigh, otherLow := bits.Mul64(uint64(b.Limit.Limit), uint64(x))
	return high < otherHigh || (high == otherHigh && low < otherLow)
}
