// Package policy compiles policies, overrides and costs from the rows of a database.
//
// A [Snapshot] holds all rows at one version, indexed by what requests look them up by: [NewSnapshot] and
// [Snapshot.Apply] compile it. A [Bound] is a policy that was resolved for one request, with the [Key] of its bucket.
// The function decidePrecedence defines which of several overrides applies.
//
// Package resolve finds the bounds of requests. Other packages define the arithmetic of limits (limit), keep buckets
// (bucket) and read the database (policysync).
package policy

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Scope names what a limit is counted per.
type Scope uint8

// The scopes.
const (
	Tenant Scope = iota + 1
	User
	Credential
	IP
	Endpoint
	Global
	TenantEndpoint
	UserEndpoint
)

var scopeNames = [...]string{
	"", "tenant", "user", "credential", "ip", "endpoint", "global", "tenant+endpoint", "user+endpoint",
}

func (s Scope) String() string { return scopeNames[s] }

// ScopeOf returns the scope of a name, and whether there is one.
func ScopeOf(name string) (Scope, bool) {
	i := slices.Index(scopeNames[1:], name)
	return Scope(i + 1), i >= 0
}

// PerScope returns what a limit is counted per, given the name of its scope: "per tenant", or "in total" for global.
func PerScope(name string) string {
	if name == scopeNames[Global] {
		return "in total"
	}
	return "per " + name
}

// ByEndpoint reports whether each endpoint has a bucket of its own.
func (s Scope) ByEndpoint() bool { return s == Endpoint || s == TenantEndpoint || s == UserEndpoint }

// ByUser reports whether each user of a tenant has a bucket of its own.
func (s Scope) ByUser() bool { return s == User || s == UserEndpoint }

// Shared reports whether all tenants spend from the buckets of the scope.
func (s Scope) Shared() bool { return s == Endpoint || s == Global }

// OfTenant reports whether each bucket of the scope belongs to one tenant.
func (s Scope) OfTenant() bool { return !s.Shared() && s != IP }

// match selects what a policy applies to.
type match uint8

// The matches. The zero value is for the config's limits: of a tier, or else of all requests.
const (
	byTier match = iota
	forTenant
	forUser
	forCredential
	forNetwork
	forAnonymous
	forAll
	matches
)

var matchNames = [matches]string{"global", "tenant", "user", "credential", "ip", "anonymous", "global"}

// Policy holds a named, compiled limit and what it applies to. It is immutable. The fields that resolving reads come
// before Limit: they share a cache line.
type Policy struct {
	Name     string
	Scope    Scope
	Tier     string // the tier it is a default of; "" for anonymous and global policies
	Endpoint string // the canonical pattern it applies to; "" for every endpoint
	Mode     Mode
	FailMode FailMode
	Accuracy Accuracy
	Cost     int64 // tokens that a request costs here; -1: the cost of the request
	Row      int64 // id of the database row; 0 for a policy of the config

	match   match  // what it applies to
	subject string // the user, credential or network that a row is for; "" for others

	Unit   string       // schema.UnitUSD, or "": tokens
	Settle *settle.Rule // charges what a request really used; nil: it costs what it reserves
	Fair   *Fair        // divides the bucket among tenants; nil: who comes first is served first

	Pattern int // index of Endpoint among the config's patterns; -1 for every endpoint, and for a row's
	Limit   limit.Limit
	zones   *zoneCache // nil: the limit has no calendar, or is that of a zone

	Description string // what denied clients read about the limit; empty: nothing
	PublicNote  string // shown to the tenant; "" for none

	// Quota is the policy as an item of the IETF RateLimit-Policy field: "burst";q=100;w=60. It is "" where the field has
	// no unit for what the policy counts. For a calendar's limit it ends with w=, see [Policy.AppendQuota].
	Quota string
}

