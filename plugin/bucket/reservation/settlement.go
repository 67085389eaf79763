package reservation

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
