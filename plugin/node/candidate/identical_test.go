package candidate_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// world is a decider with all that a request can see or change.
type world struct {
	*admit.Decider
	log      strings.Builder // of observers
	exchange admit.Exchange
}

func (w *world) Observe(d *decision.Decision) {
	fmt.Fprintf(&w.log, "%+v %s %s %q %d %v\n",
		d.Identity, d.Result, d.Reason, d.Resolution.Endpoint, d.RetryAfter, d.ShadowDenied)
	for i := range d.Statuses {
		fmt.Fprintf(&w.log, "  %+v %d %+v\n", d.Resolution.Bounds[i].Key, d.Resolution.Bounds[i].Cost, d.Statuses[i])
	}
}

// send admits a request and returns all that its client and the observers read.
func (w *world) send(t *rapid.T, request *facts) string {
	w.log.Reset()
	require.NoError(t, w.Admit(context.Background(), request, &w.exchange))
	r := &w.exchange.Response
	for _, h := range r.Headers {
		fmt.Fprintf(&w.log, "%s: %s\n", h.Name, h.Value)
	}
	fmt.Fprintf(&w.log, "%v %d %s", r.Denied, r.Status, r.Body)
	return w.log.String()
}

// facts is one request. A header that comes twice is the value "?".
type facts struct {
	tenant, user, ip, method, path string
}

func (f *facts) Read(_ context.Context, wanted identity.Facts, rules *identity.Rules, r *identity.Request) error {
	r.Known |= wanted
	if wanted&identity.ConsumerFact != 0 {
		r.Consumer = identity.Consumer{CustomID: f.tenant}
	}
	if wanted&identity.IPFact != 0 {
		r.IP = f.ip
	}
	if wanted&identity.TargetFact != 0 {
		r.Method, r.Path = f.method, f.path
	}
	if wanted&identity.HeaderFacts != 0 {
		r.Headers = r.Headers[:0]
		for _, name := range rules.Headers {
			if f.user == "?" {
				r.Repeated = name
			}
			r.Headers = append(r.Headers, f.user)
		}
	}
	return nil
}

var tenants = []string{"acme", "zen", "org-1", "org-2", ""}

// drawPolicy draws a policy of a tier or a tenant.
func drawPolicy(t *rapid.T, shared bool) schema.Policy {
	scopes := []string{"tenant", "user", "tenant+endpoint"}
	if shared {
		scopes = append(scopes, "ip", "global", "endpoint")
	}
	p := schema.Policy{Limit: schema.Limit{
		Name:       rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		Scope:      rapid.SampledFrom(scopes).Draw(t, "scope"),
		Limit:      rapid.Int64Range(1, 4).Draw(t, "limit"),
		WindowSize: rapid.SampledFrom([]int64{1, 10}).Draw(t, "window"),
		Algorithm:  rapid.SampledFrom([]string{"token_bucket", "fixed_window", "sliding_log"}).Draw(t, "algorithm"),
		Endpoint:   rapid.SampledFrom([]string{"", "", "GET /x/{id}", "GET /x/7"}).Draw(t, "endpoint"),
		Mode:       rapid.SampledFrom([]string{"", "", "shadow"}).Draw(t, "mode"),
	}}
	if rapid.Bool().Draw(t, "of a tenant") {
		p.Tenant = rapid.SampledFrom(tenants[:4]).Draw(t, "tenant")
	} else {
		p.Tier = "free"
	}
	return p
}

// drawRows draws active rows, of which no two have one key.
func drawRows(t *rapid.T, shared bool) policy.Rows {
	rows, keys := policy.Rows{Version: 1}, map[string]bool{}
	for i, p := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) schema.Policy { return drawPolicy(t, shared) }), 0, 5).
		Draw(t, "active") {
		if key := p.Name + "|" + p.Tier + "|" + p.Tenant + "|" + p.Endpoint; !keys[key] {
			keys[key] = true
			rows.Policies = append(rows.Policies, policy.PolicyRow{ID: int64(i + 1), Policy: p})
		}
	}
	return rows
}

