package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Reservation describes what a check has reserved.
type Reservation struct {
	ID       string    `json:"id"        doc:"Settle it by this id."                                                                               example:"chat-7f3a"`
	Tokens   int64     `json:"tokens"    doc:"What each of the policies has taken; one of unit usd beside others what it reserves by itself." example:"1500"`
	Policies []string  `json:"policies"  doc:"The names of the limits that settle. Empty: none applies, and settling changes nothing."             example:"[\"llm-tokens\"]"`
	SettleBy time.Time `json:"settle_by" doc:"From then on a settlement returns nothing. After as long again the id is unknown, and free."`
}

// reserves reports whether the check makes a reservation.
func (c *Check) reserves() bool { return c.Reserve != nil && !c.DryRun }

// reserveFaults returns the faults of a reservation that the schema does not cover. place is where the check is: not in
// a batch, whose answer has no place for the conflict of one id.
func (c *Check) reserveFaults(place string) []error {
	switch {
	case c.Reserve != nil && place != "body":
		return []error{fault(place+".reserve", "is not possible in a batch: send the check by itself, to "+decisionPath, nil)}
	case c.reserves() && c.ReservationID == "":
		return []error{fault(place+".reservation_id", "is required with reserve: choose a new id for each request", nil)}
	case c.Reserve == nil && c.ReservationID != "":
		return []error{fault(place+".reserve", "is required with reservation_id: the tokens to reserve", nil)}
	case c.Reserve == nil && c.ReserveTimeout != 0:
		return []error{fault(place+".reserve", "is required with reserve_timeout: the tokens to reserve", nil)}
	}
	return nil
}

// reserve decides about a check that reserves, once for each id.
func (s *Server) reserve(ctx context.Context, policies *resolve.Plan, c *Check) (*onceOutput[Checked], error) {
	if s.Reservations == nil {
		return nil, errNoReservations
	}
	request, pool, err := s.newRequest(ctx, policies, c)
	if err != nil {
		return nil, err
	}
	claim, first, err := s.Reservations[pool].Claim(ctx, request)
	if err != nil {
		return nil, s.claimError(err)
	}
	if claim == nil {
		out := &onceOutput[Checked]{Replayed: "true"}
		if err := json.Unmarshal(first, &out.Body); err != nil {
			return nil, fmt.Errorf("read the first answer to a check: %w", err)
		}
		return out, nil
	}
	return s.decideClaimed(ctx, policies, c, claim)
}

// decideClaimed decides about a check that reserves, and keeps what it has reserved.
func (s *Server) decideClaimed(
	ctx context.Context, policies *resolve.Plan, c *Check, claim *reservation.Claim,
) (*onceOutput[Checked], error) {
	made, decided := s.decideOne(ctx, policies, c)
	if decided.Denied() {
		claim.Release(ctx)
		return &onceOutput[Checked]{Body: made}, nil
	}
	record := reservation.NewRecord(s.viewOf(callerOf(ctx)).settledPart(decided), s.now())
	made.addReservation(c, record, claim.SettleBy())
	answer, err := json.Marshal(made)
	if err == nil {
		err = claim.Keep(ctx, record, answer)
	}
	if err != nil {
		s.Log.Error("a reservation was charged, and could not be kept", "error", err)
		return nil, huma.Error503ServiceUnavailable("the check was allowed and charged, but its reservation could not be " +
			"kept: it stays charged, and cannot be settled. Choose a new id if you check again")
	}
	return &onceOutput[Checked]{Body: made}, nil
}

func (c *Checked) addReservation(check *Check, record *reservation.Record, settleBy time.Time) {
	c.Reservation = &Reservation{ID: check.ReservationID, Tokens: *check.Reserve, Policies: []string{}, SettleBy: settleBy}
	if record == nil {
		c.Notes = append(c.Notes, "no limit that applies settles or has the algorithm concurrency, so nothing is reserved: "+
			"give a limit one of these")
		return
	}
	for i := range record.Bounds {
		c.Reservation.Policies = append(c.Reservation.Policies, record.Bounds[i].Policy.Name)
	}
}

