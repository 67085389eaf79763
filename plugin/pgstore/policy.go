package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
)

// Policy is one named limit for a tier or a tenant. Its fields have the names, values and units that they have in the
// plugin's config. An empty text and a zero number mean absent.
type Policy struct {
	// The database's id. A write does not need it.
	ID int64 `json:"id,omitempty" yaml:"-"`

	// What names the policy: see PolicyKey. Either Tier or Tenant is given.
	Namespace string `json:"namespace,omitempty" yaml:"namespace,omitempty"`
	Name      string `json:"name" yaml:"name"`
	Tier      string `json:"tier,omitempty" yaml:"tier,omitempty"`
	Tenant    string `json:"tenant,omitempty" yaml:"tenant,omitempty"`
	Endpoint  string `json:"endpoint,omitempty" yaml:"endpoint,omitempty"`
	Slot      string `json:"slot,omitempty" yaml:"slot,omitempty"`

	// The limit: tokens per seconds, and a burst in tokens. Without an algorithm it is a token_bucket.
	Scope      string `json:"scope" yaml:"scope"`
	Limit      int64  `json:"limit" yaml:"limit"`
	WindowSize int64  `json:"window_size" yaml:"window_size"`
	Algorithm  string `json:"algorithm,omitempty" yaml:"algorithm,omitempty"`
	Burst      int64  `json:"burst,omitempty" yaml:"burst,omitempty"`

	// Thresholds in percent.
	SoftThresholdPct int64 `json:"soft_threshold_pct,omitempty" yaml:"soft_threshold_pct,omitempty"`
	HardThresholdPct int64 `json:"hard_threshold_pct,omitempty" yaml:"hard_threshold_pct,omitempty"`
	SoftOnly         bool  `json:"soft_only,omitempty" yaml:"soft_only,omitempty"`

	Mode     string `json:"mode,omitempty" yaml:"mode,omitempty"`
	Cost     *int64 `json:"cost,omitempty" yaml:"cost,omitempty"` // tokens; nil is absent, which differs from 0
	FailMode string `json:"fail_mode,omitempty" yaml:"fail_mode,omitempty"`
	Accuracy string `json:"accuracy,omitempty" yaml:"accuracy,omitempty"`

	// What the tenant reads about it.
	PublicNote string `json:"public_note,omitempty" yaml:"public_note,omitempty"`

	// How often it was written, from 1. In a write: the revision that it was made from; or AnyRevision, Absent or Present.
	Revision int64 `json:"revision,omitempty" yaml:"-"`
}

// Slots of a policy.
const (
	SlotActive    = "active"    // in force
	SlotCandidate = "candidate" // applies to nothing: no new ones are written, old ones can be listed and deleted
)

// NoCandidate is why a policy of the slot candidate is not written, for people.
const NoCandidate = "must be active, or left out: a candidate applies to no request; to try a limit, write it under another name with mode shadow"

// PolicyKey names one policy. Two endpoints that differ in the names of parameters alone are one.
type PolicyKey struct {
	Namespace string // "": default
	Name      string
	Tier      string
	Tenant    string
	Endpoint  string
	Slot      string // "": active
}

// Key is what names p.
func (p Policy) Key() PolicyKey {
	return PolicyKey{p.Namespace, p.Name, p.Tier, p.Tenant, p.Endpoint, p.Slot}.withDefaults()
}

func (k PolicyKey) withDefaults() PolicyKey {
	k.Namespace, k.Slot = cmp.Or(k.Namespace, defaultNamespace), cmp.Or(k.Slot, SlotActive)
	return k
}

// String names the policy as people do.
func (k PolicyKey) String() string {
	text := "policy " + k.Name
	if k.Tenant != "" {
		text += " of tenant " + k.Tenant
	}
	if k.Tier != "" {
		text += " of tier " + k.Tier
	}
	if k.Endpoint != "" {
		text += " for " + k.Endpoint
	}
	if k.Namespace != "" && k.Namespace != defaultNamespace {
		text += " in namespace " + k.Namespace
	}
	if k.Slot == SlotCandidate {
		text += " (candidate)"
	}
	return text
}

// PolicyFilter selects policies. Each field that is not empty must be met; the zero value selects all.
type PolicyFilter struct {
	Namespace, Name, Tier, Tenant, Slot string

	Endpoint string // whatever its parameters are called

	After int64 // only policies of a larger ID: where the last page ended
	Max   int   // at most so many; 0: all
}

const (
	defaultNamespace = "default"
	defaultAlgorithm = "token_bucket"
)

const selectPolicies = `SELECT id, namespace, name, tier, tenant, endpoint, scope, "limit", window_size, algorithm,
	coalesce(burst, 0) AS burst, coalesce(soft_threshold_pct, 0) AS soft_threshold_pct,
	coalesce(hard_threshold_pct, 0) AS hard_threshold_pct, soft_only, mode, cost, fail_mode, accuracy, public_note, slot, revision
	FROM rate_limiter.policies`

// Policies are the policies that a filter selects, in the order of their IDs.
func (s *Store) Policies(ctx context.Context, f PolicyFilter) ([]Policy, error) {
	return all(s.EachPolicy(ctx, f))
}

// EachPolicy yields what Policies returns, row by row as the database sends them. An error ends it.
func (s *Store) EachPolicy(ctx context.Context, f PolicyFilter) iter.Seq2[Policy, error] {
	return policies(ctx, s.pool, f)
}

func policies(ctx context.Context, q query, f PolicyFilter) iter.Seq2[Policy, error] {
	var w where
	w.equal("namespace", f.Namespace)
	w.equal("name", f.Name)
	w.equal("tier", f.Tier)
	w.equal("tenant", f.Tenant)
	w.equal("slot", f.Slot)
	w.endpoint(f.Endpoint)
	if f.After > 0 {
		w.add("id > %s", f.After)
	}
	return each[Policy](ctx, q, "list policies", selectPolicies+w.String()+" ORDER BY id"+most(f.Max), w.args...)
}

// Policy is one policy, or a NotFoundError.
func (s *Store) Policy(ctx context.Context, key PolicyKey) (Policy, error) {
	p, err := policyByKey(ctx, s.pool, key)
	return p, fail("read "+key.String(), err)
}

// PolicyByID is one policy, or a NotFoundError.
func (s *Store) PolicyByID(ctx context.Context, id int64) (Policy, error) {
	p, err := policyByID(ctx, s.pool, id)
	return p, fail(fmt.Sprint("read policy ", id), err)
}

func policyByID(ctx context.Context, q query, id int64) (Policy, error) {
	return one[Policy](ctx, q, fmt.Sprint("policy ", id), selectPolicies+` WHERE id = $1`, id)
}

func policyByKey(ctx context.Context, q query, key PolicyKey) (Policy, error) {
	key = key.withDefaults()
	return one[Policy](ctx, q, key.String(), selectPolicies+` WHERE tenant = $1 AND name = $2 AND tier = $3 AND namespace = $4 AND slot = $5
		AND rate_limiter.canonical_endpoint(endpoint) = rate_limiter.canonical_endpoint($6)`,
		key.Tenant, key.Name, key.Tier, key.Namespace, key.Slot, key.Endpoint)
}