// drawCandidate draws a candidate. Some of its changes do not compile.
func drawCandidate(t *rapid.T, shared bool) *policy.CandidateSet {
	set := &policy.CandidateSet{
		Name:    "spring",
		Percent: rapid.SampledFrom([]int64{0, 0, 50}).Draw(t, "percent"),
		Tenants: rapid.SliceOfDistinct(rapid.SampledFrom(tenants[:2]), rapid.ID).Draw(t, "assigned"),
	}
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		row := policy.CandidateRow{Policy: drawPolicy(t, shared)}
		switch rapid.IntRange(0, 5).Draw(t, "kind of change") {
		case 0:
			row.Deleted = true
		case 1:
			row.Algorithm = "hourglass"
		case 2:
			row.Limit.Limit = 0
		}
		set.Rows = append(set.Rows, row)
	}
	return set
}

// newWorld returns a decider with buckets of its own.
func newWorld(t *rapid.T, config schema.Config, snapshot *policy.Snapshot, now func() limit.Micros) *world {
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	w := &world{Decider: &admit.Decider{
		Now: now, Buckets: memory.New(memory.Options{Now: now}), Renderer: response.New(config, nil),
	}}
	w.Observers = []admit.Observer{w}
	w.Policies.Store(plan.With(snapshot))
	return w
}

// TestRequestsOfTenantsNotAssignedToACandidateAreAnsweredAsWithoutIt compares decisions, headers, bodies, charges and
// what observers see. Where limits are shared by tenants, those that a candidate is assigned to send nothing: what they
// spend would be another story.
func TestRequestsOfTenantsNotAssignedToACandidateAreAnsweredAsWithoutIt(t *testing.T) {
	evaluator := candidate.New(candidate.Options{MaxWaiting: 64, Workers: 2})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- evaluator.Run(ctx) }()
	defer func() {
		cancel()
		assert.NoError(t, <-ended)
	}()
	rapid.Check(t, func(t *rapid.T) {
		at := storetest.Start
		now := func() limit.Micros { return at }
		shared := rapid.Bool().Draw(t, "shared limits")
		config := schema.Config{
			Tiers: []schema.Tier{{Name: "free"}}, UserFrom: []string{"header.X-User"}, TrustedHeaders: []string{"X-User"},
			Strategy: schema.StrategyLocal, Mode: rapid.SampledFrom([]string{"enforce", "shadow"}).Draw(t, "mode"),
			OnMissingUser: rapid.SampledFrom([]string{"ip", "deny", "skip"}).Draw(t, "on_missing_user"),
		}.WithDefaults()
		snapshot, _ := policy.NewSnapshot(drawRows(t, shared), nil)
		set := drawCandidate(t, shared)
		both, _ := snapshot.WithCandidate(set)
		without, with := newWorld(t, config, snapshot, now), newWorld(t, config, both, now)
		tried := memory.New(memory.Options{Now: func() limit.Micros { return storetest.Start }})
		view := evaluator.View(func() (candidate.Buckets, error) {
			return candidate.Buckets{Buckets: tried, Release: func() {}}, nil
		})
		defer func() {
			for evaluator.Stats().Waiting > 0 {
				runtime.Gosched()
			}
			view.Release(true)
		}()
		with.Candidates = view
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			at += limit.Micros(rapid.Int64Range(0, int64(limit.Second)).Draw(t, "gap"))
			request := facts{
				tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"),
				user:   rapid.SampledFrom([]string{"", "u", "?"}).Draw(t, "user"),
				ip:     rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}).Draw(t, "ip"),
				method: rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"),
				path:   rapid.SampledFrom([]string{"/x/7", "/x/8", "/y"}).Draw(t, "path"),
			}
			assigned := slices.Contains(set.Tenants, request.tenant) ||
				policy.InCandidate(set.Name, request.tenant, set.Percent)
			if assigned && shared {
				continue
			}
			want, got := without.send(t, &request), with.send(t, &request)
			require.True(t, assigned || got == want, "%+v reads with a candidate\n%s\n\nand without\n%s", request, got, want)
		}
	})
	if s := evaluator.Stats(); s.Active == (candidate.Results{}) || s.Enforced == (candidate.Results{}) ||
		s.Active == s.Candidate {
		t.Errorf("the candidates were not tried, or not enforced: %+v", s)
	}
}
