// Package decision says what the answers of all bounds of a request mean together: whether it is admitted, which
// bound binds, and how long a client should wait.
//
// A [Decision] carries everything that headers, events, usage and metrics need, so that nothing is asked twice. How
// it looks to a client is package response's; how the answers came about is the stores'.
package decision

import (
	"math/bits"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Source is who answered for a bound.
type Source uint8

// The sources.
const (
	Unanswered Source = iota // nobody could say: the bound's fail mode decides
	Memory                   // the buckets of this process
	Redis                    // the buckets that all nodes share
	Leased                   // what this node has taken from those ahead of need, or remembers of them
	Local                    // this node's share of the limit, in this process, while Redis is away
)

func (s Source) String() string {
	return [...]string{"unanswered", "memory", "redis", "lease", "local"}[s]
}

// Failure is why the store that all nodes share did not answer for a bound.
type Failure uint8

// The failures. Their names are the reasons of the metrics.
const (
	NoFailure   Failure = iota
	Unavailable         // the request was not sent, or Redis refused to run it: it was not spent
	TimedOut            // no answer in time: it may have been spent
	Lost                // the connection broke, or the answer made no sense: it may have been spent
	Overloaded          // too many requests were waiting for Redis already: it was not sent
	WrongType           // its key in Redis holds something that is not ours: it was not spent
)

var failureNames = [...]string{"", "redis_unavailable", "redis_timeout", "redis_lost", "redis_overloaded", "redis_wrong_type"}

func (f Failure) String() string { return failureNames[f] }

// MayHaveSpent tells whether the request may have been charged although no answer came.
func (f Failure) MayHaveSpent() bool { return f == TimedOut || f == Lost }

// Status is one bound's answer.
type Status struct {
	limit.Status              // after the request was charged, or as it stands if nothing was
	Wait         limit.Micros // 0: this bound admits; else how long until it would; limit.Never: it never will
	Now          limit.Micros // the store's clock when it answered
	Source       Source
	Failure      Failure       // of the shared store, also where this process answered in its stead
	Charged      bool          // the bound's cost was spent
	Receipt      limit.Receipt // where Charged: what a refund must know of it
	Returned     int64         // after a refund: how many tokens the bucket got back
	Capacity     int64         // where Wait is limit.Never: the most tokens that the bucket can hold, as it was asked; 0: as many as its limit
}

// Admits tells whether this bound, alone, lets the request through. Of an unanswered one Wait is how long the store is
// expected to be away; see [Denies].
func (s *Status) Admits() bool { return s.Wait == 0 }

// ResetAt is the reset that a client is told: when all of the limit is there again, or its window ends. A client that is
// refused is not sent back earlier than that helps, though a sliding window may end before its request fits.
func (s *Status) ResetAt() limit.Micros {
	if s.Admits() || s.Wait == limit.Never {
		return s.Reset
	}
	return max(s.Reset, s.Now+s.Wait)
}

// Denies tells whether a bound with this status refuses the request: it is enforced, and has no room, or nobody could
// say and it fails closed.
func Denies(b *policy.Bound, s *Status) bool {
	if s.Source == Unanswered {
		return b.Enforced() && s.Failure != NoFailure && b.Policy.FailMode == policy.FailClosed
	}
	return b.Enforced() && !s.Admits()
}

// Capacity is the most tokens that the bucket of a bound can hold, as it was asked for this status.
func Capacity(b *policy.Bound, s *Status) int64 {
	if s.Capacity > 0 {
		return s.Capacity
	}
	return b.Policy.Limit.Capacity()
}

// Result is the answer to a request.
type Result uint8

// The results, as the metrics name them.
const (
	Allowed       Result = iota
	SoftThrottled        // allowed, and above the soft threshold of an enforced bound
	HardThrottled        // denied
)

func (r Result) String() string { return [...]string{"allowed", "soft_throttled", "hard_throttled"}[r] }

// Reason is why a request was denied, or admitted without being counted.
type Reason uint8

// The reasons.
const (
	Counted        Reason = iota // the bounds decided (or there were none)
	TenantMissing                // denied: no tenant, and on_missing_tenant is deny
	UserMissing                  // denied: no user, and on_missing_user is deny
	InternalFault                // an internal error: on_internal_error decided
	ConfigFault                  // no usable config: on_config_fault decided
	StoreAway                    // denied: only by bounds that fail closed while their store is away
	MetaLimited                  // denied: the tenant exceeds this node's meta_limit
	Banned                       // denied: an override bans whoever this is
	HeaderRepeated               // denied: a trusted header came with more than one value
)

func (r Reason) String() string {
	return [...]string{
		"counted", "tenant_missing", "user_missing", "internal_fault", "config_fault", "store_away", "meta_limited", "banned",
		"header_repeated",
	}[r]
}

// Decision is the answer to one request. Its slices are reused from request to request: whoever keeps a decision
// must copy what it needs. Reset makes a new one ready, too.
type Decision struct {
	Identity   identity.Identity
	Resolution policy.Resolution
	Statuses   []Status // one for each of Resolution.Bounds

	Result       Result
	Reason       Reason
	Binding      int          // index of the bound that binds; -1 when no enforced bound applies
	OwnBinding          int          // index of the bound that binds among those with a bucket that is not shared; -1: none
	RetryAfter   limit.Micros // of a denial by bounds: the longest wait; limit.Never when no wait helps
	ShadowDenied bool         // a bound in shadow or log mode, or a missing name in such a config, would have denied
	ShadowReason Reason       // what a config in shadow or log mode would have denied for beside its bounds; Counted: nothing
	Mode         policy.Mode  // of the config as a whole
	Degraded     bool         // the shared store did not answer for all bounds
	RequestID    string       // what the gateway calls the request; "" unless it was asked at a denial

	// PolicyVersion is the version of the database's policies by which the request was decided; 0: of the config alone.
	PolicyVersion int64
	Took          limit.Micros // how long the buckets took to answer; 0: they were not asked, or nobody measured
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

// Denied tells whether the request must not go on.
func (d *Decision) Denied() bool { return d.Result == HardThrottled }

// Deny refuses the request for another reason than its bounds: they were not asked, so none of them is part of the
// decision.
func (d *Decision) Deny(reason Reason) {
	d.Result, d.Reason = HardThrottled, reason
	d.Resolution.Bounds = d.Resolution.Bounds[:0]
}

// DenyOrRecord refuses the request for another reason than its bounds, or records that it would have been where the config
// does not enforce. retryAfter is how long the reason lasts; 0: that is not known.
func (d *Decision) DenyOrRecord(reason Reason, retryAfter limit.Micros) {
	if d.Mode == policy.Enforce {
		d.Deny(reason)
		d.RetryAfter = retryAfter
	} else {
		d.ShadowDenied, d.ShadowReason = true, reason
	}
}

// Ban refuses the request at an instant because an override bans it; Retry-After is the ban's end.
func (d *Decision) Ban(now limit.Micros) {
	wait := limit.Never
	if d.Resolution.Until > 0 {
		wait = max(d.Resolution.Until-now, 1)
	}
	d.DenyOrRecord(Banned, wait)
}

// Combine decides from the statuses of all bounds.
//
// Denied if any enforced bound denies: then the binding bound is the denying one that waits longest. Otherwise the
// binding bound is the enforced one with the smallest remaining ÷ limit. A tie goes to the longer window either way.
// Bounds in shadow are recorded and never bind.
//
// Own is found by the same rule among the bounds whose buckets are not shared. Clients read its numbers; Binding,
// Result and RetryAfter count all bounds.
//
// A bound whose store could not say neither admits nor binds. If it fails closed it denies, but one that really has no
// room goes first: the client then reads which, and not that the service has trouble.
func (d *Decision) Combine() {
	away := limit.Micros(0)
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		d.Degraded = d.Degraded || status.Failure != NoFailure
		switch {
		case status.Source == Unanswered:
			if Denies(bound, status) {
				away = max(away, status.Wait, 1)
			}
		case !bound.Enforced():
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
	if away > 0 && d.Result != HardThrottled {
		d.Result, d.Reason, d.RetryAfter, d.Binding, d.OwnBinding = HardThrottled, StoreAway, away, -1, -1
	}
}

// BindingWhere returns the index of the bound that binds among those for which shown holds; -1: none.
func (d *Decision) BindingWhere(shown func(*policy.Bound) bool) int {
	binding := -1
	for i := range d.Statuses {
		bound := &d.Resolution.Bounds[i]
		if d.Reason != StoreAway && bound.Enforced() && d.Statuses[i].Source != Unanswered && shown(bound) {
			binding = d.stricter(binding, i)
		}
	}
	return binding
}

// Filter returns what would have been decided by those of the bounds for which kept holds, from the statuses that they
// have.
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
	return &among
}

// stricter returns which of two answered bounds binds, i if neither does more: the one that waits longer, or, if both
// admit, the one that has less of its limit left. i is -1 where there is only j.
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

// tighter tells whether bound i has less of its limit left than bound j.
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

// longer tells whether bound i has a longer window than bound j.
func (d *Decision) longer(i, j int) bool {
	return d.Resolution.Bounds[i].Policy.Limit.Spec().Window > d.Resolution.Bounds[j].Policy.Limit.Spec().Window
}
