package api

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// OverridePreview reports what an override would change.
type OverridePreview struct {
	At      time.Time     `json:"at"                doc:"The time that both states describe: now, or the begin of the override."`
	Begin   time.Time     `json:"starts_at,omitzero"  doc:"When the override would begin. Absent: at once."`
	End     time.Time     `json:"expires_at,omitzero" doc:"When it would end. Absent: it is permanent."`
	Applied bool          `json:"applied"           doc:"The override would have an effect."`
	Why     string        `json:"why"               doc:"What the override would do, or why it has no effect."`
	Verdict string        `json:"verdict,omitempty" doc:"What would go before all limits. Absent: limits decide." enum:"banned,exempt"`
	Changes []LimitChange `json:"changes"           doc:"The limits that the override would change."`
	Warnings
}

// LimitChange is a limit before and with an override.
type LimitChange struct {
	Policy    string       `json:"policy"`
	Endpoint  string       `json:"endpoint,omitempty" doc:"The requests that the policy covers; absent: all that have no other limit of this name."`
	Scope     string       `json:"scope"              example:"tenant"`
	Algorithm string       `json:"algorithm"`
	Before    LimitNumbers `json:"before"`
	After     LimitNumbers `json:"after"`
}

// LimitNumbers are the numbers of a limit that an override can change.
type LimitNumbers struct {
	Limit      int64 `json:"limit"       doc:"Tokens that a window allows."`
	WindowSize int64 `json:"window_size" doc:"Seconds."`
	Burst      int64 `json:"burst"       doc:"The most tokens at once."`
}

type previewOverrideInput struct {
	OrgPath
	Body OverrideBody
}

type previewOverrideOutput struct{ Body OverridePreview }

// previewedID identifies an override that is not written, which is newer than all that are.
const previewedID = math.MaxInt64

// previewOverride compares the limits in force with those of the same rows and one more override.
func (s *Server) previewOverride(ctx context.Context, in *previewOverrideInput) (*previewOverrideOutput, error) {
	plan, err := s.loadedPlan()
	if err != nil {
		return nil, err
	}
	o, err := in.Body.override(in.Org, s.Now())
	if err != nil {
		return nil, unprocessable(fault("body", err.Error(), nil))
	}
	o.Author = callerOf(ctx).Token
	next, err := withOverride(plan, policy.Override{ID: previewedID, Override: o.Override})
	if err != nil {
		return nil, unprocessable(fault("body", err.Error(), nil))
	}
	now := max(s.now(), limit.Micros(o.StartsAt.UnixMicro()))
	requests := requestsOf(&o.Override)
	before, err := s.reportInForce(ctx, plan, in.Org, &requests, now, maxInForce)
	if err != nil {
		return nil, err
	}
	after, err := s.reportInForce(ctx, next, in.Org, &requests, now, maxInForce)
	if err != nil {
		return nil, err
	}
	out := OverridePreview{
		At: timeOf(now), Begin: o.StartsAt, End: o.ExpiresAt, Changes: []LimitChange{},
		Warnings: s.warnOfOverride(ctx, o),
	}
	out.compare(before, after)
	return &previewOverrideOutput{out}, nil
}

// withOverride returns a plan with one more override. The error is its fault.
func withOverride(plan *resolve.Plan, o policy.Override) (*resolve.Plan, error) {
	snapshot := plan.Snapshot()
	if snapshot == nil {
		snapshot, _ = policy.NewSnapshot(policy.Rows{}, nil)
	}
	next, faults := snapshot.Apply(policy.Changes{Rows: policy.Rows{
		Version: snapshot.Version(), Overrides: []policy.Override{o},
	}})
	if len(faults) > 0 {
		return nil, faults[0]
	}
	next, _ = next.WithCandidate(snapshot.CandidateSet()) // its faults are not about the override
	return plan.With(next), nil
}

// requestsOf returns the requests that an override is about.
func requestsOf(o *schema.Override) Requests {
	return Requests{User: o.User, Credential: o.Credential, IP: firstAddress(o.IP), Endpoint: o.Endpoint}
}

// firstAddress returns the first address of a network; an address stands for itself.
func firstAddress(text string) string {
	if network, err := netip.ParsePrefix(text); err == nil {
		return network.Masked().Addr().String()
	}
	return text
}

// compare adds what the previewed override changes.
func (p *OverridePreview) compare(before, after *inForceReport) {
	for _, o := range after.Overrides {
		if o.ID == previewedID {
			p.Applied, p.Why = o.Applied, o.Why
		}
	}
	for _, x := range after.Exceptions {
		if x.Override == previewedID {
			p.Verdict = x.Verdict
		}
	}
	for i := range after.Limits {
		l := &after.Limits[i]
		if !slices.Contains(l.Overrides, previewedID) {
			continue
		}
		was := slices.IndexFunc(before.Limits, func(b LimitInForce) bool {
			return b.Policy == l.Policy && b.Endpoint == l.Endpoint && b.Match == l.Match && b.Row == l.Row
		})
		if was >= 0 {
			p.Changes = append(p.Changes, LimitChange{
				l.Policy, l.Endpoint, l.Scope, l.Algorithm, before.Limits[was].numbers(), l.numbers(),
			})
		}
	}
}

// numbers returns the numbers of the limit.
func (l *LimitInForce) numbers() LimitNumbers { return LimitNumbers{l.Limit, l.WindowSize, l.Burst} }