// newRequest returns the request for the reservation of a check, and the pool of Redis that keeps it. The error is an
// answer.
func (s *Server) newRequest(
	ctx context.Context, policies *resolve.Plan, c *Check,
) (request *reservation.Request, pool uint8, err error) {
	caller := callerOf(ctx)
	timeout, pool, err := s.settleTimeout(ctx, policies, c)
	if err != nil {
		return nil, 0, err
	}
	if wanted := time.Duration(c.ReserveTimeout) * time.Second; wanted != 0 {
		if caller.Role == Tenant && wanted > timeout {
			return nil, 0, huma.Error403Forbidden(fmt.Sprintf("an org's token may not reserve for longer than its limits do: "+
				"reserve_timeout is at most %d", timeout/time.Second))
		}
		timeout = wanted
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, 0, fmt.Errorf("encode a check: %w", err)
	}
	hash := sha256.Sum256(text)
	return &reservation.Request{
		Name: reservation.Name{Namespace: policies.Namespace(), Org: caller.Org, ID: c.ReservationID},
		Hash: hash[:], Org: c.Org, Tokens: *c.Reserve, Timeout: timeout,
	}, pool, nil
}

// settleTimeout returns the longest timeout of the limits that reserve and apply to a check, and their pool of Redis.
func (s *Server) settleTimeout(
	ctx context.Context, policies *resolve.Plan, c *Check,
) (timeout time.Duration, pool uint8, err error) {
	policies = policies.ForTenant(c.Org)
	id, err := identify(ctx, policies, c.admitRequest())
	if err != nil {
		return 0, 0, err
	}
	var r resolve.Resolution
	policies.ResolveAt(&id, s.now(), &r)
	longest := limit.Micros(0)
	for i := range r.Bounds {
		if p := r.Bounds[i].Policy; p.Reserves() {
			longest = max(longest, p.Timeout())
		}
	}
	if longest == 0 {
		return schema.SettleTimeout * time.Second, r.Pool, nil
	}
	return time.Duration(longest) * time.Microsecond, r.Pool, nil
}

// errNoReservations is the answer of a process that cannot keep reservations.
var errNoReservations = huma.Error503ServiceUnavailable(
	"this process keeps no reservations: start it as ratelimit serve --config kong.yml",
)

// claimError returns the answer to a check that could not be claimed: nothing was charged for it.
func (s *Server) claimError(err error) error {
	switch {
	case errors.Is(err, reservation.ErrReused):
		return unprocessable(fault("body.reservation_id", "was used for another check: choose a new one", nil))
	case errors.Is(err, reservation.ErrUncertain):
		return huma.NewError(http.StatusConflict, "the process that decided about the first check with this id ended before "+
			"it answered, so it is unknown whether it reserved, and nothing was done now: choose a new id")
	}
	return s.ledgerError(err, "nothing was charged")
}

// ledgerError returns the answer to an error that checks and settlements have in common. effect says what was done.
func (s *Server) ledgerError(err error, effect string) error {
	switch answer := huma.StatusError(nil); {
	case errors.As(err, &answer):
		return err
	case errors.Is(err, reservation.ErrUnderway):
		return retryable(http.StatusConflict, "the first request with this id is still in progress, so "+effect+
			": retry in a moment to get its answer")
	case errors.Is(err, reservation.ErrFull):
		s.Log.Warn("no room for another reservation")
		return unavailable("too many reservations are kept: " + effect)
	}
	s.Log.Error("the store of reservations failed", "error", err)
	return unavailable("reservations cannot be read or written at the moment: " + effect + "; retry with the same id")
}

// reservingBuckets take the tokens of a reservation from limits that settle: of all, or, for an org's token, of those
// of the org. They are millionths of a US dollar if all these limits are in money. Else limits in money take what they
// reserve by themselves.
type reservingBuckets struct {
	admit.Buckets
	tokens int64
	view   view
}

func (r reservingBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	takes := func(b *policy.Bound) bool { return r.view.maySettle(b) && !b.Key.Slots && !b.Unmatched }
	inTokens := slices.ContainsFunc(bounds, func(b policy.Bound) bool { return takes(&b) && b.Policy.Unit == "" })
	for i := range bounds {
		if b := &bounds[i]; takes(b) && (b.Policy.Unit == "" || !inTokens) {
			b.Cost = r.tokens
		}
	}
	return r.Buckets.Take(ctx, bounds, statuses)
}

