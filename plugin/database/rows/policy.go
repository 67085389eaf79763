package rows

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Policy is a row of the policies.
type Policy struct {
	// Assigned by the database; a write does not need it.
	ID int64 `json:"id,omitempty"`

	schema.Policy

	// Counts the writes, from 1. In a write: the revision that it was made from, or AnyRevision, Absent or Present.
	Revision int64 `json:"revision,omitempty"`
}

// PolicyKey names one policy. Names of parameters in the endpoint do not matter.
type PolicyKey struct {
	Namespace  string `json:"namespace"` // "": default
	Name       string `json:"name"`
	Tier       string `json:"tier"` // this and the next ones up to For: what the policy applies to
	Tenant     string `json:"tenant"`
	User       string `json:"user"`
	Credential string `json:"credential"`
	IP         string `json:"ip"`
	For        string `json:"for"`
	Endpoint   string `json:"endpoint"`
}

const (
	// keyColumns declares the columns of a PolicyKey, as JSON has them.
	keyColumns = `namespace text, name text, tier text, tenant text, "user" text, credential text, ip text, "for" text,
		endpoint text`
	// hasKey is the condition that a row p has the key in a row k of keyColumns.
	hasKey = `(p.tenant, p.name, p.tier, p.namespace, p."user", p.credential, p.ip, p."for")
			= (k.tenant, k.name, k.tier, k.namespace, k."user", k.credential, k.ip, k."for")
		AND rate_limiter.canonical_endpoint(p.endpoint) = rate_limiter.canonical_endpoint(k.endpoint)`
)

// Key returns the key of p.
func (p Policy) Key() PolicyKey {
	return PolicyKey{
		p.Namespace, p.Name, p.Tier, p.Tenant, p.User, p.Credential, p.IP, p.For, p.Endpoint,
	}.withDefaults()
}

func (k PolicyKey) withDefaults() PolicyKey {
	k.Namespace, k.IP = cmp.Or(k.Namespace, defaultNamespace), canonicalNetwork(k.IP)
	return k
}

// String names the policy in words.
func (k PolicyKey) String() string {
	text := "policy " + k.Name
	if k.target() != (schema.Policy{}) {
		text += " of " + k.target().Target()
	}
	if k.Endpoint != "" {
		text += " for " + k.Endpoint
	}
	if k.Namespace != "" && k.Namespace != defaultNamespace {
		text += " in namespace " + k.Namespace
	}
	return text
}

// canonicalNetwork returns the one spelling of the address or network of a policy, with a network of IPv4 that is
// mapped into IPv6 as one of IPv4.
func canonicalNetwork(text string) string {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.Addr().Is4In6() {
		return canonicalIP(text)
	}
	if bits := prefix.Bits() - 96; bits >= 0 {
		return canonicalIP(netip.PrefixFrom(prefix.Addr().Unmap(), bits).String())
	}
	return text // check finds it invalid
}

// target returns a policy with only what it applies to.
func (k PolicyKey) target() schema.Policy {
	return schema.Policy{Tier: k.Tier, Tenant: k.Tenant, User: k.User, Credential: k.Credential, IP: k.IP, For: k.For}
}

// PolicyFilter selects policies. Every field that is set must match; the zero value selects all. As in all filters, the
// tags describe the parameters of the REST API.
type PolicyFilter struct {
	Tenant     string `query:"tenant"     maxLength:"128"  doc:"Only policies of this tenant."                             example:"acme"`
	Namespace  string `query:"namespace"  maxLength:"64"   doc:"Only policies of this namespace."`
	Name       string `query:"name"       maxLength:"64"   doc:"Only policies of this name."`
	Tier       string `query:"tier"       maxLength:"64"   doc:"Only policies of this tier."`
	User       string `query:"user"       maxLength:"128"  doc:"Only policies of this user."`
	Credential string `query:"credential" maxLength:"128"  doc:"Only policies of this credential."`
	IP         string `query:"ip"         maxLength:"64"   doc:"Only policies of exactly this address or network."`
	For        string `query:"for"                         doc:"Only policies for all or anonymous requests."              enum:"all,anonymous"`
	Endpoint   string `query:"endpoint"   maxLength:"1024" doc:"Only policies of this endpoint, as written in the policy; the names of parameters do not matter."`

	After int64 // only policies with a larger ID: the last one of the page before
	Max   int   // at most so many; 0: all
}

