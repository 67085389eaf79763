package reservation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Record holds what one request has reserved, and all that is needed to settle it. Another process with another config
// reads it from [Records].
type Record struct {
	Bounds   []policy.Bound    // of limits that reserve; Cost is the reservation
	Statuses []decision.Status // of their takes, one for each bound
	Made     limit.Micros      // by the wall clock
	Timeout  limit.Micros      // after it the reservation stays charged; a slot has ended by then, maybe long before
	Tenant   string            // of the request; "": none
	Endpoint string            // of the request; "": none
	Calls    *settle.Calls     // where calls are read, with the prices when it was made; nil: no bound needs them

	// Of a record that another process has made, or that this one may have claimed before: the bounds that only that
	// process could return tokens to. They can be charged more, in the central store.
	chargeOnly []bool
}

// NewRecord returns what d has reserved at an instant of the wall clock, in limits that reserve, or nil if there is
// nothing to settle. It keeps nothing of d but the policies and copies of names.
func NewRecord(d *decision.Decision, made limit.Micros) *Record {
	var r *Record
	for i := range d.Statuses {
		b, s := &d.Resolution.Bounds[i], d.Statuses[i]
		if !b.Policy.Reserves() || !isReserved(b, &s) {
			continue
		}
		if r == nil {
			r = &Record{Made: made, Endpoint: strings.Clone(d.Resolution.Endpoint), Calls: d.Resolution.Calls}
			if d.Identity.Tenant.Kind == identity.Tenant {
				r.Tenant = strings.Clone(d.Identity.Tenant.ID)
			}
		}
		s.Charged = true
		kept := *b
		kept.Key = b.Key.Clone()
		r.Bounds, r.Statuses = append(r.Bounds, kept), append(r.Statuses, s)
		r.Timeout = max(r.Timeout, b.Policy.Timeout())
	}
	return r
}

// isReserved reports whether a bound can be settled: it was charged, it reserved 0 tokens of a bucket that answered, or
// fail mode open admitted it, so that its cost is due from the central store. A slot can be only if it was taken.
func isReserved(b *policy.Bound, s *decision.Status) bool {
	if b.Key.Slots {
		return s.Charged
	}
	if s.Source == decision.Unanswered {
		return b.Enforced() && s.Failure != decision.NoFailure
	}
	return s.Charged || b.Cost == 0 && s.Admits()
}

// Needs returns what must be read of the request's end to measure it.
func (r *Record) Needs() settle.Needs {
	var needs settle.Needs
	if r.Calls != nil {
		needs = r.Calls.Needs
	}
	for i := range r.Bounds {
		if rule := r.Bounds[i].Policy.Settle; rule != nil {
			needs = needs.Union(rule.Needs())
		}
	}
	return needs
}

// Slots returns the number of slots of concurrency limits that the request holds.
func (r *Record) Slots() (n int) {
	for i := range r.Bounds {
		if r.Bounds[i].Key.Slots {
			n++
		}
	}
	return n
}

// measuredOutcomes holds the outcomes of settlements by those of their measurement.
var measuredOutcomes = [...]Outcome{
	settle.Measured: Measured, settle.Refunded: Refunded, settle.Unmeasured: Unmeasured,
	settle.Streamed: Streamed,
}

// Measure returns the settlement of each bound, by the answers of Kong's log phase. A slot is released, whatever they
// are. late reports whether the timeout is over: then the outcome of a measured bound is Late.
func (r *Record) Measure(a *settle.Answer, late bool) []Settlement {
	call := r.Calls.Call(a)
	return r.measure(&call, late, func(p *policy.Policy) (int64, settle.Outcome) { return p.Settle.Measure(a, call) })
}

// measure returns the settlement of each bound by what used says that the request used of a policy that settles. Where
// that is unknown, a bound that has reserved nothing for the model that the request stated is charged its reservation,
// unless another model has answered. The first one that is not refunded has the call, if that is known.
func (r *Record) measure(
	call *settle.Call, late bool, used func(*policy.Policy) (int64, settle.Outcome),
) []Settlement {
	all := make([]Settlement, len(r.Bounds))
	due := r.Calls != nil && call.Outcome == settle.Measured // to be reported
	for i := range all {
		all[i].Outcome = Released
		if p := r.Bounds[i].Policy; p.Settle != nil {
			actual, outcome := used(p)
			all[i] = Settlement{Outcome: measuredOutcomes[outcome], Actual: actual}
			if r.Bounds[i].Unmatched && all[i].Outcome.keeps() {
				all[i].Actual = 0
				if matches, known := p.Settle.Match().Matches(call.Model, call.Provider); matches || !known {
					all[i].Actual = p.Settle.Reserve(0, 1)
				}
			}
			if due && outcome != settle.Refunded { // a call whose model has no price is reported too
				all[i].Call, due = call, false
			}
		}
		if late && !all[i].Outcome.keeps() {
			all[i].Outcome = Late
		}
	}
	return all
}

