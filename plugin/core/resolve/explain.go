package resolve

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Explanation describes why a request of an identity has its bounds, for people and programs.
type Explanation struct {
	Version   int64  `json:"policy_version,omitempty"` // of the rows; 0 for the config alone
	Namespace string `json:"namespace"`
	Tenant    string `json:"tenant,omitempty"`
	Tier      string `json:"tier,omitempty"`
	TierFrom  string `json:"tier_source,omitempty"` // as the method TierFrom returns it
	Pool      string `json:"redis_pool,omitempty"`  // as the method PoolOf returns it
	Endpoint  string `json:"endpoint"`

	Cost *ExplainedCost `json:"cost,omitempty"` // absent: the request is exempt

	Verdict string       `json:"verdict"`                // limited, exempt or banned
	Until   limit.Micros `json:"banned_until,omitempty"` // end of a ban, in microseconds since the epoch; 0: permanent

	// ExemptBy is what exempts the request, or what lifts the limits of its tenant because it is a CORS preflight.
	ExemptBy string `json:"exempt_by,omitempty"`

	Candidate *ExplainedCandidate `json:"candidate,omitempty"` // absent: none is open, or it changes nothing here

	Bounds    []ExplainedBound    `json:"bounds"`
	Policies  []ExplainedPolicy   `json:"policies"`  // every policy that could apply
	Overrides []ExplainedOverride `json:"overrides"` // every override that is looked up for the identity
}

// ExplainedCandidate describes what the open candidate decides about the request.
type ExplainedCandidate struct {
	Name     string           `json:"name"`
	Assigned bool             `json:"assigned"` // its bounds decide in place of the explanation's
	Verdict  string           `json:"verdict"`
	Bounds   []ExplainedBound `json:"bounds"`
}

// ExplainedCost describes what a request costs where a policy has no cost of its own.
type ExplainedCost struct {
	Tokens   int64  `json:"tokens"`
	From     string `json:"from"`               // request, row, config or default
	ID       int64  `json:"cost_id,omitempty"`  // of a row
	Endpoint string `json:"endpoint,omitempty"` // the pattern of a row, or of an entry of the config
}

// Explained describes the cost for people and programs; nil: the request is exempt.
func (c RequestCost) Explained() *ExplainedCost {
	if c.From == NoCost {
		return nil
	}
	return &ExplainedCost{c.Tokens, c.From.String(), c.Row, c.Endpoint}
}

// ExplainedBound describes a bound and where its numbers come from.
type ExplainedBound struct {
	Policy   string `json:"policy"`
	Limit    string `json:"limit"` // in words
	Mode     string `json:"mode"`
	FailMode string `json:"fail_mode"`
	Accuracy string `json:"accuracy"` // exact also where the policy is leased and no node can lease from it
	Cost     int64  `json:"cost"`
	Unit     string `json:"unit,omitempty"`             // of cost and top_up; usd: millionths of a US dollar
	Zone     string `json:"time_zone,omitempty"`        // of a calendar limit
	ZoneFrom string `json:"time_zone_source,omitempty"` // row: the tenant's; policy; or default
	Override int64  `json:"override,omitempty"`         // id of the commercial override that changed the limit
	TopUp    int64  `json:"top_up,omitempty"`           // tokens that top-ups add to it, included in the limit
	Penalty  int64  `json:"penalty,omitempty"`          // id of the detector's override that changed it after that

	Unmatched bool `json:"unmatched,omitempty"` // it counts other models than the request states, and reserves nothing
}

// ExplainedPolicy describes a policy that could apply.
type ExplainedPolicy struct {
	Name     string       `json:"policy"`
	Source   string       `json:"source"`              // row or config
	ID       int64        `json:"policy_id,omitempty"` // of a row
	Match    string       `json:"match"`               // what it applies to, as Policy.Match returns it
	Endpoint string       `json:"endpoint,omitempty"`
	Scope    policy.Scope `json:"-"`
	Limit    string       `json:"limit"` // in words
	Won      bool         `json:"won"`
	Why      string       `json:"why"`
}

// Explain describes what ResolveAt does for id at an instant, and why. Its answers come from a resolution, so they
// match what happens to requests.
func (p *Plan) Explain(id *identity.Identity, now limit.Micros) Explanation {
	var r Resolution
	e := p.explain(id, now, &r)
	e.Overrides = p.ExplainOverrides(id, now, &r, nil)
	if p.candidate != nil {
		e.Candidate = p.candidate.explain(id, now)
	}
	return e
}

// ExplainPolicies returns the policies of Explain alone: it takes no time for each override.
func (p *Plan) ExplainPolicies(id *identity.Identity, now limit.Micros) []ExplainedPolicy {
	var r Resolution
	return p.explain(id, now, &r).Policies
}

