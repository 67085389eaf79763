// Package decision combines the statuses of all bounds of a request: whether it is admitted, which bound binds, and how
// long a client should wait.
//
// A [Decision] carries everything that headers, events, usage and metrics need. Package response renders it for
// clients; the stores fill in the statuses.
package decision

import (
	"math/bits"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// Source is the store that answered for a bound.
type Source uint8

// The sources.
const (
	Unanswered Source = iota // no store answered: the bound's fail mode decides
	Memory                   // the buckets of this process
	Redis                    // the buckets that all nodes share
	Leased                   // tokens that this node has leased from Redis, or a denial that it remembers
	Local                    // this node's share of the limit, in this process, while Redis is unavailable
	FairShare                // the cap of the tenant's fair share denies; the bucket was not called
	Sources    = iota        // the number of sources
)

func (s Source) String() string {
	return [...]string{"unanswered", "memory", "redis", "lease", "local", "fair_share"}[s]
}

// Failure is the reason why the central store did not answer for a bound.
type Failure uint8

// The failures. Their names are the reasons of the metrics.
const (
	NoFailure   Failure = iota
	Unavailable         // the request was not sent, or Redis did not run it: nothing was spent
	TimedOut            // no answer in time: it may have been spent
	Lost                // the connection broke, or the answer made no sense: it may have been spent
	Overloaded          // too many requests were waiting for Redis already: nothing was sent
	WrongType           // its key in Redis holds another program's data: nothing was spent
)

var failureNames = [...]string{
	"", "redis_unavailable", "redis_timeout", "redis_lost", "redis_overloaded", "redis_wrong_type",
}

func (f Failure) String() string { return failureNames[f] }

// MayHaveSpent reports whether the request may have been charged although no answer came.
func (f Failure) MayHaveSpent() bool { return f == TimedOut || f == Lost }

// Status is the answer of a store for one bound.
type Status struct {
	limit.Status              // after the request was charged, or as it stands if nothing was
	Wait         limit.Micros // until the bound admits; 0: it admits now; limit.Never: it never will
	Now          limit.Micros // the clock of the bucket's store when it decided
	Source       Source
	Failure      Failure       // of the central store, also where this process answered instead
	Charged      bool          // the bound's cost was spent
	Receipt      limit.Receipt // where Charged, or a slot may have been taken: identifies the charge to a refund
	Settled      int64         // after a settlement: the tokens that the bucket was charged; below 0: that it got back
	Capacity     int64         // where Wait is limit.Never: the bucket's capacity in tokens; 0: the limit's
}

// Admits reports whether this bound alone admits the request. For an unanswered bound Wait is the time that the store
// is expected to be unavailable; use [Denies].
func (s *Status) Admits() bool { return s.Wait == 0 }

// ResetAt returns the instant of X-RateLimit-Reset: the bucket is full again or its window ends. For a denied request
// it is not before the instant at which a retry can succeed: a sliding window may end earlier.
func (s *Status) ResetAt() limit.Micros {
	if s.Admits() || s.Wait == limit.Never {
		return s.Reset
	}
	return max(s.Reset, s.Now+s.Wait)
}

// Denies reports whether a bound with this status denies the request: it is enforced, and it either has no room or was
// not answered and fails closed. One that does not match the request never denies.
func Denies(b *policy.Bound, s *Status) bool {
	if s.Source == Unanswered {
		return b.Decides() && s.Failure != NoFailure && b.Policy.FailMode == policy.FailClosed
	}
	return b.Decides() && !s.Admits()
}

// Capacity returns the capacity, in tokens, of the bucket that s describes.
func Capacity(b *policy.Bound, s *Status) int64 {
	if s.Capacity > 0 {
		return s.Capacity
	}
	return b.Policy.Limit.Capacity()
}

// Result is the outcome of a request.
type Result uint8

// The results, as the metrics name them.
const (
	Allowed       Result = iota
	SoftThrottled        // admitted, and above the soft threshold of an enforced bound
	HardThrottled        // denied
	Exempted             // admitted, and limits did not apply because of an exemption
	Results       = iota // the number of results
)

func (r Result) String() string {
	return [...]string{"allowed", "soft_throttled", "hard_throttled", "exempt"}[r]
}

// Reason is the reason why a request was denied, or admitted without being counted.
type Reason uint8

// The reasons.
const (
	Counted        Reason = iota // the bounds decided (or there were none)
	TenantMissing                // denied: no tenant, and on_missing_tenant is deny
	UserMissing                  // denied: no user, and on_missing_user is deny
	InternalFault                // an internal error: on_internal_error decided
	ConfigFault                  // no usable config: on_config_fault decided
	StoreAway                    // denied: only by bounds that fail closed while their store is unavailable
	MetaLimited                  // denied: the tenant exceeds this node's meta_limit
	Banned                       // denied: an override bans the tenant, user, credential or address
	HeaderRepeated               // denied: a trusted header came with more than one value
	ModelUnpriced                // denied: a limit settles by prices, and the request's model has none
	ShareExceeded                // of one bound in records and metrics: the cap of the tenant's fair share denied
)

func (r Reason) String() string {
	return [...]string{
		"counted", "tenant_missing", "user_missing", "internal_fault", "config_fault", "store_away", "meta_limited", "banned",
		"header_repeated", "model_unpriced", "fair_share",
	}[r]
}

// Decision is the decision about one request. Its slices are reused from request to request: copy what must outlive the
// request. A new one needs Reset too.
type Decision struct {
	Identity   identity.Identity
	Resolution resolve.Resolution
	Statuses   []Status // one for each of Resolution.Bounds

	Result       Result
	Reason       Reason
	Binding      int          // index of the bound that binds; -1 when no enforced bound applies
	OwnBinding   int          // index of the bound that binds among those with a bucket that is not shared; -1: none
	RetryAfter   limit.Micros // the longest wait of a denial by bounds; limit.Never: no wait helps
	ShadowDenied bool         // a bound in shadow or log mode, or a missing name in such a config, would have denied
	ShadowReason Reason       // a reason beside the bounds for a denial in shadow or log mode; Counted: none
	Mode         policy.Mode  // of the config as a whole
	Degraded     bool         // the central store did not answer for some bound
	RequestID    string       // the gateway's id of the request; "" unless it was read at a denial

	// PolicyVersion is the version of the database's policies that decided; 0: the config alone did.
	PolicyVersion int64
	Took          limit.Micros // duration of the take; 0: there was none, or it was not measured

	// Exchange numbers the memory that d is part of, which serves one request after the other. Observers that count in
	// stripes choose one by it. Reset keeps it.
	Exchange uint32
}

// Reset makes d ready for the next request, keeping its memory.
func (d *Decision) Reset() {
	d.Identity.Reset()
	d.Resolution.Reset()
	d.Statuses = d.Statuses[:0]
	d.Result, d.Reason, d.Binding, d.OwnBinding, d.RetryAfter = Allowed, Counted, -1, -1, 0
	d.ShadowDenied, d.ShadowReason, d.Mode, d.Degraded, d.Took = false, Counted, policy.Enforce, false, 0
	d.RequestID, d.PolicyVersion = "", 0
}

// Grow makes room for one status per bound.
func (d *Decision) Grow() {
	n := len(d.Resolution.Bounds)
	if cap(d.Statuses) < n {
		d.Statuses = make([]Status, n, 2*n)
	}
	d.Statuses = d.Statuses[:n]
	clear(d.Statuses)
}

// Denied reports whether the request is denied.
func (d *Decision) Denied() bool { return d.Result == HardThrottled }

// Deny denies the request for another reason than its bounds. They were not taken, so the decision drops them.
func (d *Decision) Deny(reason Reason) {
	d.Result, d.Reason = HardThrottled, reason
	d.Resolution.Bounds = d.Resolution.Bounds[:0]
}

// DenyOrRecord denies the request for another reason than its bounds; in a config that does not enforce it records the
// denial only. retryAfter is the time that the reason lasts; 0: unknown.
func (d *Decision) DenyOrRecord(reason Reason, retryAfter limit.Micros) {
	if d.Mode == policy.Enforce {
		d.Deny(reason)
		d.RetryAfter = retryAfter
	} else {
		d.ShadowDenied, d.ShadowReason = true, reason
	}
}

// Ban denies the request at now because an override bans it; Retry-After is the ban's end.
func (d *Decision) Ban(now limit.Micros) {
	wait := limit.Never
	if d.Resolution.Until > 0 {
		wait = max(d.Resolution.Until-now, 1)
	}
	d.DenyOrRecord(Banned, wait)
}

// Combine decides from the statuses of all bounds.
//
// The request is denied if any enforced bound denies: then the binding bound is the denying one that waits longest.
// Otherwise the binding bound is the enforced one with the smallest remaining ÷ limit. A tie goes to the longer window
// either way. Bounds in shadow are recorded and never bind, and those that do not match the request do neither.
//
// OwnBinding follows the same rule among the bounds whose buckets are not shared. Clients read its numbers; Binding,
// Result and RetryAfter cover all bounds.
//
// An unanswered bound neither admits nor binds. If it fails closed it denies, but a bound without room takes
// precedence: the client then reads which limit it met, and not that the service has trouble.
func (d *Decision) Combine() {
	outage := limit.Micros(0)
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		d.Degraded = d.Degraded || status.Failure != NoFailure
		switch {
		case status.Source == Unanswered:
			if Denies(bound, status) {
				outage = max(outage, status.Wait, 1)
			}
		case !bound.Decides():
			d.ShadowDenied = d.ShadowDenied || !status.Admits()
		default:
			d.RetryAfter = max(d.RetryAfter, status.Wait)
			if !status.Admits() {
				d.Result = HardThrottled
			} else if status.Soft && d.Result == Allowed {
				d.Result = SoftThrottled
			}
			if d.Binding = d.stricter(d.Binding, i); !bound.Key.Shared() {
				d.OwnBinding = d.stricter(d.OwnBinding, i)
			}
		}
	}
	if outage > 0 && d.Result != HardThrottled {
		d.Result, d.Reason, d.RetryAfter, d.Binding, d.OwnBinding = HardThrottled, StoreAway, outage, -1, -1
	}
}