// Settle changes the buckets to the actual tokens of the settlements, one for each bound. An unmeasured bound that has
// reserved stays as it is, and a late one gets nothing back. A slot is released, or has ended by its deadline: then its
// outcome is Ended. It sets the change of each settlement, and the outcome to Lost where the change was not made. Call
// it once, for a record that this process has taken out.
func (r *Record) Settle(ctx context.Context, buckets Buckets, all []Settlement) error {
	actual, changes := make([]int64, len(r.Bounds)), false
	for i := range actual {
		actual[i] = r.cost(i, all[i])
		changes = changes || actual[i] != r.Bounds[i].Cost
	}
	if !changes {
		return nil
	}
	statuses := slices.Clone(r.Statuses)
	err := buckets.Settle(ctx, r.Bounds, statuses, actual)
	for i := range statuses {
		change := statuses[i].Settled
		all[i].Change = change
		if r.Bounds[i].Key.Slots {
			all[i].Outcome = slotOutcome(all[i].Outcome, &statuses[i], &r.Statuses[i], err)
			continue
		}
		if err != nil || statuses[i].Failure != r.Statuses[i].Failure || change == 0 && actual[i] > r.Bounds[i].Cost {
			all[i].Outcome = Lost
		}
	}
	if err != nil {
		return fmt.Errorf("settle %d bounds: %w", len(r.Bounds), err)
	}
	return nil
}

// slotOutcome returns what became of a slot by its release. Late is the outcome of one whose end was reported before.
func slotOutcome(measured Outcome, released, taken *decision.Status, err error) Outcome {
	switch {
	case released.Settled != 0:
		return Released
	case measured == Late:
		return Late
	case err != nil || released.Failure != taken.Failure:
		return Lost
	}
	return Ended
}

// SettlementsOf returns the settlement of each bound to what was used; nil: that is unknown. Without a call that is the
// same of each. The nil record has no bounds. The error is ErrUsed if only a call can settle all bounds.
func (r *Record) SettlementsOf(u *Use, late bool) (all []Settlement, err error) {
	switch {
	case r == nil:
		return nil, nil
	case u == nil:
		return slices.Repeat([]Settlement{{Outcome: Unmeasured}}, len(r.Bounds)), nil
	case r.hasUnits() && u.Call == (Used{}):
		err = ErrUsed
	}
	call := settle.Call{
		Model: u.Call.Model, Provider: u.Call.Provider, Prompt: u.Call.Prompt, Completion: u.Call.Completion,
	}
	if r.Calls.Price(&call); u.Call == (Used{}) {
		call.Outcome = settle.Unmeasured
	}
	return r.measure(&call, late, func(p *policy.Policy) (int64, settle.Outcome) {
		if u.Call == (Used{}) {
			return u.Actual, settle.Measured
		}
		return p.Settle.Charge(&call, u.Actual, p.Unit != "")
	}), err
}

// hasUnits reports whether limits of tokens and of money have reserved.
func (r *Record) hasUnits() bool {
	isMoney := func(b policy.Bound) bool { return b.Policy.Unit != "" }
	isTokens := func(b policy.Bound) bool { return b.Policy.Unit == "" && !b.Key.Slots }
	return slices.ContainsFunc(r.Bounds, isMoney) && slices.ContainsFunc(r.Bounds, isTokens)
}

// least says what the first limit must be charged at least that would get back a part of what it has reserved; "": none
// would.
func (r *Record) least(all []Settlement) string {
	for i := range all {
		if b := &r.Bounds[i]; !b.Key.Slots && r.cost(i, all[i]) < b.Cost {
			return fmt.Sprintf("%s must be charged at least %s", b.Policy.Name, schema.Amount(b.Cost, b.Policy.Unit))
		}
	}
	return ""
}

// cost returns the tokens that a bound costs in the end.
func (r *Record) cost(bound int, s Settlement) int64 {
	reserved := r.Bounds[bound].Cost
	switch {
	case r.Bounds[bound].Key.Slots:
		return 0
	case s.Outcome.keeps() && !r.Bounds[bound].Unmatched:
		return reserved
	case s.Outcome == Late, r.chargeOnly != nil && r.chargeOnly[bound]:
		return max(s.Actual, reserved)
	default:
		return s.Actual
	}
}

// Records keeps records, and the entries of names, each under a key, in a store that all processes share or in one of
// this process. It must be safe for concurrent use, and bound the time of its calls. A call is made once: if its
// outcome is unknown, [MayHaveRun] reports true for its error.
type Records interface {
	// Get returns the record of a key, or nil.
	Get(ctx context.Context, key string) ([]byte, error)
	// Swap replaces the record of a key by next, if it is the old one, and returns the record that was there. No old
	// record means that there is none, and no next one that it is deleted. The next one is kept for ttl, or, if that is 0,
	// for as long as the old one.
	Swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) (present []byte, err error)
}

// MayHaveRun reports whether a call of Records may have done its work in spite of its error, or may still do it.
func MayHaveRun(err error) bool {
	var certain interface{ MayHaveRun() bool }
	return err != nil && (!errors.As(err, &certain) || certain.MayHaveRun())
}
