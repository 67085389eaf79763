package reservation

import (
	"context"
	"crypto/rand"
	"errors"
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

// requestEnd holds the end of a request, as its log phase reported it. It is parked while its central store is out of
// reach, or not opened by this process yet.
type requestEnd struct {
	token
	keeper *Keeper      // stays open for it; nil: none was open yet
	own    *reservation // nil: another process has made it
	text   []byte       // the record, once it is known
	mark   []byte       // replaces the record where this process claims it, the same in each try
	answer settle.Answer
	at     limit.Micros // when it was read, by the wall clock
	since  limit.Micros // the same, by Options.Elapsed

	missing  bool // its record was looked for once, and may have been on its way
	doubtful bool // a claim by this process may have been made
	over     bool // it need not be parked any more
}

// Settle settles the reservation of a token with what source reads. Another process may have made it: then its record
// is claimed in the central store, as soon as this process has opened that. Any other text, and a reservation that is
// settled already, do nothing. An error means that the request could not be measured or settled: its reservation stays
// charged.
func (l *Ledger) Settle(ctx context.Context, text string, source Source) error {
	parsed, ok := parseToken(text)
	end := &requestEnd{
		token: parsed, mark: []byte(claimMark + rand.Text()), at: l.options.Now(), since: l.options.Elapsed(),
	}
	r := l.take(parsed.key)
	switch {
	case r != nil:
		end.own, end.keeper, end.needs = r, r.keeper, r.needs
		if r.writing != nil {
			end.store = r.keeper.central.Fingerprint()
		}
		if !r.late && end.since >= r.ends { // Expire has not seen it yet
			l.reportUnsettled(r, TimedOut)
			r.late = true
		}
	case !ok || parsed.store == "":
		l.count(&l.stats.Unknown)
		return nil
	default:
		l.mu.Lock()
		l.reached = true
		l.mu.Unlock()
	}
	unread := source.Read(ctx, end.needs, &end.answer)
	if unread != nil {
		unread = fmt.Errorf("read what a request used: its reservation stays charged: %w", unread)
		end.answer = settle.Answer{Tried: true} // which measures nothing: only slots are released
	}
	won, err := l.finish(ctx, end)
	if !won.isFinal() && !l.park(end) {
		l.abandon(end)
	}
	return errors.Join(unread, err)
}

// finish claims and settles the reservation of a request that has ended. Unless the claim is final it must be called
// again: the store is not open, or out of reach, or the record may still be on its way there.
func (l *Ledger) finish(ctx context.Context, end *requestEnd) (won claim, err error) {
	if end.keeper == nil {
		if end.keeper = l.keeperOf(end.store); end.keeper == nil {
			return claimUnreachable, nil
		}
	}
	won = end.claim(ctx)
	if !won.isFinal() {
		return won, nil
	}
	defer end.keeper.done()
	r := end.own
	switch {
	case won == claimedElsewhere && r != nil:
		l.count(&l.stats.Elsewhere)
		return won, nil
	case won == claimedElsewhere:
		l.count(&l.stats.Unknown)
		return won, nil
	case r == nil:
		record, err := decodeRecord(end.text, false)
		if err != nil {
			l.count(&l.stats.Abandoned)
			return won, fmt.Errorf("settle a request of another process: its reservation stays charged: %w", err)
		}
		r = &reservation{Record: record, made: end.since - (end.at - record.Made)}
	}
	late := r.late || end.at-r.Made >= r.Timeout
	all := r.Measure(&end.answer, late)
	if r.follow != nil {
		r.follow(&end.answer, late)
	}
	if won == claimDoubtful {
		r.chargeOnly = slices.Repeat([]bool{true}, len(all))
	}
	err = r.Settle(ctx, end.keeper.buckets, all)
	if won == claimDoubtful {
		r.markLost(all)
	}
	r.ReportSettled(l.options.Observer, all, l.options.Elapsed()-r.made)
	return won, err
}

// markLost marks the settlements that would have returned tokens, and did not.
func (r *Record) markLost(all []Settlement) {
	for i := range all {
		if r.Bounds[i].Key.Slots {
			continue // a release may be repeated
		}
		if o := all[i].Outcome; !o.keeps() && o != Late && all[i].Actual < r.Bounds[i].Cost {
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
	Dropped                   // the ledger was full: the reservation stays charged
	Lost                      // the store did not answer, or the limit was changed: it is unknown what was changed
	Released                  // the slot of a concurrency limit is free, because its request has ended
	Ended                     // the slot of a concurrency limit is free, because its deadline is over
	Streamed                  // as Unmeasured, because Kong counts the tokens of streamed answers wrongly
)

func (o Outcome) String() string {
	return [...]string{
		"measured", "refunded", "unmeasured", "timed_out", "late", "dropped", "lost", "released",
		"ended_by_deadline", "streamed",
	}[o]
}

// keeps reports whether the reservation stays charged, because it is unknown what the request used.
func (o Outcome) keeps() bool { return o == Unmeasured || o == Streamed }

// Settlement says what became of the reservation of one bound.
type Settlement struct {
	Outcome  Outcome
	Actual   int64        // tokens that the request used; where it was not measured, only an Unmatched bound has them
	Change   int64        // tokens that the bucket got back (< 0), or was charged beyond the reservation (> 0)
	Delay    limit.Micros // since the reservation
	Tenant   string       // of the request, for observers; "": none
	Endpoint string       // of the request, for observers; "": none
	Call     *settle.Call // on one settlement of a request whose call is known; else nil
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
		if all[i].Outcome = why; r.Bounds[i].Key.Slots {
			all[i].Outcome = Ended // nothing else frees it from now on
		}
	}
	r.ReportSettled(o, all, delay)
}

// Bounds of the ends of requests that wait for their central store.
const (
	maxParked      = 10_000
	maxParkedBytes = 32 << 20
	maxParkedTime  = 600 * limit.Second
)

// parkedOverhead is the size of a parked end beside its texts, in bytes.
const parkedOverhead = 512

// keeperOf returns a keeper for a central store, or nil. The caller must call its done.
func (l *Ledger) keeperOf(store string) *Keeper {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.central {
		if k.central.Fingerprint() == store && k.use() {
			return k
		}
	}
	return nil
}

// size returns the room that an end takes, in bytes.
func (end *requestEnd) size() int { return end.answer.Size() + parkedOverhead }

// park keeps the end of a request until its store can be reached, and reports whether there is room.
func (l *Ledger) park(end *requestEnd) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.parked) >= maxParked || l.parkedBytes+end.size() > maxParkedBytes {
		return false
	}
	l.parked, l.parkedBytes = append(l.parked, end), l.parkedBytes+end.size()
	return true
}

// abandon gives up the end of a request: its reservation stays charged.
func (l *Ledger) abandon(end *requestEnd) {
	l.count(&l.stats.Abandoned)
	if end.own != nil {
		l.reportUnsettled(end.own, Lost)
	}
	if end.keeper != nil {
		end.keeper.done()
	}
}

// retry settles the parked ends of requests. It calls a store that does not answer once only.
func (l *Ledger) retry(ctx context.Context) {
	l.mu.Lock()
	waiting := slices.Clone(l.parked)
	l.mu.Unlock()
	unreachable := map[string]bool{} // by the fingerprint of the store
	for _, end := range waiting {
		if ctx.Err() == nil && !unreachable[end.store] {
			won, err := l.finish(ctx, end)
			if err != nil {
				l.options.Log.Warn("settling a request after its log phase failed", "error", err)
			}
			end.over, unreachable[end.store] = won.isFinal(), won == claimUnreachable
		}
		if !end.over && l.options.Elapsed()-end.since >= maxParkedTime {
			end.over = true
			l.abandon(end)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked = slices.DeleteFunc(l.parked, func(end *requestEnd) bool {
		if end.over {
			l.parkedBytes -= end.size()
		}
		return end.over
	})
}