// explain explains a request without its overrides, and sets its resolution.
func (p *Plan) explain(id *identity.Identity, now limit.Micros, r *Resolution) Explanation {
	var considered []*policy.Policy
	r.considered = &considered
	if p.ResolveAt(id, now, r); r.Exempt {
		p.withoutExemption(id, r)
	}
	r.considered = nil
	e := explainer{plan: p, id: id, resolution: r}
	e.Bounds, e.Policies = []ExplainedBound{}, []ExplainedPolicy{}
	e.Namespace, e.Tier, e.Endpoint, e.Verdict = p.namespace, r.Tier, r.Endpoint, "limited"
	e.Pool = p.PoolOf(r.Tier)
	switch {
	case r.Banned:
		e.Verdict, e.Until = "banned", r.Until
	case r.Exempt:
		e.Verdict = "exempt"
	}
	e.Version, e.ExemptBy, e.Cost = p.Version(), p.describe(r.Exemption), r.Cost.Explained()
	if id.Tenant.Kind == identity.Tenant {
		e.Tenant, e.TierFrom = id.Tenant.ID, p.TierFrom(id)
	}
	for _, b := range r.Bounds {
		zone, from := r.zoneOf(&b)
		e.Bounds = append(e.Bounds, ExplainedBound{
			Zone: zone, ZoneFrom: from,
			Policy: b.Policy.Name, Limit: b.Policy.Describe(),
			Mode: b.Policy.Mode.String(), FailMode: b.Policy.FailMode.String(), Accuracy: p.AccuracyOf(&b).String(),
			Cost: b.Cost, Unit: b.Policy.Unit, Override: b.Override, TopUp: b.TopUp, Penalty: b.Penalty,
			Unmatched: b.Unmatched,
		})
	}
	e.explainPolicies(considered)
	return e.Explanation
}

// zoneOf returns the time zone of a bound with a calendar limit, and where it comes from; "" for other limits.
func (r *Resolution) zoneOf(b *policy.Bound) (zone, from string) {
	in := b.Policy.Limit.Calendar()
	switch from = "policy"; {
	case in == nil:
		return "", ""
	case r.zone != "" && b.Key.Group == policy.ByTenant:
		from = "row"
	case in.Zone() == "UTC":
		from = "default"
	}
	return in.Zone(), from
}

// AccuracyOf returns how a bound is counted: Leased only if nodes do lease tokens of its bucket.
func (p *Plan) AccuracyOf(b *policy.Bound) policy.Accuracy {
	large := b.Policy.Limit.Spec().Burst >= schema.LeastLeased
	if large && b.Policy.Leasable() && p.config.Strategy == schema.StrategyRedis {
		return policy.Leased
	}
	return policy.Exact
}

type explainer struct {
	Explanation
	plan       *Plan
	id         *identity.Identity
	resolution *Resolution
}

// TierFrom returns where the tier of a tenant's request comes from: row, a source of the config, request or default. A
// source is from the request's identity; request stands for an identity that names none. A default has the reason why
// a given name does not apply.
func (p *Plan) TierFrom(id *identity.Identity) string {
	rows := p.tenantRows(id)
	switch {
	case rows != nil && rows.Tier != "" && p.hasTier(rows.Tier):
		return TierOfRow
	case rows != nil && rows.Tier != "":
		return fmt.Sprintf("default: the tenant's row says %q, which is no tier", rows.Tier)
	case id.Tier != "" && p.hasTier(id.Tier):
		return cmp.Or(id.TierSource, "request")
	case id.Tier != "":
		return fmt.Sprintf("default: the request says %q, which is no tier", id.Tier)
	}
	return TierOfDefault
}

func (p *Plan) tenantRows(id *identity.Identity) *policy.TenantRows {
	if p.snapshot == nil || id.Tenant.Kind != identity.Tenant {
		return nil
	}
	return p.snapshot.Tenant(id.Tenant.ID)
}

// explainPolicies lists the policies that the resolver has considered, in its order. But a list of the config comes
// right after the rows that go before it.
func (e *explainer) explainPolicies(considered []*policy.Policy) {
	order := func(p *policy.Policy) (place int) {
		if p.Match() == "global" {
			place = 2
		}
		if p.Row == 0 {
			place++
		}
		return place
	}
	slices.SortStableFunc(considered, func(a, b *policy.Policy) int { return order(a) - order(b) })
	won := &policy.Policy{} // the last of the config that matches
	for _, p := range considered {
		x := ExplainedPolicy{
			Name: p.Name, Source: "row", ID: p.Row, Match: p.Match(), Endpoint: p.Endpoint, Scope: p.Scope, Limit: p.Describe(),
		}
		ranked := true
		if p.Row == 0 {
			x.Source = "config"
		} else {
			_, ranked = e.plan.snapshot.Rank(p.Endpoint, e.resolution.rowMatches)
		}
		switch {
		case !ranked || !e.resolution.matches(p):
			x.Why = endpointIsAnother
		case p.Row == 0 && won.Name == p.Name && order(won) == order(p):
			x.Why = "the config has one of this name for a narrower endpoint"
		default:
			if e.explainMatch(&x, p); p.Row == 0 {
				won = p
			}
		}
		e.Policies = append(e.Policies, x)
	}
}

// explainMatch records whether a policy that matches won its name, and whether it became a bound.
func (e *explainer) explainMatch(x *ExplainedPolicy, p *policy.Policy) {
	if e.resolution.Exempt {
		x.Why = e.resolution.Exemption.Source() + " exempts the request"
		return
	}
	for _, winner := range e.resolution.rows {
		if winner.Name == p.Name && &winner.Policy != p {
			x.Why = fmt.Sprintf("row %d goes before it", winner.Row)
			return
		}
	}
	if slices.ContainsFunc(e.resolution.kept, func(b policy.Bound) bool { return b.Policy.Name == p.Name }) {
		x.Why = "tenants share it: the active limit of this name stays until the candidate is promoted"
		return
	}
	x.Won, x.Why = true, "the most specific of its name"
	var key policy.Key
	switch hasKey := p.FillKey(e.plan.namespace, e.id, &key); {
	case !hasKey:
		x.Why = fmt.Sprintf("the most specific of its name, but the request lacks what it is counted per (%s)", p.Scope)
	case e.resolution.Preflight && key.Group == policy.ByTenant:
		x.Won, x.Why = false, "exempt_preflights lifts it from CORS preflights"
	}
}
