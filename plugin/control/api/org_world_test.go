package api_test

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// What the tests of the orgs' own operations add to those of all.
func init() {
	equipment = append(equipment, func(t *testing.T, o *api.Options) {
		buckets := shelf{memory.New(memory.Options{Now: clock})}
		o.Buckets, o.Decider = buckets, deciderOf(t, plan(), buckets, policy.Rows{})
	})
	scenarios["reset-org-usage"] = func(c *contract, o operation) {
		again := o.call(admin).with("Idempotency-Key", "k")
		same := sha256.Sum256([]byte(`["` + acmeReset + `",` + samples[o.id].body + `]`))
		once := rows.Idempotency{Token: "ann", Key: "k", Request: same}
		by := rows.Change{Actor: "token:ann", Reason: "r", Idempotency: &once}
		if err := c.store.Do(c.Context(), by, rows.Action{Operation: "reset"}, nil, func(ctx context.Context) error {
			hasty, cancel := context.WithTimeout(ctx, 4*time.Second)
			defer cancel()
			c.check(o, c.serve(again, again.request().WithContext(hasty)))
			return nil
		}); err != nil {
			c.Error(err)
		}
	}
	scenarios["check-batch"] = func(c *contract, o operation) { c.check(o, c.do(o.call(viewer))) }
}

// plan is a config with two tiers: enterprise has all limits, and essentials only a smaller daily one.
func plan() schema.Config {
	return schema.Config{
		DefaultTier: "essentials", OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"},
		Tiers: []schema.Tier{
			{Name: "essentials", Limits: []schema.Limit{{Name: "daily", Scope: "tenant", Limit: 10, WindowSize: 86400}}},
			{Name: "enterprise", Limits: []schema.Limit{
				{Name: "daily", Scope: "tenant", Limit: 1000, WindowSize: 86400},
				{Name: "writes", Scope: "tenant", Endpoint: "POST /records/{id}", Limit: 20, WindowSize: 86400},
				{Name: "per-user", Scope: "user", Limit: 50, WindowSize: 86400},
			}},
		},
		Global: schema.Global{Limits: []schema.Limit{{Name: "all", Scope: "global", Limit: 5000, WindowSize: 86400}}},
	}.WithDefaults()
}

// deciderOf returns a decider for the requests of callers, under a config and rows.
func deciderOf(t *testing.T, config schema.Config, buckets admit.Buckets, rows policy.Rows) *admit.Decider {
	t.Helper()
	decider := &admit.Decider{Now: clock, Buckets: buckets, Renderer: response.New(config, nil)}
	ruled(t, decider, config, rows)
	return decider
}

// ruled puts a config and rows in force for requests of callers.
func ruled(t *testing.T, decider *admit.Decider, config schema.Config, rows policy.Rows) {
	t.Helper()
	plan, err := resolve.ForCallers(config)
	require.NoError(t, err)
	putRows(t, decider, plan, rows)
}

// ruledByGateway puts a config and rows in force for requests through a gateway.
func ruledByGateway(t *testing.T, decider *admit.Decider, config schema.Config, rows policy.Rows) {
	t.Helper()
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	putRows(t, decider, plan, rows)
}

// putRows puts a plan with rows beside it in force.
func putRows(t *testing.T, decider *admit.Decider, plan *resolve.Plan, rows policy.Rows) {
	t.Helper()
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	decider.Policies.Store(plan.With(snapshot))
}

// planned returns a world with a plan and a Redis.
type planned struct {
	*world
	decider  *admit.Decider
	redis    *redistest.Server
	store    *redis.Store
	observed *tally
}

// tally counts decisions.
type tally struct{ decisions atomic.Int64 }

func (o *tally) Observe(*decision.Decision) { o.decisions.Add(1) }

func planning(t *testing.T, config schema.Config, rows policy.Rows) *planned {
	t.Helper()
	p := &planned{redis: redistest.Single(t), observed: &tally{}}
	store, closeRedis, err := redis.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(schema.Redis{
		Host: "127.0.0.1", Port: int64(p.redis.Port), ConnectTimeout: 5000, SendTimeout: 5000, ReadTimeout: 5000,
	})
	require.NoError(t, err)
	t.Cleanup(closeRedis)
	p.store = store
	p.decider = deciderOf(t, config, store, rows)
	p.decider.Observers = []admit.Observer{p.observed}
	p.world = open(t, func(o *api.Options) { o.Decider, o.Buckets, o.Ping = p.decider, store, store.Ping })
	return p
}

// has returns the used tokens of an org's buckets, by policy and endpoint.
func (p *planned) has(org, query string) map[string]int64 {
	p.Helper()
	used := map[string]int64{}
	for _, b := range read[answers.Usage](p.world, p.want(p.as("GET", "/v1/orgs/"+org+"/ratelimit/usage"+query, ""),
		http.StatusOK)).Items {
		name := b.Policy
		if b.Endpoint != "" {
			name += " at " + b.Endpoint
		}
		used[name+" of "+b.Of] = b.Used
	}
	return used
}

// checks asks the decision API.
func (p *planned) checks(token, body string) api.Checked {
	p.Helper()
	return read[api.Checked](p.world, p.want(p.do(call{token, "POST", "/v1/ratelimit/check", body, nil}),
		http.StatusOK))
}

// enterprise returns rows with the org acme on that tier.
func enterprise() policy.Rows {
	return policy.Rows{Version: 7, Tenants: []schema.Tenant{{ID: "acme", Tier: "enterprise"}}}
}

// tomorrow returns the instant a day after now.
const tomorrow = 1_900_000_000*limit.Second + 86_400*limit.Second

func timeOf(at limit.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }

// serve answers a request.
func (w *world) serve(c call, r *http.Request) answer {
	recorder := httptest.NewRecorder()
	w.server.ServeHTTP(recorder, r)
	return answer{recorder, c}
}

// limitOf returns a daily limit of an org.
func limitOf(name, endpoint string, quantity int64) schema.Limit {
	return schema.Limit{Name: name, Scope: "tenant", Endpoint: endpoint, Limit: quantity, WindowSize: 86400}
}