// maySettle reports whether a reservation of the caller takes from a bound, and is settled there. An org's token may
// not charge what it shares with others. It releases the slots that its own check has taken of any limit.
func (v view) maySettle(b *policy.Bound) bool {
	return b.Policy.Reserves() && (!v.tenant || b.Key.Group == policy.ByTenant || b.Key.Slots)
}

// settledPart returns the part of a decision that a reservation of the caller settles.
func (v view) settledPart(d *decision.Decision) *decision.Decision {
	kept := *d
	kept.Resolution.Bounds, kept.Statuses = nil, nil
	for i := range d.Statuses {
		if b := &d.Resolution.Bounds[i]; v.maySettle(b) {
			kept.Resolution.Bounds = append(kept.Resolution.Bounds, *b)
			kept.Statuses = append(kept.Statuses, d.Statuses[i])
		}
	}
	return &kept
}

// SettleRequest describes a reservation to settle.
type SettleRequest struct {
	ID     string           `json:"id"               doc:"The reservation_id of the check."                                                                                                                                                                                                                                                                             minLength:"1"    maxLength:"128"         pattern:"^[!-~]+$" patternDescription:"visible ASCII characters" example:"chat-7f3a"`
	Actual *int64           `json:"actual,omitempty" doc:"Tokens that were really used, in the tokens of the limits: weights are up to the caller. Limits of unit usd take it in millionths of a US dollar, unless used is given. With an org's token at least what was reserved. Required without used; default: the sum of its tokens."                              minimum:"0"      maximum:"1000000000000"                                                                  example:"420"`
	Used   reservation.Used `json:"used,omitzero"    doc:"The call of a model that was really made. Limits that settle by prices charge what it costs by the prices at the time of the check; those that match other models charge nothing; all others charge actual. Required if limits of tokens and of unit usd have reserved."`
	Org    string           `json:"org_id,omitempty" doc:"The org that the check was billed to. Operators need it for a reservation that an org's own token has made; without it they settle those of operators, of any org." maxLength:"1024"                                                                                          example:"acme"`
}

// Resolve implements [huma.Resolver]: it reports a fault that the schema does not cover.
func (r *SettleRequest) Resolve(huma.Context) []error {
	if r.Actual == nil && r.Used == (reservation.Used{}) {
		return []error{fault("body.actual", "is required unless used is given: the tokens that were really used", nil)}
	}
	return nil
}

// Settled says what became of a reservation.
type Settled struct {
	ID       string         `json:"id"       example:"chat-7f3a"`
	Reserved int64          `json:"reserved" example:"1500"      doc:"Tokens that each limit had taken."`
	Actual   int64          `json:"actual"   example:"420"`
	Outcome  string         `json:"outcome"                      doc:"late: the timeout was over, so nothing was returned; unknown: the process that settled it ended before it answered, and it will not be settled again." enum:"settled,late,unknown"`
	Limits   []SettledLimit `json:"limits"                       doc:"What changed in each limit that settles. Empty: none applied, or the outcome is unknown."`
}

// SettledLimit says what became of a reservation in one limit.
type SettledLimit struct {
	Policy   string `json:"policy"              doc:"The name of the policy."                                       example:"llm-tokens"`
	PolicyID int64  `json:"policy_id,omitempty" doc:"Its id in the database; absent: it is in the plugin's config."`
	Endpoint string `json:"endpoint,omitempty"`
	Scope    string `json:"scope"                                                                                   example:"tenant"`
	Refunded int64  `json:"refunded"            doc:"Tokens that the bucket got back. It may be less than what was too much: a window that has ended, or a bucket that is full, gets nothing back."                                       example:"1080"`
	Charged  int64  `json:"charged"             doc:"Tokens that were charged beyond the reservation."`
	Unit     string `json:"unit,omitempty"      doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens." enum:"usd"`
	Outcome  string `json:"outcome"             doc:"lost: Redis did not answer, or the limit was changed meanwhile: it is unknown whether its bucket was changed; unpriced: the model of used has no price, or used lacks a name that the limit matches, so what was reserved stays." enum:"settled,late,lost,unpriced"`
}

