package reservation

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
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

// Observer receives what becomes of reservations. Its methods must not block, and must not keep what they are given.
type Observer interface {
	// Reserved is called once for each bound of a reservation.
	Reserved(b *policy.Bound)
	// Settled is called once for each bound of a reservation when it is settled or given up. A reservation that has
	// timed out may still be settled: then Settled is called again, with what became of it at last.
	Settled(b *policy.Bound, s Settlement)
}

// Outcome says what became of the reservation of one bound.
type Outcome uint8

// The outcomes. Their names are the values of the metrics' label.
const (
	Measured   Outcome = iota // its bucket was changed to what the request used
	Refunded                  // the request used nothing: it never reached the upstream, or its status refunds
	Unmeasured                // it is unknown what the request used: the reservation stays charged
	TimedOut                  // no log phase came in time: the reservation stays charged
	Late                      // measured after the timeout: what was used beyond the reservation was charged
	Dropped                   // the table was full: the reservation stays charged
	Lost                      // the store did not answer, or the limit was changed: it is unknown what was changed
)

func (o Outcome) String() string {
	return [...]string{"measured", "refunded", "unmeasured", "timed_out", "late", "dropped", "lost"}[o]
}

// Settlement says what became of the reservation of one bound.
type Settlement struct {
	Outcome  Outcome
	Actual   int64        // tokens that the request used; it has no meaning where it was not measured
	Change   int64        // tokens that the bucket got back (< 0), or was charged beyond the reservation (> 0)
	Delay    limit.Micros // since the reservation
	Tenant   string       // of the request, for observers; "": none
	Endpoint string       // of the request, for observers; "": none
}

// ReportReserved reports each bound of a new reservation to o; nil: to none.
func (r *Record) ReportReserved(o Observer) {
	if o == nil {
		return
	}
	for i := range r.Bounds {
		o.Reserved(&r.Bounds[i])
	}
}

// ReportSettled reports the settlement of each bound to o; nil: to none. delay is the time since the reservation. By
// the wall clocks of two processes it may be negative: then it counts as 0.
func (r *Record) ReportSettled(o Observer, all []Settlement, delay limit.Micros) {
	if o == nil {
		return
	}
	for i := range r.Bounds {
		all[i].Delay, all[i].Tenant, all[i].Endpoint = max(delay, 0), r.Tenant, r.Endpoint
		o.Settled(&r.Bounds[i], all[i])
	}
}

// ReportUnsettled reports to o that every bound stays charged, and why; nil: to none.
func (r *Record) ReportUnsettled(o Observer, why Outcome, delay limit.Micros) {
	all := make([]Settlement, len(r.Bounds))
	for i := range all {
		all[i].Outcome = why
	}
	r.ReportSettled(o, all, delay)
}
