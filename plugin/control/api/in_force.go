package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

type inForceInput struct {
	OrgPath
	Requests
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"The maximum number of items of each list."`
}

func (s *Server) inForce(ctx context.Context, in *inForceInput) (*answers.InForce, error) {
	policies, err := s.loadedPlan()
	if err != nil {
		return nil, err
	}
	w, err := s.reportInForce(ctx, policies, in.Org, &in.Requests, s.now(), in.Limit)
	if err != nil {
		return nil, err
	}
	return &w.InForce, nil
}

const maxInForce = 1000

// reportInForce returns the limits in force of requests of an org. The error is an answer.
func (s *Server) reportInForce(
	ctx context.Context, policies *resolve.Plan, org string, requests *Requests, now limit.Micros, most int,
) (*inForceReport, error) {
	policies = policies.ForTenant(org)
	ids, err := requests.orgIdentities(ctx, policies, s.Tiers, org)
	if err != nil {
		return nil, err
	}
	id := ids[0]
	if err := s.authorizeTier(ctx, policies, &id, requests.Tier); err != nil {
		return nil, err
	}
	w := &inForceReport{
		most: most, policies: policies, id: id, now: now, view: s.viewOf(callerOf(ctx)),
		explanation: policies.Explain(&id, now), overrides: map[int64]policy.Override{},
		exceptions: map[exceptionKey]bool{}, inList: map[int64]bool{}, outcomes: map[int64][]resolve.Outcome{},
		met: map[origin]bool{}, listed: map[changedPolicy]bool{},
	}
	w.InForce = answers.InForce{
		Org: org, OrgTier: s.Tiers.Describe(policies, &id, now), Namespace: policies.Namespace(),
		Version: w.explanation.Version, At: timeOf(now),
		Limits: []answers.LimitInForce{}, Exceptions: []answers.Exception{},
		NotInForce: []answers.PassedOver{}, Overrides: []answers.OverrideInForce{},
	}
	w.listOverrides()
	for _, id := range ids {
		if requests.Endpoint == "" {
			policies.VisitRequestKinds(id, nil, w.now, w.addResolution)
			policies.VisitExemptions(id, w.now, w.addException)
		} else {
			var r resolve.Resolution
			policies.ResolveAt(&id, w.now, &r)
			w.addResolution(&id, &r)
		}
	}
	w.addNotInForce(requests.Endpoint == "")
	for i := range w.Overrides {
		item := &w.Overrides[i]
		item.Applied, item.Why, item.Unit = resolve.DescribeOutcomes(w.outcomes[item.ID])
	}
	w.summarize()
	return w, nil
}

// inForceReport collects the limits in force from the resolutions of requests to each endpoint.
type inForceReport struct {
	answers.InForce
	policies    *resolve.Plan
	id          identity.Identity
	now         limit.Micros
	view        view
	explanation resolve.Explanation // the policies and overrides that could apply
	verdict     string              // on the requested endpoint, else on endpoints without policies of their own
	most        int                 // items of each list
	leftOff     answers.Truncated
	overrides   map[int64]policy.Override
	exceptions  map[exceptionKey]bool       // the listed bans and exemptions
	inList      map[int64]bool              // the ids of the listed overrides
	outcomes    map[int64][]resolve.Outcome // by the id of a listed override, of all requests
	met         map[origin]bool
	listed      map[changedPolicy]bool
}

// origin identifies a policy, in bounds and in explanations.
type origin struct {
	name, endpoint, match string
	row                   int64
}

// exceptionKey identifies a ban by its override, and an exemption by itself too.
type exceptionKey struct {
	override  int64
	exemption resolve.Exemption
}

// changedPolicy identifies a policy with the overrides that changed it.
type changedPolicy struct {
	origin
	override, penalty, topUp int64
}

// addResolution adds the limits of requests to one endpoint.
func (w *inForceReport) addResolution(id *identity.Identity, r *resolve.Resolution) {
	if w.verdict == "" {
		w.verdict = verdictText(r)
	}
	w.addOutcomes(id, r)
	w.addException(r)
	for i := range r.Bounds {
		b := &r.Bounds[i]
		source := origin{b.Policy.Name, b.Policy.Endpoint, b.Policy.Match(), b.Policy.Row}
		w.met[source] = true // also if the caller may not read its numbers
		if !w.view.readsBound(b) {
			continue
		}
		if key := (changedPolicy{source, b.Override, b.Penalty, b.TopUp}); !w.listed[key] {
			w.listed[key] = true
			if hasRoom(w.Limits, w.most, &w.leftOff.Limits) {
				w.Limits = append(w.Limits, w.limitInForce(r, b, source))
			}
		}
	}
}

// addException adds the ban or the exemption of a request, if it has one that is not listed yet.
func (w *inForceReport) addException(r *resolve.Resolution) {
	key := exceptionKey{r.Override, r.Exemption}
	if !r.Banned && !r.Exempt || w.exceptions[key] {
		return
	}
	w.exceptions[key] = true
	if hasRoom(w.Exceptions, w.most, &w.leftOff.Exceptions) {
		w.Exceptions = append(w.Exceptions, w.exceptionOf(r))
	}
}

// hasRoom reports whether a list has fewer items than most. If not, it counts the item that is left off.
func hasRoom[T any](list []T, most int, leftOff *int) bool {
	if len(list) < most {
		return true
	}
	*leftOff++
	return false
}

func (w *inForceReport) exceptionOf(r *resolve.Resolution) answers.Exception {
	if r.Exempt && r.Exemption.Override == 0 {
		endpoint := w.policies.ExemptEntry(r.Exemption).Endpoint
		by := r.Exemption.Source()
		return answers.Exception{
			Verdict: "exempt", Endpoint: endpoint,
			Summary: fmt.Sprintf("No limit applies%s, by %s of the plugin's config.", atEndpoint(endpoint), by),
		}
	}
	o := w.overrides[r.Override]
	x := answers.Exception{
		Verdict: "exempt", Endpoint: o.Endpoint, Override: r.Override, Until: o.ExpiresAt, PublicNote: o.PublicNote,
	}
	what := "No limit applies"
	if r.Banned {
		x.Verdict, what = "banned", "All requests are denied"
	}
	x.Summary = fmt.Sprintf("%s%s, by %s.", what, atEndpoint(o.Endpoint), w.overrideText(o))
	return x
}

func (w *inForceReport) limitInForce(r *resolve.Resolution, b *policy.Bound, from origin) answers.LimitInForce {
	p := b.Policy
	spec := p.Limit.Spec()
	l := answers.LimitInForce{
		Policy: p.Name, Tier: b.Ref().Tier, Endpoint: p.Endpoint, Source: "config", Row: p.Row, Match: from.match,
		Scope: p.Scope.String(), Limit: spec.Quantity, Window: policy.WindowOf(spec), Burst: spec.Burst, Unit: p.Unit,
		Models:    strings.TrimPrefix(p.Settle.Match().Describe(), ", for "),
		Algorithm: spec.Algorithm.String(), Cost: max(p.Cost, 0), Settles: p.Settle != nil, Mode: p.Mode.String(),
		FailMode: p.FailMode.String(), Accuracy: w.policies.AccuracyOf(b).String(), PublicNote: p.PublicNote,
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s%s, %s", p.Describe(), atEndpoint(p.Endpoint), sourceText(from))
	if from.row != 0 {
		l.Source = "row"
	}
	for _, id := range r.OverridesOf(b) {
		if id == 0 {
			continue
		}
		o := w.overrides[id]
		l.Overrides = append(l.Overrides, id)
		if end := o.ExpiresAt; !end.IsZero() && (l.Until.IsZero() || end.Before(l.Until)) {
			l.Until = end
		}
		fmt.Fprintf(&text, ", changed%s by %s", atEndpoint(o.Endpoint), w.overrideText(o))
	}
	if p.Mode != policy.Enforce {
		text.WriteString("; it does not deny yet")
	}
	l.Summary = text.String() + "."
	return l
}

// addNotInForce lists the policies that apply to no request. everywhere reports that the endpoint of each was resolved.
func (w *inForceReport) addNotInForce(everywhere bool) {
	for _, p := range w.explanation.Policies {
		if w.met[origin{p.Name, p.Endpoint, p.Match, p.ID}] || !w.view.readsScope(p.Scope) ||
			!hasRoom(w.NotInForce, w.most, &w.leftOff.NotInForce) {
			continue
		}
		if everywhere && p.Endpoint != "" {
			id := w.id
			id.Method, id.Path, _ = strings.Cut(p.Endpoint, " ")
			for _, there := range w.policies.ExplainPolicies(&id, w.now) {
				if there.Name == p.Name && there.ID == p.ID && there.Endpoint == p.Endpoint && there.Match == p.Match {
					p = there
				}
			}
		}
		w.NotInForce = append(w.NotInForce, answers.PassedOver{
			Policy: p.Name, Endpoint: p.Endpoint, Source: p.Source, Row: p.ID, Match: p.Match, Limit: p.Limit, Why: p.Why,
		})
	}
}

// listOverrides adds the overrides to the list, as far as there is room. The token of an org does not read reason and
// author.
func (w *inForceReport) listOverrides() {
	for _, x := range w.explanation.Overrides {
		o := x.Override
		w.overrides[o.ID] = o
		if o.Tenant != "" && o.Tenant != w.Org || !hasRoom(w.Overrides, w.most, &w.leftOff.Overrides) {
			continue
		}
		w.inList[o.ID] = true
		item := answers.OverrideInForce{
			ID: o.ID, Kind: o.Kind, Target: x.Target, Endpoint: o.Endpoint, From: o.StartsAt, Until: o.ExpiresAt,
			Policy: o.Policy, Limit: o.Limit, WindowSize: o.WindowSize, Burst: o.Burst, Factor: float64(o.Factor) / 1000,
			Amount: o.Amount,
			Reason: o.Reason, Author: o.Author, PublicNote: o.PublicNote, General: o.Tenant == "",
		}
		if w.view.tenant {
			item.Reason, item.Author = "", ""
		}
		w.Overrides = append(w.Overrides, item)
	}
}

// addOutcomes records what each listed override does to the requests to one endpoint.
func (w *inForceReport) addOutcomes(id *identity.Identity, r *resolve.Resolution) {
	for _, x := range w.policies.ExplainOverrides(id, w.now, r, w.inList) {
		for _, o := range x.Outcomes {
			if o.Bound != nil && !w.view.readsBound(o.Bound) {
				o.Limit = "a limit whose numbers are not shown"
			}
			o.Bound = nil // it is reused for the next endpoint
			if o, list := o.At(r.Endpoint), w.outcomes[x.Override.ID]; !slices.Contains(list, o) {
				w.outcomes[x.Override.ID] = append(list, o)
			}
		}
	}
}
