package admit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var errUnavailable = errors.New("unavailable")

// gateway returns facts about one request, and fails from round failAt on (1 is the first; 0: never).
type gateway struct {
	request identity.Request
	failAt  int
	rounds  []identity.Facts
}

func (g *gateway) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, r *identity.Request) error {
	g.rounds = append(g.rounds, facts)
	if g.failAt > 0 && len(g.rounds) >= g.failAt {
		return errUnavailable
	}
	r.Known |= facts
	if facts&identity.ConsumerFact != 0 {
		tags := append(r.Consumer.Tags[:0], g.request.Consumer.Tags...)
		r.Consumer = g.request.Consumer
		r.Consumer.Tags = tags
	}
	if facts&identity.CredentialFact != 0 {
		r.CredentialID = g.request.CredentialID
	}
	if facts&identity.IPFact != 0 {
		r.IP = g.request.IP
	}
	if facts&identity.TargetFact != 0 {
		r.Method, r.Path, r.HTTP2 = g.request.Method, g.request.Path, g.request.HTTP2
		r.Target = g.request.Target
	}
	if facts&identity.RequestIDFact != 0 {
		r.ID = g.request.ID
	}
	if facts&identity.RouteFact != 0 {
		r.Route, r.GRPCRoute = g.request.Route, g.request.GRPCRoute
	}
	if facts&identity.TokenFact != 0 {
		r.Token = g.request.Token
	}
	if facts&identity.HeaderFacts != 0 {
		r.Headers = append(r.Headers[:0], g.request.Headers...)
		r.Repeated = g.request.Repeated
	}
	if facts&identity.PreflightFacts != 0 {
		r.Origin, r.RequestedMethod = g.request.Origin, g.request.RequestedMethod
	}
	if facts&identity.ContentTypeFact != 0 {
		r.ContentType = g.request.ContentType
	}
	return nil
}

// shelf keeps buckets by the real arithmetic, at an instant that stands still.
type shelf struct {
	states      map[policy.Key]*limit.State
	takes       int
	peeks       int
	unavailable map[string]bool // policies for whose buckets Peek has no answer
	err         error
}

const now = 1_700_000_000 * limit.Second

func newShelf() *shelf { return &shelf{states: map[policy.Key]*limit.State{}} }

func (s *shelf) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s.takes++
	if s.err != nil {
		return s.err
	}
	admitted := true
	for i := range bounds {
		b, state := &bounds[i], s.states[bounds[i].Key]
		if state == nil {
			state = new(limit.State)
			s.states[b.Key] = state
		}
		b.Policy.Limit.Advance(state, now)
		statuses[i] = decision.Status{Wait: b.Policy.Limit.Wait(state, now, b.Cost), Now: now, Source: decision.Memory}
		admitted = admitted && (statuses[i].Admits() || !b.Enforced())
	}
	for i := range bounds {
		b, state := &bounds[i], s.states[bounds[i].Key]
		if admitted && statuses[i].Admits() {
			b.Policy.Limit.Spend(state, now, b.Cost)
		}
		statuses[i].Status = b.Policy.Limit.Status(state, now)
	}
	return nil
}

// Peek implements admit.Peeker.
func (s *shelf) Peek(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s.peeks++
	if s.err != nil {
		return s.err
	}
	for i := range bounds {
		b, state := &bounds[i], limit.State{}
		if kept := s.states[b.Key]; kept != nil {
			state = *kept
		}
		b.Policy.Limit.Advance(&state, now)
		statuses[i] = decision.Status{
			Status: b.Policy.Limit.Status(&state, now), Wait: b.Policy.Limit.Wait(&state, now, b.Cost), Now: now,
			Source: decision.Memory,
		}
		if s.unavailable[b.Policy.Name] {
			statuses[i] = decision.Status{Failure: decision.Unavailable}
		}
	}
	return nil
}

// used returns what the buckets of each policy have been charged, all subjects together.
func (s *shelf) used(snapshot *resolve.Plan) map[string]int64 {
	limits := map[string]*policy.Policy{}
	for _, p := range snapshot.Policies() {
		limits[p.Name] = p
	}
	used := map[string]int64{}
	for key, state := range s.states {
		used[key.Policy] += limits[key.Policy].Limit.Status(state, now).Used
	}
	return used
}

// diary records every decision that it observes.
type diary []string

func (d *diary) Observe(decided *decision.Decision) { *d = append(*d, describe(decided)) }

// describe returns a decision in full, as a text to compare.
func describe(d *decision.Decision) string {
	var b strings.Builder
	id := d.Identity
	id.TierSource = "" // a caller states its tier
	fmt.Fprintf(&b, "%+v tier %q endpoint %q wanted %v: %s because %s, binding %d, retry %d, shadow %v",
		id, d.Resolution.Tier, d.Resolution.Endpoint, d.Resolution.UserRequired,
		d.Result, d.Reason, d.Binding, d.RetryAfter, d.ShadowDenied)
	for i, bound := range d.Resolution.Bounds {
		fmt.Fprintf(&b, "\n  %+v %d", bound.Key, bound.Cost)
		if i < len(d.Statuses) {
			fmt.Fprintf(&b, " %+v", d.Statuses[i])
		}
	}
	return b.String()
}

// read returns what the client of a response reads.
func read(r *response.Response) string {
	var b strings.Builder
	fmt.Fprintf(&b, "denied %v %d\n", r.Denied, r.Status)
	for _, h := range r.Headers {
		fmt.Fprintf(&b, "%s: %s\n", h.Name, h.Value)
	}
	return b.String() + string(r.Body)
}

// deciderOf returns the decider of a config in YAML, with buckets and a diary of its own.
func deciderOf(t testing.TB, text string) (*admit.Decider, *shelf, *diary) {
	t.Helper()
	config := policytest.Config(t, text)
	snapshot, err := resolve.FromConfig(config)
	require.NoError(t, err, "compile config")
	buckets, observed := newShelf(), new(diary)
	decider := &admit.Decider{
		Now: func() limit.Micros { return now }, Buckets: buckets, Renderer: response.New(config, nil),
		Observers: []admit.Observer{observed}, FailClosed: config.OnInternalError == schema.FailClosed,
	}
	decider.Policies.Store(snapshot)
	return decider, buckets, observed
}
