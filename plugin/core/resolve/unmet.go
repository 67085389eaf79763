package resolve

import (
	"fmt"
	"net/netip"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Unmet returns why no request under the config meets a row, and the field that is the cause, or "".
func (p *Plan) Unmet(row schema.Policy) (field, problem string) {
	switch {
	case row.User != "" && p.lacksUsers():
		return "user", "the config's user_from is empty, so requests name no user: the policy applies to none"
	case row.For == schema.ForAnonymous && !p.limitsAnonymous():
		return "for", fmt.Sprintf("the config's on_missing_tenant is %s, so requests without a tenant have no limits of "+
			"their own: the policy applies to none", p.config.OnMissingTenant)
	case row.IP != "":
		return "ip", UncountedNetwork(p, row.IP)
	}
	return "", ""
}

// UncountedNetwork returns why no request has a limit for a network alone: the config counts more addresses of IPv6
// together. It returns "" if requests have one. A nil plan is unknown: its config may count fewer addresses together.
func UncountedNetwork(plan *Plan, text string) string {
	counted, unless := defaultIPv6Prefix, "unless the plugin's config has another ipv6_prefix_length, "
	if plan != nil {
		counted, unless = plan.Rules.IPv6Prefix, ""
	}
	prefix, err := policy.ParseNetwork(text)
	if err != nil || prefix.Addr().Is4() || prefix.Bits() <= counted {
		return ""
	}
	whole := netip.PrefixFrom(prefix.Addr(), counted).Masked()
	return fmt.Sprintf("%sall addresses of %s count together, so no request has a limit for a part of it: write %s",
		unless, whole, whole)
}

// defaultIPv6Prefix is how many leading bits of an address of IPv6 count together by default.
const defaultIPv6Prefix = 64

// lacksUsers reports whether no request under the config names a user.
func (p *Plan) lacksUsers() bool { return len(p.config.UserFrom) == 0 && !p.forCallers }

// limitsAnonymous reports whether requests without a tenant have limits besides the limits of all requests.
func (p *Plan) limitsAnonymous() bool {
	return p.config.OnMissingTenant == "" || p.config.OnMissingTenant == schema.MissingTenantLimitByIP
}

// unmetFaults returns one fault for each reason why a row of the namespace applies to no request under the config. One
// of these rows is the key.
func (p *Plan) unmetFaults() []policy.Fault {
	needs := p.snapshot.Needs(p.namespace)
	if !(needs.SeekUser && p.lacksUsers()) && !p.snapshot.HasPolicyOfPart(p.Rules.IPv6Prefix) &&
		(len(p.rows.Anonymous) == 0 || p.limitsAnonymous()) {
		return nil // so that most snapshots need no look at each row
	}
	reported := map[string]bool{"": true}
	return p.rowFaults(func(row schema.Policy) (field, problem string) {
		field, problem = p.Unmet(row)
		if reported[problem] {
			return "", ""
		}
		reported[problem] = true
		return field, problem
	})
}