func (s *Server) settle(ctx context.Context, in *bodyInput[SettleRequest]) (*onceOutput[Settled], error) {
	caller := callerOf(ctx)
	switch {
	case caller.Role == Viewer:
		return nil, huma.Error403Forbidden("a viewer settles nothing")
	case caller.Role == Tenant && in.Body.Org != "" && in.Body.Org != caller.Org:
		return nil, huma.Error403Forbidden("an org's token may settle for its own org only")
	case s.Reservations == nil || s.Decider == nil:
		return nil, errNoReservations
	}
	use := reservation.Use{Actual: min(in.Body.Used.Prompt+in.Body.Used.Completion, settle.MaxActual), Call: in.Body.Used}
	if in.Body.Actual != nil {
		use.Actual = *in.Body.Actual
	}
	name := reservation.Name{
		Namespace: s.Decider.Policies.Load().Namespace(), Org: cmp.Or(in.Body.Org, caller.Org), ID: in.Body.ID,
	}
	settled, err := s.settleBilledTo(ctx, name, use, in.Body.Org)
	if errors.Is(err, reservation.ErrUnknown) && caller.Role != Tenant && name.Org != "" {
		name.Org = "" // an operator's token has made it, billed to the org
		settled, err = s.settleBilledTo(ctx, name, use, in.Body.Org)
	}
	if err != nil {
		return nil, s.settleError(err)
	}
	out := &onceOutput[Settled]{Body: newSettled(in.Body.ID, &settled)}
	if settled.Repeated {
		out.Replayed = "true"
	}
	return out, nil
}

// settleBilledTo settles a reservation, if it was billed to an org; "": to any.
func (s *Server) settleBilledTo(
	ctx context.Context, name reservation.Name, use reservation.Use, org string,
) (reservation.Settled, error) {
	return s.Reservations.Settle(ctx, name, use, func(billed, least string) error {
		switch {
		case org != "" && name.Org == "" && billed != org:
			return reservation.ErrUnknown
		case callerOf(ctx).Role == Tenant && least != "":
			return huma.Error403Forbidden(fmt.Sprintf("an org's token may not settle below its reservation: %s; an operator's "+
				"token may settle to less", least))
		}
		return nil
	})
}

func (s *Server) settleError(err error) error {
	first := new(reservation.UseError)
	switch {
	case errors.Is(err, reservation.ErrUnknown):
		return huma.Error404NotFound("there is no reservation with this id: no check with it was allowed, or it has ended")
	case errors.As(err, &first):
		return huma.NewError(http.StatusConflict, fmt.Sprintf("the reservation was settled to %s before: nothing was "+
			"changed now", first.First))
	case errors.Is(err, reservation.ErrUsed):
		return unprocessable(fault("body.used", "is required, because limits of tokens and of unit usd have reserved: the "+
			"model that has answered, and its tokens", nil))
	case errors.Is(err, reservation.ErrUncertain):
		return huma.NewError(http.StatusConflict, "the process that decided about the check with this id ended before it "+
			"answered, so it is unknown whether it reserved: what it may have taken stays charged")
	}
	return s.ledgerError(err, "nothing was settled")
}

func newSettled(id string, s *reservation.Settled) Settled {
	out := Settled{ID: id, Reserved: s.Tokens, Actual: s.Actual, Outcome: "settled", Limits: []SettledLimit{}}
	switch {
	case s.Unknown:
		out.Outcome = "unknown"
	case s.Late:
		out.Outcome = "late"
	}
	for _, c := range s.Changes {
		l := SettledLimit{
			Policy: c.Policy, PolicyID: c.Row, Endpoint: c.Endpoint, Scope: c.Scope,
			Refunded: max(-c.Change, 0), Charged: max(c.Change, 0), Unit: c.Unit, Outcome: out.Outcome,
		}
		switch {
		case c.Lost:
			l.Outcome = "lost"
		case c.Unpriced:
			l.Outcome = "unpriced"
		}
		out.Limits = append(out.Limits, l)
	}
	return out
}
