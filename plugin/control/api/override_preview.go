package api

import (
	"context"
	"math"
	"net/netip"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

type previewOverrideInput struct {
	OrgPath
	Body OverrideBody
}

// previewedID identifies an override that is not written, which is newer than all that are.
const previewedID = math.MaxInt64

// previewOverride compares the limits in force with those of the same rows and one more override.
func (s *Server) previewOverride(ctx context.Context, in *previewOverrideInput) (*answers.OverridePreview, error) {
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
	out := &answers.OverridePreview{
		At: timeOf(now), Begin: o.StartsAt, End: o.ExpiresAt, Changes: []answers.LimitChange{},
	}
	out.Warnings.Warnings = s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
		return s.overrideWarnings(ctx, o)
	})
	compare(out, before, after)
	return out, nil
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
func compare(p *answers.OverridePreview, before, after *inForceReport) {
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
		was := slices.IndexFunc(before.Limits, func(b answers.LimitInForce) bool {
			return b.Policy == l.Policy && b.Endpoint == l.Endpoint && b.Match == l.Match && b.Row == l.Row
		})
		if was >= 0 {
			p.Changes = append(p.Changes, answers.LimitChange{
				Policy: l.Policy, Endpoint: l.Endpoint, Scope: l.Scope, Algorithm: l.Algorithm,
				Before: numbersOf(&before.Limits[was]), After: numbersOf(l),
			})
		}
	}
}

// numbersOf returns the numbers of a limit.
func numbersOf(l *answers.LimitInForce) answers.LimitNumbers {
	return answers.LimitNumbers{Limit: l.Limit, WindowSize: l.WindowSize, Burst: l.Burst}
}
