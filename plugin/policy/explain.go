package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Explanation is why a request of some identity has the bounds that it has, for people and programs to read.
type Explanation struct {
	Version   int64  `json:"policy_version,omitempty"` // of the rows; 0 for the config alone
	Namespace string `json:"namespace"`
	Tenant    string `json:"tenant,omitempty"`
	Tier      string `json:"tier,omitempty"`
	TierFrom  string `json:"tier_from,omitempty"` // row, request or default, and why a name that was given is not it
	Endpoint  string `json:"endpoint"`

	Verdict string       `json:"verdict"`                // limited, exempt or banned
	Until   limit.Micros `json:"banned_until,omitempty"` // of a ban, in microseconds since the epoch; 0: for good

	Bounds    []ExplainedBound    `json:"bounds"`
	Policies  []ExplainedPolicy   `json:"policies"`  // every policy for the tenant, its tier and everyone
	Overrides []ExplainedOverride `json:"overrides"` // every override on the tenant, user, credential and address
}

// ExplainedBound is a bound and where its numbers come from.
type ExplainedBound struct {
	Policy   string `json:"policy"`
	Limit    string `json:"limit"` // in words
	Mode     string `json:"mode"`
	FailMode string `json:"fail_mode"`
	Accuracy string `json:"accuracy"` // exact also where the policy is leased and no node can lease of it
	Cost     int64  `json:"cost"`
	Override int64  `json:"override,omitempty"` // the id of the commercial override that changed the limit
	Penalty  int64  `json:"penalty,omitempty"`  // the id of a detector's that changed it after that
}

// ExplainedPolicy is a policy that could apply.
type ExplainedPolicy struct {
	Name     string `json:"policy"`
	Source   string `json:"source"`              // row or config
	ID       int64  `json:"policy_id,omitempty"` // of a row
	Match    string `json:"match"`               // tenant, tier <name>, anonymous or global
	Endpoint string `json:"endpoint,omitempty"`
	Scope    Scope  `json:"-"`
	Limit    string `json:"limit"` // in words
	Won      bool   `json:"won"`
	Why      string `json:"why"`
}

// ExplainedOverride is an override that could apply.
type ExplainedOverride struct {
	Override Override `json:"row"`
	Target   string   `json:"target"`
	Applied  bool     `json:"applied"`
	Why      string   `json:"why"`
}

// Explain tells what ResolveAt does for id at an instant, and why. It takes its answers from a resolution, so it cannot
// tell another story than requests meet.
func (s *Plan) Explain(id *identity.Identity, now limit.Micros) Explanation {
	var r Resolution
	s.ResolveAt(id, now, &r)
	e := explainer{s: s, id: id, now: now, r: &r}
	e.Bounds, e.Policies, e.Overrides = []ExplainedBound{}, []ExplainedPolicy{}, []ExplainedOverride{}
	e.Namespace, e.Tier, e.Endpoint, e.Verdict = s.namespace, r.Tier, r.Endpoint, "limited"
	switch {
	case r.Banned:
		e.Verdict, e.Until = "banned", r.Until
	case r.Exempt:
		e.Verdict = "exempt"
	}
	e.Version = s.Version()
	var who *account
	if id.Tenant.Kind == identity.Tenant {
		e.Tenant = id.Tenant.ID
		if s.snapshot != nil {
			who = s.snapshot.account(id.Tenant.ID)
		}
		e.TierFrom = s.tierFrom(who, id)
	}
	for _, b := range r.Bounds {
		e.Bounds = append(e.Bounds, ExplainedBound{
			Policy: b.Policy.Name, Limit: b.Policy.Describe(), Mode: b.Policy.Mode.String(), FailMode: b.Policy.FailMode.String(),
			Accuracy: s.AccuracyOf(&b).String(), Cost: b.Cost, Override: b.Override, Penalty: b.Penalty,
		})
	}
	e.policies(who)
	e.overrides(who)
	return e.Explanation
}

// AccuracyOf is how a bound is counted: exactly, whatever its policy says, where no node ever takes tokens of its bucket
// ahead of need.
func (s *Plan) AccuracyOf(b *Bound) Accuracy {
	if s.config.Strategy == schema.StrategyRedis && b.Policy.Leasable() && b.Policy.Limit.Spec().Burst >= schema.LeastLeased {
		return Leased
	}
	return Exact
}

type explainer struct {
	Explanation
	s   *Plan
	id  *identity.Identity
	now limit.Micros
	r   *Resolution
}

// TierFrom tells who says what tier the request of a tenant is of: row, request or default, and why a name that was given
// is not it.
func (s *Plan) TierFrom(id *identity.Identity) string {
	var who *account
	if s.snapshot != nil {
		who = s.snapshot.account(id.Tenant.ID)
	}
	return s.tierFrom(who, id)
}

func (s *Plan) tierFrom(who *account, id *identity.Identity) string {
	switch {
	case who != nil && who.tier != "" && s.knows(who.tier):
		return "row"
	case who != nil && who.tier != "":
		return fmt.Sprintf("default: the tenant's row says %q, which is no tier", who.tier)
	case id.Tier != "" && s.knows(id.Tier):
		return "request"
	case id.Tier != "":
		return fmt.Sprintf("default: the request says %q, which is no tier", id.Tier)
	}
	return "default"
}

