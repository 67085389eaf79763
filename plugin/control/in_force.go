package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

type inForceInput struct {
	OrgPath
	Requests
}

// Resolve is huma's.
func (in *inForceInput) Resolve(ctx huma.Context) []error { return in.faultsOf(ctx, &in.Requests) }

type inForceOutput struct{ Body InForce }

func (s *Server) inForce(ctx context.Context, in *inForceInput) (*inForceOutput, error) {
	policies, err := s.snapshot()
	if err != nil {
		return nil, err
	}
	id, err := in.subject(ctx, policies, in.Org)
	if err != nil {
		return nil, err
	}
	if err := s.mayClaim(ctx, policies, &id, in.Tier); err != nil {
		return nil, err
	}
	w := newInForce(policies, id, s.instant(), s.viewOf(callerOf(ctx)))
	if in.Endpoint == "" {
		policies.Everywhere(id, nil, w.now, w.visit)
	} else {
		var r policy.Resolution
		policies.ResolveAt(&id, w.now, &r)
		w.visit(&id, &r)
	}
	w.Org = in.Org
	w.tellPassedOver(in.Endpoint == "")
	w.tellOverrides(in.Endpoint == "")
	w.summarize()
	return &inForceOutput{w.InForce}, nil
}

// inForce collects what is in force, from what requests to each endpoint meet.
type inForce struct {
	InForce
	policies  *policy.Plan
	id        identity.Identity
	now       limit.Micros
	view      view
	base      policy.Explanation // lists what could apply
	verdict   string             // on requests that no endpoint is about, or that are asked about
	overrides map[int64]policy.Override
	applied   map[int64]*application // by the ids of overrides
	bound     map[origin]bool
	told      map[changed]bool
}

// origin is a policy, as bounds and explanations know it.
type origin struct {
	name, endpoint, match string
	row                   int64
}

// changed is a policy with what overrides have made of it.
type changed struct {
	origin
	override, penalty int64
}

func newInForce(policies *policy.Plan, id identity.Identity, now limit.Micros, v view) *inForce {
	w := &inForce{
		policies: policies, id: id, now: now, view: v, base: policies.Explain(&id, now),
		overrides: map[int64]policy.Override{}, applied: map[int64]*application{}, bound: map[origin]bool{}, told: map[changed]bool{},
	}
	for i := range w.base.Overrides {
		o := w.base.Overrides[i].Override
		w.overrides[o.ID] = o
	}
	w.InForce = InForce{
		Namespace: policies.Namespace(), Version: w.base.Version, At: timeOf(now), Limits: []LimitInForce{}, Exceptions: []Exception{},
		NotInForce: []PassedOver{}, Overrides: []OverrideInForce{},
	}
	w.Tier, w.TierFrom = tierOf(policies, &id, now)
	return w
}

// visit takes in what requests to one endpoint meet.
func (w *inForce) visit(_ *identity.Identity, r *policy.Resolution) {
	if w.verdict == "" {
		w.verdict = verdictText(r)
	}
	if (r.Banned || r.Exempt) && w.applied[r.Override] == nil {
		w.applied[r.Override] = &application{}
		w.Exceptions = append(w.Exceptions, w.exception(r))
	}
	for i := range r.Bounds {
		b := &r.Bounds[i]
		w.apply(b)
		from := originOf(b.Policy)
		w.bound[from] = true // also where the caller does not read it: it is in force
		if !w.view.bound(b) {
			continue
		}
		if key := (changed{from, b.Override, b.Penalty}); !w.told[key] {
			w.told[key] = true
			w.Limits = append(w.Limits, w.limit(b, from))
		}
	}
}

func originOf(p *policy.Policy) origin {
	o := origin{p.Name, p.Endpoint, "global", p.Row}
	switch {
	case p.Tier != "":
		o.match = "tier " + p.Tier
	case p.Row != 0:
		o.match = "tenant"
	}
	return o
}

