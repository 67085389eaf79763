package candidate

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// Reservations keeps what requests have reserved. A reservation.Ledger is one.
type Reservations interface {
	// Follow calls settled once with the answers of a request's log phase, if the reservation of the token waits in this
	// process, which it reports.
	Follow(token string, needs settle.Needs, settled func(a *settle.Answer, late bool)) bool
}

// SetReservations sets where the reservations of requests are. Call it before the first request.
func (e *Evaluator) SetReservations(r Reservations) { e.reservations = r }

// settlement is what a tried request has used of a candidate's limits that settle.
type settlement struct {
	view   *View
	record *reservation.Record
	used   []reservation.Settlement
}

// follow has what a tried request reserves settled with the request's own reservation. Until then the table of that
// holds it, for no longer than its own. A request without a reservation of its own has an end that is not known: then
// the tokens stay charged, and a slot of a concurrency limit is held for max_duration.
func (e *Evaluator) follow(r *request, d *decision.Decision) {
	if r.reservation == "" || e.reservations == nil || !d.Resolution.Settles || d.Denied() {
		return
	}
	record := reservation.NewRecord(d, r.at)
	if record == nil {
		return
	}
	view := r.view
	e.reservations.Follow(r.reservation, record.Needs(), func(a *settle.Answer, late bool) {
		select {
		case e.settles <- settlement{view, record, record.Measure(a, late)}:
		default:
			e.dropped[QueueFull].Add(1)
		}
	})
}

// settle changes the buckets of a candidate to what a request has used.
func (e *Evaluator) settle(ctx context.Context, s settlement) {
	defer e.recoverPanic()
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	_, store, err := s.view.open()
	if err == nil {
		err = s.record.Settle(ctx, store, s.used)
	}
	if err != nil {
		e.dropped[NoStore].Add(1)
	}
}
