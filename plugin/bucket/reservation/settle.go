package reservation

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// Source reads what the log phase says about a request.
type Source interface {
	// Read fills the fields of a that the needs name, and its status, source and whether the upstream was tried.
	Read(ctx context.Context, needs settle.Needs, a *settle.Answer) error
}

// Settle settles the reservation of a token with what source reads. Another process may have made it: then its record
// is claimed in the central store, as soon as this process has opened that. Any other text, and a reservation that is
// settled already, do nothing. An error means that the request could not be measured or settled: its reservation stays
// charged.
func (t *Table) Settle(ctx context.Context, text string, source Source) error {
	parsed, ok := parseToken(text)
	if !ok {
		t.countUnknown()
		return nil
	}
	if r := t.take(parsed.id); r != nil {
		return t.settleOwn(ctx, r, source)
	}
	if parsed.store == "" {
		t.countUnknown()
		return nil
	}
	return t.settleForeign(ctx, &parsed, source)
}

// settleOwn settles a reservation of this process, which has left the table.
func (t *Table) settleOwn(ctx context.Context, r *reservation, source Source) error {
	if !r.late && t.options.Elapsed() >= r.ends { // Expire has not seen it yet
		t.giveUp(r, TimedOut)
		r.late = true
	}
	end := &requestEnd{token: token{id: r.id}, own: r, claimant: rand.Text(), at: t.options.Now()}
	if err := source.Read(ctx, r.needs, &end.answer); err != nil {
		t.giveUp(r, Unmeasured)
		t.discard(r)
		r.keeper.done()
		return fmt.Errorf("read what a request used: its reservation stays charged: %w", err)
	}
	done, err := t.finishOwn(ctx, end)
	if !done && !t.park(end) {
		t.abandon(end)
	}
	return err
}

// finishOwn claims and settles a reservation of this process. It reports false if the store is out of reach.
func (t *Table) finishOwn(ctx context.Context, end *requestEnd) (done bool, err error) {
	r := end.own
	won := end.claim(ctx)
	switch won {
	case claimUnreachable:
		return false, nil
	case claimedElsewhere:
		t.elsewhere.Add(1)
		r.keeper.done()
		return true, nil
	}
	defer r.keeper.done()
	late := r.late || r.Late(end.at)
	all := r.Measure(&end.answer, late)
	if r.follow != nil {
		r.follow(&end.answer, late)
	}
	if won == claimDoubtful {
		r.chargeOnly = slices.Repeat([]bool{true}, len(all))
	}
	err = r.Record.Settle(ctx, r.keeper.buckets, all)
	if won == claimDoubtful {
		r.markLost(all)
	}
	r.ReportSettled(t.options.Observer, all, t.options.Elapsed()-r.made)
	return true, err
}

// markLost marks the settlements that would have returned tokens, and did not.
func (r *Record) markLost(all []Settlement) {
	for i := range all {
		if o := all[i].Outcome; o != Unmeasured && o != Late && all[i].Actual < r.Bounds[i].Cost {
			all[i].Outcome = Lost
		}
	}
}