func (w *inForce) exception(r *policy.Resolution) Exception {
	o := w.overrides[r.Override]
	x := Exception{Verdict: "exempt", Endpoint: o.Endpoint, Override: r.Override, Until: until(o), PublicNote: o.PublicNote}
	what := "No limit applies"
	if r.Banned {
		x.Verdict, what = "banned", "All requests are denied"
	}
	x.Summary = fmt.Sprintf("%s%s, by %s.", what, where(o.Endpoint), w.overrideText(o))
	return x
}

func (w *inForce) limit(b *policy.Bound, from origin) LimitInForce {
	p := b.Policy
	spec := p.Limit.Spec()
	l := LimitInForce{
		Policy: p.Name, Endpoint: p.Endpoint, Source: "config", Row: p.Row, Match: from.match, Scope: p.Scope.String(),
		Limit: spec.Quantity, WindowSize: int64(spec.Window / limit.Second), Burst: spec.Burst, Algorithm: spec.Algorithm.String(),
		Mode: p.Mode.String(), FailMode: p.FailMode.String(), Accuracy: w.policies.AccuracyOf(b).String(), PublicNote: p.PublicNote,
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s%s, %s", p.Describe(), where(p.Endpoint), sourceText(from, w.Tier))
	if from.row != 0 {
		l.Source = "row"
	}
	for _, id := range [...]int64{b.Override, b.Penalty} {
		if id == 0 {
			continue
		}
		o := w.overrides[id]
		l.Overrides = append(l.Overrides, id)
		if end := until(o); !end.IsZero() && (l.Until.IsZero() || end.Before(l.Until)) {
			l.Until = end
		}
		fmt.Fprintf(&text, ", changed%s by %s", where(o.Endpoint), w.overrideText(o))
	}
	if p.Mode != policy.Enforce {
		text.WriteString("; it does not deny yet")
	}
	l.Summary = text.String() + "."
	return l
}

// tellPassedOver lists the policies that no request meets. everywhere: the endpoint of each was looked at.
func (w *inForce) tellPassedOver(everywhere bool) {
	for _, p := range w.base.Policies {
		if w.bound[origin{p.Name, p.Endpoint, p.Match, p.ID}] || !w.view.scope(p.Scope) {
			continue
		}
		if everywhere && p.Endpoint != "" {
			for _, there := range w.at(p.Endpoint).Policies {
				if there.Name == p.Name && there.ID == p.ID && there.Endpoint == p.Endpoint && there.Match == p.Match {
					p = there
				}
			}
		}
		w.NotInForce = append(w.NotInForce, PassedOver{p.Name, p.Endpoint, p.Source, p.ID, p.Match, p.Limit, p.Why})
	}
}

// tellOverrides lists the overrides. An org reads them without reason and author.
func (w *inForce) tellOverrides(everywhere bool) {
	for _, x := range w.base.Overrides {
		o := x.Override
		if o.Tenant != "" && o.Tenant != w.Org {
			continue
		}
		if everywhere && o.Endpoint != "" {
			for _, there := range w.at(o.Endpoint).Overrides {
				if there.Override.ID == o.ID {
					x = there
				}
			}
		}
		told := OverrideInForce{
			ID: o.ID, Kind: o.Kind, Target: x.Target, Endpoint: o.Endpoint, Until: until(o), Reason: o.Reason, Author: o.Author,
			PublicNote: o.PublicNote,
			Applied:    x.Applied, Why: x.Why,
		}
		if a := w.applied[o.ID]; a != nil {
			told.Applied, told.Why = true, a.why()
		}
		if w.view.tenant {
			told.Reason, told.Author = "", ""
		}
		w.Overrides = append(w.Overrides, told)
	}
}

// at explains requests to an endpoint.
func (w *inForce) at(pattern string) policy.Explanation {
	id := w.id
	id.Method, id.Path, _ = strings.Cut(pattern, " ")
	return w.policies.Explain(&id, w.now)
}
