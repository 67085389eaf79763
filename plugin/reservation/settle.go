package reservation

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/settle"
)

// Source reads what the log phase says about a request.
type Source interface {
	// Read fills the fields of a that the needs name, and its status, source and whether the upstream was tried.
	Read(ctx context.Context, needs settle.Needs, a *settle.Answer) error
}

// Settle settles the reservation of an id with what source reads. An id that the table does not have, or no longer has,
// does nothing. An error means that the request could not be measured or settled: its reservation stays charged.
func (t *Table) Settle(ctx context.Context, id string, source Source) error {
	r := t.take(id)
	if r == nil {
		return nil
	}
	defer r.keeper.done()
	if !r.late && t.options.Elapsed() >= r.ends { // Expire has not seen it yet
		t.giveUp(r, TimedOut)
		r.late = true
	}
	var answer settle.Answer
	if err := source.Read(ctx, r.needs, &answer); err != nil {
		t.observe(r, r.unmeasured())
		return fmt.Errorf("read what a request used: its reservation stays charged: %w", err)
	}
	settlements, actual := r.measure(&answer)
	if actual == nil {
		t.observe(r, settlements)
		return nil
	}
	failures := make([]decision.Failure, len(r.statuses)) // of the takes
	for i := range r.statuses {
		failures[i] = r.statuses[i].Failure
	}
	err := r.keeper.buckets.Settle(ctx, r.bounds, r.statuses, actual)
	for i := range r.statuses {
		change := r.statuses[i].Settled
		settlements[i].Change = change
		if err != nil || r.statuses[i].Failure != failures[i] || change == 0 && actual[i] > r.bounds[i].Cost {
			settlements[i].Outcome = Lost
		}
	}
	t.observe(r, settlements)
	if err != nil {
		return fmt.Errorf("settle %d bounds: %w", len(r.bounds), err)
	}
	return nil
}

// measure returns what becomes of each bound, and what it costs in the end; nil: no bucket changes.
func (r *reservation) measure(a *settle.Answer) (all []Settlement, actual []int64) {
	all = make([]Settlement, len(r.bounds))
	costs, changes := make([]int64, len(r.bounds)), false
	for i := range r.bounds {
		reserved := r.bounds[i].Cost
		used, outcome := r.bounds[i].Policy.Settle.Measure(a)
		all[i] = Settlement{Outcome: outcomeOf(outcome), Actual: used}
		costs[i] = used
		switch {
		case outcome == settle.Unmeasured:
			costs[i] = reserved
		case r.late:
			all[i].Outcome = Late
			costs[i] = max(used, reserved)
		}
		changes = changes || costs[i] != reserved
	}
	if !changes {
		return all, nil
	}
	return all, costs
}

func outcomeOf(o settle.Outcome) Outcome {
	switch o {
	case settle.Measured:
		return Measured
	case settle.NeverTried, settle.RefundedStatus:
		return Refunded
	default:
		return Unmeasured
	}
}

// unmeasured returns the settlement of each bound of a request that could not be measured.
func (r *reservation) unmeasured() []Settlement {
	all := make([]Settlement, len(r.bounds))
	for i := range all {
		all[i].Outcome = Unmeasured
	}
	return all
}

// observe reports the settlements.
func (t *Table) observe(r *reservation, all []Settlement) {
	o := t.options.Observer
	if o == nil {
		return
	}
	delay := t.options.Elapsed() - r.made
	for i := range r.bounds {
		all[i].Delay = delay
		o.Settled(&r.bounds[i], all[i])
	}
}
