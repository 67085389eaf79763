package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const abusePath = "/v1/orgs/{org}/ratelimit/abuse"

// registerAbuse adds the operations on what abuse detection remembers.
func (s *Server) registerAbuse() {
	tags := []string{"abuse"}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-abuse", Method: http.MethodGet, Path: "/v1/ratelimit/abuse", Tags: tags,
		Summary:     "List the orgs on the ladder of abuse detection",
		Description: "Those on the highest step are first. In mode shadow the steps have no effect.",
	}, readAccess), s.listAbuse)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-org-abuse", Method: http.MethodGet, Path: abusePath, Tags: tags,
		Summary: "Show why an org is on its step, and its last moves",
	}, readAccess), s.getAbuse)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "forgive-org", Method: http.MethodPost, Path: abusePath + "/forgive", Tags: tags,
		Summary: "Take an org off the ladder of abuse detection, and end its penalty", Errors: []int{http.StatusNotFound},
	}, writeAccess), s.forgive)
}

// AbuseState is what abuse detection remembers of an org.
type AbuseState struct {
	Tenant        string     `json:"org_id"`
	Step          string     `json:"step"                     doc:"half and tenth multiply each limit."             enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	Mode          string     `json:"mode,omitempty"           doc:"shadow: the step has no effect. Absent: the org was not scored within a week." enum:"shadow,enforce"`
	Reason        string     `json:"reason,omitempty"         doc:"Why the org is on the step, with the numbers."`
	Since         *time.Time `json:"since,omitempty"          doc:"When it came to the step."`
	FlaggedAt     *time.Time `json:"flagged_at,omitempty"     doc:"The last time."`
	ForgivenUntil *time.Time `json:"forgiven_until,omitempty" doc:"It is on no step until then."`
	Override      *int64     `json:"override,omitempty"       doc:"The id of its penalty."`
	OverrideUntil *time.Time `json:"override_until,omitempty" doc:"When the penalty expires, unless it is renewed."`
	Usual         float64    `json:"usual_requests"           doc:"The baseline: requests of a minute in which it sends."`
	Learned       int64      `json:"learned_minutes"          doc:"The minutes that the baseline is from."`
	ScoredAt      time.Time  `json:"scored_at,omitzero"       doc:"The end of the last minute that was scored."`
}

// AbuseMove is a move of an org on the ladder.
type AbuseMove struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"   enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	To     string    `json:"to"     enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	Mode   string    `json:"mode"   enum:"shadow,enforce"`
	Reason string    `json:"reason"`
}

// AbuseHistory is what abuse detection remembers of an org, with its last moves.
type AbuseHistory struct {
	AbuseState
	Moves []AbuseMove `json:"moves" doc:"The last one is first. Moves are kept for 30 days."`
}

type listAbuseInput struct {
	Step  string `query:"step"                doc:"Only orgs on this step."           enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	Limit int    `query:"limit" default:"100" doc:"The maximum number of items."      minimum:"1" maximum:"1000"`
}

// AbuseList has the orgs on the ladder.
type AbuseList struct {
	Items []AbuseState `json:"items"`
}

type listAbuseOutput struct{ Body AbuseList }

func (s *Server) listAbuse(ctx context.Context, in *listAbuseInput) (*listAbuseOutput, error) {
	out := &listAbuseOutput{AbuseList{Items: []AbuseState{}}}
	for row, err := range s.Store.Abuse(ctx, rows.AbuseFilter{Step: in.Step, Max: in.Limit}) {
		if err != nil {
			return nil, s.readError("list abuse", err)
		}
		out.Body.Items = append(out.Body.Items, AbuseState(row))
	}
	return out, nil
}

type getAbuseInput struct{ OrgPath }

type getAbuseOutput struct{ Body AbuseHistory }

func (s *Server) getAbuse(ctx context.Context, in *getAbuseInput) (*getAbuseOutput, error) {
	found, err := s.Store.AbuseOf(ctx, in.Org)
	if err != nil {
		return nil, s.readError("read the abuse of an org", err)
	}
	out := &getAbuseOutput{AbuseHistory{AbuseState(found.AbuseState), make([]AbuseMove, len(found.Moves))}}
	for i, m := range found.Moves {
		out.Body.Moves[i] = AbuseMove(m)
	}
	return out, nil
}

// forgiveBody says for how long, and why.
type forgiveBody struct {
	For    string `json:"for,omitempty" maxLength:"32"   doc:"How long to keep the org off the ladder, at most 30d. Default: 1h." example:"2h"`
	Reason string `json:"reason"        maxLength:"1024" doc:"Why; recorded in the audit."                                          example:"a load test"`
}

// Resolve implements [huma.Resolver].
func (b *forgiveBody) Resolve(huma.Context) []error {
	faults := []error(nil)
	if b.For != "" {
		faults = checkSpan("body.for", b.For, rows.MaxPardon)
	}
	return append(faults, reasonFaults("body.reason", b.Reason)...)
}

type forgiveInput struct {
	OrgPath
	Once
	Waiting
	Body forgiveBody
}

// OrgForgiven is an org after it was forgiven.
type OrgForgiven struct {
	Org       string    `json:"org_id"`
	Until     time.Time `json:"forgiven_until"  doc:"The org is on no step until then."`
	Overrides []int64   `json:"ended_overrides" doc:"The penalties that were ended, by id."`
	Written
}

// forgive takes an org off the ladder.
func (s *Server) forgive(ctx context.Context, in *forgiveInput) (*writeOutput[OrgForgiven], error) {
	c := in.newChange(ctx, in.Body.Reason, "forgive-org", in.Org, in.Body)
	done, version, err := s.Store.ForgiveAbuse(ctx, c, in.Org, spanOr(in.Body.For, time.Hour))
	if err != nil {
		return nil, s.writeError("forgive an org", err)
	}
	return &writeOutput[OrgForgiven]{replayedHeader(c), OrgForgiven{
		Org: done.Tenant, Until: done.Until, Overrides: done.Overrides,
		Written: s.finishWrite(ctx, overrideWrites, version, in.wait(), Warnings{}),
	}}, nil
}
