package policy

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Mode is what a policy does with a denial.
type Mode uint8

// The modes. The zero value enforces.
const (
	Enforce Mode = iota
	Shadow       // decide and record, never deny
	Log          // like Shadow, and log each would-deny
)

func (m Mode) String() string { return [...]string{"enforce", "shadow", "log"}[m] }

// FailMode is what a policy does when its store is away.
type FailMode uint8

// The fail modes. The zero value limits locally.
const (
	FailLocal FailMode = iota
	FailOpen
	FailClosed
)

func (f FailMode) String() string { return [...]string{"local", "open", "closed"}[f] }

// Accuracy is whether nodes may take tokens of a policy's buckets ahead of need: see [Policy.Leasable].
type Accuracy uint8

// The accuracies. The zero value allows leases.
const (
	Leased Accuracy = iota
	Exact           // every request asks the shared store
)

func (a Accuracy) String() string { return [...]string{"leased", "exact"}[a] }

// Scope is what a limit is counted per.
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

var scopeNames = [...]string{"", "tenant", "user", "credential", "ip", "endpoint", "global", "tenant+endpoint", "user+endpoint"}

func (s Scope) String() string { return scopeNames[s] }

// PerScope returns what a limit is counted per, given the name of its scope: "per tenant", or "in total" for global.
func PerScope(name string) string {
	if name == scopeNames[Global] {
		return "in total"
	}
	return "per " + name
}

// ByEndpoint tells whether each endpoint has a bucket of its own.
func (s Scope) ByEndpoint() bool { return s == Endpoint || s == TenantEndpoint || s == UserEndpoint }

// ByUser tells whether each user of a tenant has a bucket of its own.
func (s Scope) ByUser() bool { return s == User || s == UserEndpoint }

// Shared reports whether all tenants spend from the buckets of the scope.
func (s Scope) Shared() bool { return s == Endpoint || s == Global }

// Policy is a named, compiled limit and whom it applies to. It is immutable. What resolving reads comes before Limit, so
// that it lies together.
type Policy struct {
	Name     string
	Scope    Scope
	Tier     string // the tier it is a default of; "" for anonymous and global policies
	Endpoint string // the canonical pattern it applies to; "" for every endpoint
	Mode     Mode
	FailMode FailMode
	Accuracy Accuracy
	Cost     int64 // tokens that a request costs here; -1: what the request costs elsewhere too
	Row      int64 // the id of the row of a database that it is; 0: it is a config's

	pattern int // index of Endpoint among the config's patterns; -1 for every endpoint, and for a row's
	Limit   limit.Limit

	PublicNote string // what the tenant reads about a row; "": nothing
	quota      string // the policy as an item of the RateLimit-Policy field: "burst";q=100;w=60
}

// Quota is the policy as an item of the IETF RateLimit-Policy field.
func (p *Policy) Quota() string { return p.quota }

// Describe is the policy's limit in words, for logs.
func (p *Policy) Describe() string {
	spec := p.Limit.Spec()
	text := fmt.Sprintf("%d per %d s", spec.Quantity, spec.Window/limit.Second)
	if spec.Burst != spec.Quantity {
		text += fmt.Sprintf(" with a burst of %d", spec.Burst)
	}
	return fmt.Sprintf("%s (%s) %s", text, spec.Algorithm, PerScope(p.Scope.String()))
}

// ByRoute tells whether the policy counts endpoints apart without a pattern that says which: then a bucket is known by the
// name of the request's route.
func (p *Policy) ByRoute() bool { return p.Scope.ByEndpoint() && p.Endpoint == "" }

// Leasable tells whether nodes may take tokens of the policy's buckets ahead of need: its accuracy allows it, and its
// algorithm is one of which tokens can be taken so. A leased bucket is asked with less than it holds. So a policy of
// which every request costs nearly all that it holds is not leasable, for none might be admitted.
//
// Whether the limit is large enough to be worth it is not looked at.
func (p *Policy) Leasable() bool {
	switch p.Limit.Spec().Algorithm {
	case limit.TokenBucket, limit.FixedWindow:
		return p.Accuracy == Leased && 100*p.Cost <= schema.LeasedCostPct*p.Limit.Capacity()
	default:
		return false
	}
}

// Group is whose buckets are kept together: all of one group's buckets share a slot in a cluster.
type Group uint8

// The groups.
const (
	ByTenant   Group = iota + 1 // GroupID is the tenant
	ByIP                        // GroupID is the address, or the /64 of an IPv6 address
	ByEndpoint                  // GroupID is the endpoint
	ByAll                       // GroupID is ""
)

// Kind is what the subject within a group is.
type Kind uint8

// The kinds. A user and a credential of one name are two subjects.
const (
	WholeGroup Kind = iota // Subject is "": the bucket belongs to the group
	KindUser
	KindCredential
	KindIP
)

// Key names a bucket: (namespace, policy name, subject). Two bounds with one key spend from one bucket, wherever
// they were configured. Keys are comparable; their parts are the raw identities, so a store that joins them into a
// string must escape them.
type Key struct {
	Namespace string
	Policy    string
	Group     Group
	Kind      Kind
	GroupID   string
	Subject   string
	Endpoint  string // scopes with an endpoint beside a tenant or user only
}

// Shared reports whether all tenants spend from the bucket: it is counted per endpoint or for everybody, so its numbers
// are not those of one tenant, user, credential or address.
func (k *Key) Shared() bool { return k.Group == ByEndpoint || k.Group == ByAll }

// Whose is who has the bucket within its group, in words; "": the whole group has it.
func (k *Key) Whose() string {
	switch k.Kind {
	case KindUser:
		return "user " + k.Subject
	case KindCredential:
		return "credential " + k.Subject
	case KindIP:
		return "ip " + k.Subject
	default:
		return ""
	}
}

// KeysOf are the buckets of bounds.
func KeysOf(bounds []Bound) []Key {
	keys := make([]Key, len(bounds))
	for i := range keys {
		keys[i] = bounds[i].Key
	}
	return keys
}

// Bound is a policy resolved for one request: which bucket it spends from, and how much.
type Bound struct {
	Policy *Policy
	Key    Key
	Cost   int64 // tokens; 0 reads without spending

	Override int64 // the id of the commercial override that changed the limit; 0: none did
	Penalty  int64 // the id of a detector's that changed it after that; 0: none did
}

// Enforced tells whether the bound can deny.
func (b *Bound) Enforced() bool { return b.Policy.Mode == Enforce }
