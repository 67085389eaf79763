package resolve

import (
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Candidate is the open candidate as one plugin config applies it.
type Candidate struct {
	// Plan is the config beside the rows with the candidate's changes.
	Plan *Plan
	// SameFacts reports whether the plan identifies requests as the active one does.
	SameFacts bool
	// Namespace is the namespace of the buckets in which the candidate counts where it is not enforced. No config has it.
	Namespace string

	active   *Plan
	enforced *Plan // Plan with the active limits that tenants share
	overlay  *policy.Overlay
}

// Candidate returns the open candidate; nil: there is none, or none of its changes is in the plan's namespace.
func (p *Plan) Candidate() *Candidate { return p.candidate }

// candidateMark separates a namespace from the name of a candidate. No namespace has it.
const candidateMark = "+"

// ActiveNamespace returns the namespace whose candidate counts in a namespace of buckets, or that namespace itself.
func ActiveNamespace(namespace string) string {
	active, _, _ := strings.Cut(namespace, candidateMark)
	return active
}

func (p *Plan) compileCandidate(base *Plan) {
	o := p.snapshot.Overlay()
	if o == nil || !o.Namespaces[p.namespace] {
		return
	}
	tried := base.With(o.Snapshot)
	p.candidate = &Candidate{
		Plan: tried, SameFacts: tried.needs == p.needs, Namespace: p.namespace + candidateMark + o.Set.Name,
		active: p, enforced: tried, overlay: o,
	}
	if o.ChangesShared {
		enforced := *tried
		enforced.enforces = p.candidate
		p.candidate.enforced = &enforced
	}
}

// Name returns the name of the candidate.
func (c *Candidate) Name() string { return c.overlay.Set.Name }

// Assigned reports whether the candidate is enforced for a tenant. Only tenants are assigned, not addresses.
func (c *Candidate) Assigned(tenant identity.Name) bool {
	return tenant.Kind == identity.Tenant &&
		(c.overlay.Tenants[tenant.ID] || policy.InCandidate(c.overlay.Set.Name, tenant.ID, c.overlay.Set.Percent))
}

// ForTenant returns the plan that decides requests of a tenant: the candidate's, if it is open and assigned to the
// tenant, else p. The tenant "" is none.
func (p *Plan) ForTenant(tenant string) *Plan {
	if p.candidate != nil && tenant != "" && p.candidate.Assigned(identity.Name{Kind: identity.Tenant, ID: tenant}) {
		return p.candidate.enforced
	}
	return p
}

// ResolveAt fills r with the bounds of a request of an assigned tenant. Buckets that several tenants share keep their
// active limits: one bucket cannot follow two limits in turns. A policy keeps its active limit too if only one of the
// two sets has its bucket shared.
func (c *Candidate) ResolveAt(id *identity.Identity, now limit.Micros, r *Resolution) {
	c.enforced.ResolveAt(id, now, r)
}

// keepShared replaces the bounds of limits that tenants share by the active ones, in a resolution of the candidate.
func (c *Candidate) keepShared(id *identity.Identity, now limit.Micros, r *Resolution) {
	var active Resolution
	c.active.ResolveAt(id, now, &active)
	ofTenant := func(b policy.Bound) bool { return b.Key.Group == policy.ByTenant }
	differs := func(b policy.Bound, from []policy.Bound) bool {
		return slices.ContainsFunc(from, func(other policy.Bound) bool {
			return other.Policy.Name == b.Policy.Name && ofTenant(other) != ofTenant(b)
		})
	}
	r.kept = slices.DeleteFunc(active.Bounds, func(b policy.Bound) bool { return ofTenant(b) && !differs(b, r.Bounds) })
	r.Bounds = slices.DeleteFunc(r.Bounds, func(b policy.Bound) bool { return !ofTenant(b) || differs(b, r.kept) })
	for i := range r.kept {
		r.kept[i].Pool = r.Pool // the candidate may know a tier that the active limits do not
	}
	r.Bounds = append(r.Bounds, r.kept...)
	r.Settles = slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool { return b.Policy.Reserves() })
	r.Unpriced = slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool { return b.Unpriced })
	if r.Calls == nil {
		r.Calls = active.Calls
	}
	r.Fair = slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool { return b.Policy.Fair != nil })
}

// explain describes what the candidate decides about a request, as it is enforced or tried.
func (c *Candidate) explain(id *identity.Identity, now limit.Micros) *ExplainedCandidate {
	plan, assigned := c.Plan, c.Assigned(id.Tenant)
	if assigned {
		plan = c.enforced
	}
	var r Resolution
	e := plan.explain(id, now, &r)
	return &ExplainedCandidate{Name: c.Name(), Assigned: assigned, Verdict: e.Verdict, Bounds: e.Bounds}
}