// RecordExemption sets the result of an admitted request that an exemption lifts limits from.
func (d *Decision) RecordExemption() {
	if d.Result == Allowed && d.Resolution.Exemption.By != "" {
		d.Result = Exempted
	}
}

// BindingWhere returns the index of the bound that binds among those for which shown returns true; -1: none.
func (d *Decision) BindingWhere(shown func(*policy.Bound) bool) int {
	binding := -1
	for i := range d.Statuses {
		bound := &d.Resolution.Bounds[i]
		if d.Reason != StoreAway && bound.Decides() && d.Statuses[i].Source != Unanswered && shown(bound) {
			binding = d.stricter(binding, i)
		}
	}
	return binding
}

// KnownEndpoint returns the endpoint, or "" if it is the name of a route that isRoute denies. Callers that name their
// routes themselves could make any number of them. If isRoute is nil, every name is a route.
func (d *Decision) KnownEndpoint(isRoute func(name string) bool) string {
	name := d.Resolution.Endpoint
	if isRoute != nil && name == d.Identity.Route && !isRoute(name) {
		return ""
	}
	return name
}

// Filter returns the decision that the bounds for which kept returns true would have made, from the statuses they have.
func (d *Decision) Filter(kept func(*policy.Bound) bool) *Decision {
	among := *d
	among.Resolution.Bounds, among.Statuses = nil, nil
	for i := range d.Statuses {
		if b := &d.Resolution.Bounds[i]; kept(b) {
			among.Resolution.Bounds = append(among.Resolution.Bounds, *b)
			among.Statuses = append(among.Statuses, d.Statuses[i])
		}
	}
	among.Result, among.Reason, among.Binding, among.OwnBinding, among.RetryAfter = Allowed, Counted, -1, -1, 0
	among.ShadowDenied, among.Degraded = d.ShadowReason != Counted, false
	among.Combine()
	among.RecordExemption()
	return &among
}