// QuotaLength returns the most bytes that [Policy.AppendQuota] appends.
func (p *Policy) QuotaLength() int {
	if p.Limit.Calendar() != nil {
		return len(p.Quota) + len("31622400") // seconds of a year
	}
	return len(p.Quota)
}

// AppendQuota appends the policy's item of RateLimit-Policy at an instant of its store; 0: an unknown one.
func (p *Policy) AppendQuota(b []byte, at limit.Micros) []byte {
	b = append(b, p.Quota...)
	if p.Quota != "" && p.Limit.Calendar() != nil {
		b = strconv.AppendInt(b, int64(p.Limit.WindowAt(at)/limit.Second), 10)
	}
	return b
}

// Match returns what the policy applies to: the list of the config that has it, or what a row is for. It omits the
// names of tenants, users and credentials.
func (p *Policy) Match() string {
	switch {
	case p.match == forNetwork:
		return "ip " + p.subject
	case p.match == byTier && p.Tier != "":
		return "tier " + p.Tier
	}
	return matchNames[p.match]
}

// Describe returns the policy's limit in words, for logs.
func (p *Policy) Describe() string {
	spec := p.Limit.Spec()
	text := schema.Amount(spec.Quantity, p.Unit) + " " + WindowOf(spec).Per()
	if p.Limit.IsConcurrency() {
		text += fmt.Sprintf(", each for at most %d s", spec.Window/limit.Second)
	}
	if spec.Burst != spec.Quantity {
		text += " with a burst of " + schema.Amount(spec.Burst, p.Unit)
	}
	text = fmt.Sprintf("%s (%s) %s", text, spec.Algorithm, PerScope(p.Scope.String()))
	if p.Settle != nil {
		text += ", " + p.Settle.Spec().Describe(p.Unit) + p.Settle.Match().Describe()
	}
	if p.Fair != nil {
		text += ", " + p.Fair.Record.Describe()
	}
	if p.Description != "" {
		text += ": " + p.Description
	}
	return text
}

// ByRoute reports whether the policy counts per endpoint without a pattern. Then the route's name identifies the
// bucket.
func (p *Policy) ByRoute() bool { return p.Scope.ByEndpoint() && p.Endpoint == "" }

// Leasable reports whether nodes may lease tokens of the policy's buckets: its accuracy and its algorithm allow it.
// A leased bucket offers a request less than its capacity. So a policy with a cost close to the capacity is not
// leasable: it might admit no request. Nor is one that settles: what a request gives back would belong to a lease that
// may have ended.
//
// Leasable ignores whether the limit is large enough to be worth a lease.
func (p *Policy) Leasable() bool {
	switch p.Limit.Spec().Algorithm {
	case limit.TokenBucket, limit.FixedWindow:
		return p.Accuracy == Leased && p.Settle == nil && 100*p.Cost <= schema.LeasedCostPct*p.Limit.Capacity()
	default:
		return false
	}
}

// Bound holds a policy resolved for one request: which bucket it spends from, and how much.
type Bound struct {
	Policy *Policy
	Key    Key
	Cost   int64 // tokens; 0 spends nothing. Where the policy settles it is the reservation; of concurrency it is 1 or 0

	// Pool is the number of the pool of Redis that has the bucket, see [schema.Config.Pools]. All bounds of a request have
	// the same. A bucket has the same key in each pool.
	Pool uint8
	// Unmatched: the request states a model that the policy does not match. It reserves nothing; the answer settles it.
	Unmatched bool
	// Unpriced: the policy settles by prices, enforced or in shadow mode by the config, and the request states a model
	// that it matches and that has no price.
	Unpriced bool

	Override int64 // id of the commercial override that changed the limit; 0 for none
	TopUp    int64 // tokens that top-ups have added to the limit after that
	Penalty  int64 // id of the detector's override that changed it after that; 0 for none
}

// Enforced reports whether the policy can deny.
func (b *Bound) Enforced() bool { return b.Policy.Mode == Enforce }

