package reservation

import (
	"context"
	"fmt"

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
	all := r.Measure(&answer, r.late)
	err := r.Record.Settle(ctx, r.keeper.buckets, all)
	t.observe(r, all)
	return err
}

// unmeasured returns the settlement of each bound of a request that could not be measured.
func (r *Record) unmeasured() []Settlement {
	all := make([]Settlement, len(r.Bounds))
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
	for i := range r.Bounds {
		all[i].Delay = delay
		o.Settled(&r.Bounds[i], all[i])
	}
}