const (
	defaultNamespace = "default"
	defaultAlgorithm = "token_bucket"
)

// Policies returns the policies that a filter selects, in the order of their IDs.
func (s *DB) Policies(ctx context.Context, f PolicyFilter) ([]Policy, error) {
	return policies(ctx, s.pool, f)
}

func policies(ctx context.Context, q querier, f PolicyFilter) ([]Policy, error) {
	var w where
	w.equal("namespace", f.Namespace)
	w.equal("name", f.Name)
	w.equal("tier", f.Tier)
	w.equal("tenant", f.Tenant)
	w.equal(`"user"`, f.User)
	w.equal("credential", f.Credential)
	w.equal("ip", canonicalNetwork(f.IP))
	w.equal(`"for"`, f.For)
	w.endpoint(f.Endpoint)
	given(&w, "id > %s", f.After)
	return policiesWhere(ctx, q, &w, f.Max)
}

// policiesWhere returns the policies that meet conditions, in the order of their IDs, and at most so many; 0: all.
func policiesWhere(ctx context.Context, q querier, w *where, most int) ([]Policy, error) {
	return readAll[Policy](ctx, q, "list policies", policyTable.selects+w.String()+" ORDER BY id"+limitTo(most), w.args...)
}

// Policy returns one policy, or a NotFoundError.
func (s *DB) Policy(ctx context.Context, key PolicyKey) (Policy, error) {
	p, err := key.find(ctx, s.pool)
	return p, fail("read "+key.String(), err)
}

// find returns the active policy of the key, or a NotFoundError.
func (k PolicyKey) find(ctx context.Context, q querier) (Policy, error) {
	k = k.withDefaults()
	found, err := activePolicies(ctx, q, k)
	if err == nil && len(found) == 0 {
		err = &NotFoundError{What: k.String()}
	}
	if err != nil {
		return Policy{}, err
	}
	return found[0], nil
}

func (p Policy) rowKey() any     { return p.ID }
func (p Policy) revision() int64 { return p.Revision }
func (Policy) table() any        { return policyTable }

// PutPolicy replaces the policy of the same key, or adds p, as p.Revision allows. It returns the row after the write,
// and the version in which it is in force. Writing the current values changes nothing.
func (s *DB) PutPolicy(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	key := p.Key()
	return policyTable.put(ctx, s, c, key.String(), p.Revision, key.find, func(current Policy) (Policy, error) {
		p.ID = current.ID
		return p.withDefaults(), p.check()
	})
}

// PutPolicyByID replaces the policy of p.ID, or returns a NotFoundError. The key must stay: another one is an
// InvalidError. It returns the same as PutPolicy.
func (s *DB) PutPolicyByID(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	what, wanted := fmt.Sprint("policy ", p.ID), p.Revision
	if wanted == AnyRevision {
		wanted = Present
	}
	return policyTable.put(ctx, s, c, what, wanted, policyTable.byKey(what, p.ID), func(current Policy) (Policy, error) {
		p = p.withDefaults()
		return p, cmp.Or(mustStay(what, "delete the policy, and make another", policyTable.fixed,
			current.Policy, p.Policy), p.check())
	})
}

func (p Policy) withDefaults() Policy {
	key := p.Key()
	p.Namespace, p.IP, p.Algorithm = key.Namespace, key.IP, cmp.Or(p.Algorithm, defaultAlgorithm)
	return p
}

// check returns the faults of p, in the words of all ways to write a policy.
func (p Policy) check() error {
	return invalid(p.Key().String(), policy.Faults(p.withDefaults().Policy))
}
