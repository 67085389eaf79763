package schema

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Policy is a limit of the database: for all tenants of a tier, for one tenant or one of its users, for a credential,
// for an address or a network, or for all requests or the anonymous ones, as the lists global and anonymous of the
// config are. Rows, files of policies, the REST API and the ratelimit command have it. Each field is declared here or
// in Limit alone: its JSON name is the name of its column, its doc comment its description, and its tags are its
// constraints. Fields lists them.
//
// An empty text and a zero number mean absent.
type Policy struct {
	// The namespace of the plugin configs that the policy applies to. Default: default.
	Namespace string `json:"namespace,omitempty" kong:"match=^[A-Za-z0-9_.-]+$,len_max=64" kong_err:"must be 1 to 64 letters, digits, dots, dashes or underscores" default:"default"`

	// The tier whose tenants the policy applies to. Give one of tier, tenant, credential, ip and for.
	Tier string `json:"tier,omitempty" kong:"len_max=64" kong_err:"must have at most 64 bytes" alias:"orgTier" example:"enterprise"`

	// The tenant that the policy applies to, at most 128 bytes: a longer name is counted by its hash, so give that.
	// Give one of tier, tenant, credential, ip and for.
	Tenant string `json:"tenant,omitempty" kong:"len_max=128" kong_err:"must have at most 128 bytes: write the hash by which a longer name is counted" alias:"orgId,org" example:"acme"`

	// Only this user of the tenant, as user_from finds it. The scope is user or user+endpoint. Default: all users.
	User string `json:"user,omitempty" kong:"as=Policy.tenant" alias:"userId" example:"u_42"`

	// The credential that the policy applies to, by its id in Kong. The scope is credential.
	Credential string `json:"credential,omitempty" kong:"as=Policy.tenant"`

	// The address or network that the policy applies to, of all tenants; of several networks the narrowest counts.
	// An IPv6 address stands for its /64. The scope is ip, where each address has a limit of its own, or global, where all
	// of them share one.
	IP string `json:"ip,omitempty" kong:"as=Override.ip" unit:"address" example:"203.0.113.0/24"`

	// Either all, for the requests of all tenants and of none, as global in the plugin's config; or anonymous, for those
	// without a tenant where on_missing_tenant is limit_by_ip. The scope is global, endpoint or ip.
	For string `json:"for,omitempty" kong:"one_of=all|anonymous"`

	Limit

	// The note that the tenant sees, at most 1024 bytes without control characters. Default: nothing.
	PublicNote string `json:"public_note,omitempty" kong:"len_max=1024" kong_err:"must have at most 1024 bytes, without control characters" unit:"text" example:"Agreed until the end of the year."`
}

// Values of Policy.For.
const (
	ForAll       = "all"
	ForAnonymous = "anonymous"
)

// Target returns what p applies to, in words.
func (p Policy) Target() string {
	switch {
	case p.User != "":
		return "user " + p.User + " of tenant " + p.Tenant
	case p.Tenant != "":
		return "tenant " + p.Tenant
	case p.Tier != "":
		return "tier " + p.Tier
	case p.Credential != "":
		return "credential " + p.Credential
	case p.IP != "":
		return "ip " + p.IP
	case p.For == ForAnonymous:
		return "anonymous requests"
	}
	return "all requests"
}

// DefaultScope returns the scope that the REST API and the ratelimit command give p without one: it counts what p is
// for.
func (p Policy) DefaultScope() string {
	if p.Tenant+p.Tier == "" {
		switch {
		case p.Credential != "":
			return ScopeCredential
		case p.IP != "" || p.For == ForAnonymous:
			return ScopeIP
		case p.For == ForAll:
			return ScopeGlobal
		}
	}
	if p.User != "" {
		return ScopeUser
	}
	return ScopeTenant
}

const aboutTargets = "a policy is for a tier, for a tenant or one user of it, for a credential, for an ip, or, by for, " +
	"for all or anonymous requests"

// TargetFaults returns what is wrong with the fields that say what p applies to. It does without what Faults costs.
func (p Policy) TargetFaults() []Fault {
	var given []string
	for _, target := range [...][2]string{
		{"tier", p.Tier}, {"tenant", p.Tenant}, {"credential", p.Credential}, {"ip", p.IP}, {"for", p.For},
	} {
		if target[1] != "" {
			given = append(given, target[0])
		}
	}
	var faults findings
	if len(given) == 0 {
		faults.add("tier", "is required unless tenant, credential, ip or for is given: "+aboutTargets)
	}
	for _, field := range given[min(1, len(given)):] {
		faults.add(field, "must be left out beside %s: "+aboutTargets, given[0])
	}
	if p.User != "" && p.Tenant == "" {
		faults.add("user", "needs tenant beside it, because users of different tenants may have the same name")
	}
	faults.addProblem("ip", p.networkProblem())
	if scopes := p.scopes(); len(given) == 1 && scopes != nil && p.Scope != "" && !slices.Contains(scopes, p.Scope) {
		faults.add("scope", "must be one of %s, got %q", strings.Join(scopes, ", "), docpath.Shorten(p.Scope))
	}
	return faults
}

// scopes returns the scopes that p may have; nil: all.
func (p Policy) scopes() []string {
	switch {
	case p.User != "":
		return []string{ScopeUser, ScopeUserEndpoint}
	case p.Credential != "":
		return []string{ScopeCredential}
	case p.IP != "":
		return []string{ScopeIP, ScopeGlobal}
	case p.For == ForAll:
		return []string{ScopeGlobal, ScopeEndpoint, ScopeIP} // as the config's global.limits
	case p.For == ForAnonymous:
		return []string{ScopeIP, ScopeEndpoint, ScopeGlobal} // as the config's anonymous.limits
	}
	return nil
}

// networkProblem returns why no request, or every request, has the address of p, or "".
func (p Policy) networkProblem() string {
	if strings.HasSuffix(p.IP, "/0") {
		return "must not cover all addresses: for these, give for in its place"
	}
	if prefix, err := netip.ParsePrefix(p.IP); err == nil && prefix.Addr().Is4In6() && prefix.Bits() < 96 {
		return "must be written as a network of IPv4, such as 192.0.2.0/24"
	}
	return addressProblem(p.IP)
}
