package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
)

// SettleRequest describes a reservation to settle.
type SettleRequest struct {
	ID     string `json:"id"               doc:"The reservation_id of the check."                                                                                                                                      minLength:"1"    maxLength:"128"         pattern:"^[!-~]+$" patternDescription:"visible ASCII characters" example:"chat-7f3a"`
	Actual int64  `json:"actual"           doc:"Tokens that were really used, in the tokens of the limits: weights are up to the caller. With an org's token at least what was reserved."                              minimum:"0"      maximum:"1000000000000"                                                                  example:"420"`
	Org    string `json:"org_id,omitempty" doc:"The org that the check was billed to. Operators need it for a reservation that an org's own token has made; without it they settle those of operators, of any org." maxLength:"1024"                                                                                          example:"acme"`
}

// Resolve implements [huma.ResolverWithPath]: it reports faults that the schema does not cover.
func (r *SettleRequest) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	return notTexts(at.String(), textField{"org_id", r.Org})
}

type settleInput struct{ Body SettleRequest }

type settleOutput struct {
	Replayed string `header:"Idempotent-Replayed" doc:"true: nothing was changed, because the reservation was settled before."`
	Body     Settled
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
	Outcome  string `json:"outcome"             doc:"lost: Redis did not answer, or the limit was changed meanwhile: it is unknown whether its bucket was changed." enum:"settled,late,lost"`
}

// Outcomes of settlements.
const (
	outcomeSettled = "settled"
	outcomeLate    = "late"
	outcomeLost    = "lost"
	outcomeUnknown = "unknown"
)

func (s *Server) settle(ctx context.Context, in *settleInput) (*settleOutput, error) {
	caller := callerOf(ctx)
	switch {
	case caller.Role == Viewer:
		return nil, huma.Error403Forbidden("a viewer settles nothing")
	case caller.Role == Tenant && in.Body.Org != "" && in.Body.Org != caller.Org:
		return nil, huma.Error403Forbidden("an org's token may settle for its own org only")
	case s.Reservations == nil || s.Decider == nil:
		return nil, errNoReservations()
	}
	name := reservation.Name{Namespace: s.Decider.Policies.Load().Namespace(), Org: caller.Org, ID: in.Body.ID}
	settled, err := s.settleBilledTo(ctx, name, in.Body.Actual, in.Body.Org)
	if errors.Is(err, reservation.ErrUnknown) && caller.Role != Tenant && in.Body.Org != "" {
		name.Org = in.Body.Org
		settled, err = s.settleBilledTo(ctx, name, in.Body.Actual, in.Body.Org)
	}
	if err != nil {
		return nil, s.settleError(err)
	}
	out := &settleOutput{Body: newSettled(in.Body.ID, &settled)}
	if settled.Repeated {
		out.Replayed = "true"
	}
	return out, nil
}

// settleBilledTo settles a reservation, if it was billed to an org; "": to any.
func (s *Server) settleBilledTo(
	ctx context.Context, name reservation.Name, actual int64, org string,
) (reservation.Settled, error) {
	return s.Reservations.Settle(ctx, name, actual, func(billed string, tokens int64) error {
		switch {
		case org != "" && name.Org == "" && billed != org:
			return reservation.ErrUnknown
		case callerOf(ctx).Role == Tenant && actual < tokens:
			return huma.Error403Forbidden(fmt.Sprintf("an org's token may not settle below its reservation: actual must be at "+
				"least %d; an operator's token may settle to less", tokens))
		}
		return nil
	})
}

// settleError returns the answer to a settlement that was not made.
func (s *Server) settleError(err error) error {
	first := new(reservation.ActualError)
	switch {
	case errors.Is(err, reservation.ErrUnknown):
		return huma.Error404NotFound("there is no reservation with this id: no check with it was allowed, or it has ended")
	case errors.As(err, &first):
		return huma.NewError(http.StatusConflict, fmt.Sprintf("the reservation was settled to %d tokens before: nothing was "+
			"changed now", first.First))
	case errors.Is(err, reservation.ErrUncertain):
		return huma.NewError(http.StatusConflict, "the process that decided about the check with this id ended before it "+
			"answered, so it is unknown whether it reserved: what it may have taken stays charged")
	}
	return s.ledgerError(err, "nothing was settled")
}

// newSettled returns the answer to a settlement.
func newSettled(id string, s *reservation.Settled) Settled {
	out := Settled{ID: id, Reserved: s.Tokens, Actual: s.Actual, Outcome: outcomeSettled, Limits: []SettledLimit{}}
	switch {
	case s.Unknown:
		out.Outcome = outcomeUnknown
	case s.Late:
		out.Outcome = outcomeLate
	}
	for _, c := range s.Changes {
		l := SettledLimit{
			Policy: c.Policy, PolicyID: c.Row, Endpoint: c.Endpoint, Scope: c.Scope,
			Refunded: max(-c.Change, 0), Charged: max(c.Change, 0), Outcome: out.Outcome,
		}
		if c.Lost {
			l.Outcome = outcomeLost
		}
		out.Limits = append(out.Limits, l)
	}
	return out
}