// stricter returns the index of the answered bound that binds: the one that waits longer, or, if both admit, the one
// with less of its limit left; i on a tie. If i is -1 it returns j.
func (d *Decision) stricter(i, j int) int {
	if i < 0 {
		return j
	}
	a, b := d.Statuses[i].Wait, d.Statuses[j].Wait
	switch {
	case b > a, a == b && a > 0 && d.longer(j, i), a == 0 && b == 0 && d.tighter(j, i):
		return j
	}
	return i
}

// tighter reports whether bound i has less of its limit left than bound j.
func (d *Decision) tighter(i, j int) bool {
	a, b := d.Resolution.Bounds[i].Policy.Limit.Spec(), d.Resolution.Bounds[j].Policy.Limit.Spec()
	// remaining_i ÷ limit_i < remaining_j ÷ limit_j, multiplied out in 128 bits.
	hi1, lo1 := bits.Mul64(uint64(d.Statuses[i].Remaining), uint64(b.Burst))
	hi2, lo2 := bits.Mul64(uint64(d.Statuses[j].Remaining), uint64(a.Burst))
	if hi1 != hi2 {
		return hi1 < hi2
	}
	if lo1 != lo2 {
		return lo1 < lo2
	}
	return d.longer(i, j)
}

// longer reports whether bound i has a longer window than bound j.
func (d *Decision) longer(i, j int) bool {
	window := func(i int) limit.Micros { return d.Resolution.Bounds[i].Policy.Limit.WindowAt(d.Statuses[i].Now) }
	return window(i) > window(j)
}

// Denier describes what denied a request, for records of denials: the limit as it was then. A field is absent where
// nothing is known of it.
type Denier struct {
	Tier          string `json:"tier,omitempty"           doc:"Of the requests."                                                                   example:"gold"`
	PolicyFor     string `json:"policy_for,omitempty"     doc:"What the policy applies to."                                                        example:"tier gold"`
	PolicyID      *int64 `json:"policy_id,omitempty"      doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	PolicyVersion *int64 `json:"policy_version,omitempty" doc:"The version of all rows that decided, as in fleet and audit; absent: the config alone did."`
	Capacity      *int64 `json:"capacity,omitempty"       doc:"Tokens that the limit holds at most."`
	Cost          *int64 `json:"cost,omitempty"           doc:"Tokens that the request would have taken."`
	Remaining     *int64 `json:"remaining,omitempty"      doc:"Tokens that were left."`
	Unit          string `json:"unit,omitempty"           doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens."               enum:"usd"`
	Override      *int64 `json:"override,omitempty"       doc:"The id of the override that changed the limit, or that bans."`
	Penalty       *int64 `json:"penalty,omitempty"        doc:"The id of the detector's override that lowered the limit."`
}