// Decides reports whether the bound can deny the request: it is enforced, and the request may match the policy.
func (b *Bound) Decides() bool { return b.Enforced() && !b.Unmatched }

// Unnamed reports whether the bound is counted per endpoint, and the request that it was resolved for names none. No
// request to an endpoint spends from its bucket.
func (b *Bound) Unnamed() bool {
	if b.Key.Group == ByEndpoint {
		return b.Key.GroupID == ""
	}
	return b.Policy.Scope.ByEndpoint() && b.Key.Endpoint == ""
}

// Reserves reports whether requests reserve something of the policy that their end settles: tokens of a limit that
// settles, or a slot of a concurrency limit.
func (p *Policy) Reserves() bool { return p.Settle != nil || p.Limit.IsConcurrency() }

// Timeout returns how long a request's reservation waits for its end, where the policy reserves.
func (p *Policy) Timeout() limit.Micros {
	if p.Settle != nil {
		return p.Settle.Timeout()
	}
	return p.Limit.Spec().Window
}

// settles reports whether a node can settle a row's limit, which p has. It is cheaper than the row's Faults.
func (p *Policy) settles(l *schema.Limit) bool {
	algorithm := p.Limit.Spec().Algorithm
	return (algorithm == limit.TokenBucket || algorithm == limit.FixedWindow) && !l.SoftOnly &&
		l.Settle.Reserve <= p.Limit.Capacity()
}

// Fair divides a policy's bucket among the tenants that spend from it. It is immutable, and an override that changes
// the limit for one tenant leaves it alone.
type Fair struct {
	Record   *schema.Fair
	Rate     float64 // tokens per second
	Capacity float64 // tokens of the full bucket
}

// divides reports whether a node can divide a row's limit, which p has. It is cheaper than the row's Faults.
func (p *Policy) divides(l *schema.Limit) bool {
	return p.Scope.Shared() && p.Limit.Spec().Algorithm == limit.TokenBucket && !l.SoftOnly && l.Fair.Default >= 0
}

// Mode selects what a policy does with a denial.
type Mode uint8

// The modes. The zero value enforces.
const (
	Enforce Mode = iota
	Shadow       // decide and record, never deny
	Log          // like Shadow, and log each would-deny
)

var modeNames = [...]string{schema.ModeEnforce, schema.ModeShadow, schema.ModeLog}

func (m Mode) String() string { return modeNames[m] }

// FailMode selects what a policy does while the central store does not answer.
type FailMode uint8

// The fail modes. The zero value limits locally.
const (
	FailLocal FailMode = iota
	FailOpen
	FailClosed
)

var failModeNames = [...]string{schema.FailLocal, schema.FailOpen, schema.FailClosed}

func (f FailMode) String() string { return failModeNames[f] }

// Accuracy selects whether nodes may lease tokens of a policy's buckets ([Policy.Leasable]).
type Accuracy uint8

// The accuracies. The zero value allows leases.
const (
	Leased Accuracy = iota
	Exact           // every request is counted in the central store
)

var accuracyNames = [...]string{schema.AccuracyLeased, schema.AccuracyExact}

func (a Accuracy) String() string { return accuracyNames[a] }

// Modes holds what a policy does: with a denial, while the central store does not answer, and with leases.
type Modes struct {
	Mode     Mode
	FailMode FailMode
	Accuracy Accuracy
}

// ModesOf returns the modes of a config as a whole: a policy may have others.
func ModesOf(config *schema.Config) Modes {
	return Modes{
		parseEnum[Mode](modeNames[:], config.Mode), parseEnum[FailMode](failModeNames[:], config.FailMode),
		parseEnum[Accuracy](accuracyNames[:], config.Accuracy),
	}
}

// parseEnum returns the value with a name, or the zero value if there is none.
func parseEnum[T ~uint8](names []string, name string) T { return T(max(slices.Index(names, name), 0)) }