// policies lists the candidates in the order in which ResolveAt looks at them.
func (e *explainer) policies(who *account) {
	s, kind := e.s, e.id.Tenant.Kind
	switch {
	case kind == identity.Unidentified:
	case kind != identity.Tenant && s.anonymous != nil:
		e.ofConfig(s.anonymous, "anonymous")
	default:
		if who != nil {
			e.ofRows(who.policies, "tenant")
		}
		tier := s.tierOf(who, e.id)
		e.ofRows(s.space.tiers[tier], "tier "+tier)
		e.ofConfig(s.tiers[tier], "tier "+tier)
	}
	e.ofConfig(s.global, "global")
}

func (e *explainer) ofRows(list []*row, match string) {
	for _, r := range list {
		if r.namespace != e.s.namespace {
			continue
		}
		x := ExplainedPolicy{Name: r.Name, Source: "row", ID: r.Row, Match: match, Endpoint: r.Endpoint, Scope: r.Scope, Limit: r.Describe()}
		if _, ok := e.s.snapshot.place(r.Endpoint, e.r); !ok {
			x.Why = "the endpoint is another"
		} else {
			e.judge(&x, &r.Policy)
		}
		e.Policies = append(e.Policies, x)
	}
}

func (e *explainer) ofConfig(list []*Policy, match string) {
	won := ""
	for _, p := range list {
		x := ExplainedPolicy{Name: p.Name, Source: "config", Match: match, Endpoint: p.Endpoint, Scope: p.Scope, Limit: p.Describe()}
		switch {
		case !e.r.matches(p):
			x.Why = "the endpoint is another"
		case won == p.Name:
			x.Why = "the config has one of this name for a narrower endpoint"
		default:
			e.judge(&x, p)
			won = p.Name
		}
		e.Policies = append(e.Policies, x)
	}
}

// judge says whether a policy that matches won its name, and whether it then is a bound.
func (e *explainer) judge(x *ExplainedPolicy, p *Policy) {
	if e.r.Exempt {
		x.Why = fmt.Sprintf("override %d exempts the request", e.r.Override)
		return
	}
	for _, winner := range e.r.rows {
		if winner.Name == p.Name && &winner.Policy != p {
			x.Why = fmt.Sprintf("row %d goes before it", winner.Row)
			return
		}
	}
	x.Won, x.Why = true, "the most specific of its name"
	if !e.s.key(p, e.id, e.r, new(Key)) {
		x.Why = fmt.Sprintf("the most specific of its name, but the request names nobody to count it per (%s)", p.Scope)
	}
}

// overrides lists those that are looked up for the identity, whether they hold or not.
func (e *explainer) overrides(who *account) {
	b, id := e.s.snapshot, e.id
	if b == nil {
		return
	}
	var list []*override
	if who != nil {
		list = append(list, who.overrides...)
	}
	if id.Tenant.Kind == identity.Tenant && id.User.Kind == identity.User {
		list = append(list, b.of(subject{onUser, id.Tenant.ID, id.User.ID})...)
	}
	list = append(list, b.of(subject{onCredential, "", id.Credential})...)
	list = b.around(id.IP, list)
	for _, o := range list {
		x := ExplainedOverride{Override: o.plain(), Target: targetNames[o.target]}
		x.Applied, x.Why = e.holds(o)
		e.Overrides = append(e.Overrides, x)
	}
}

func (e *explainer) holds(o *override) (bool, string) {
	switch {
	case !o.alive(e.now):
		return false, "it has expired"
	case o.tenant != "" && (e.id.Tenant.Kind != identity.Tenant || o.tenant != e.id.Tenant.ID):
		return false, "the tenant is another"
	}
	if _, ok := e.s.snapshot.place(o.endpoint, e.r); !ok {
		return false, "the endpoint is another"
	}
	if o.kind == ban || o.kind == exempt {
		if e.r.Override == o.id {
			return true, "the strongest of its kind"
		}
		return false, fmt.Sprintf("override %d goes before it", e.r.Override)
	}
	return e.changes(o)
}

// changes reports whether a custom limit or a multiplier changed a bound, and why.
func (e *explainer) changes(o *override) (bool, string) {
	if e.r.Exempt {
		return false, fmt.Sprintf("override %d exempts the request", e.r.Override)
	}
	var (
		changed     []string // the names of policies
		uncountable bool
		stronger    int64
	)
	for i := range e.r.Bounds {
		b := &e.r.Bounds[i]
		if !o.covers(b) {
			continue
		}
		switch holds := e.strongest(b, o.detector); {
		case holds != o.id:
			stronger = holds
		case b.Override == o.id || b.Penalty == o.id:
			changed = append(changed, b.Policy.Name)
		default:
			uncountable = true
		}
	}
	switch {
	case len(changed) > 0:
		return true, "it changes " + strings.Join(slices.Compact(changed), ", ")
	case uncountable:
		return false, "its numbers cannot be counted exactly by the algorithm of the limit, which stays as it was"
	case stronger != 0:
		return false, fmt.Sprintf("override %d goes before it", stronger)
	}
	return false, "no limit of the request is one that it changes"
}

// strongest returns the id of the override of one source that holds for a bound, as ResolveAt chooses it.
func (e *explainer) strongest(b *Bound, detector bool) int64 {
	var found *standing
	for i := range e.r.overrides {
		o := &e.r.overrides[i]
		if o.kind != ban && o.kind != exempt && o.detector == detector && o.covers(b) {
			found = stronger(found, o)
		}
	}
	if found == nil {
		return 0
	}
	return found.id
}
