package envoy

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const now = 1_700_000_000 * limit.Second // 800 s after the start of an hour

const testConfig = `{on_missing_user: skip, tiers: [
  {name: free, limits: []},
  {name: second, limits: [{name: per-second, scope: tenant, limit: 50, window_size: 1, algorithm: fixed_window}]},
  {name: minute, limits: [{name: per-minute, scope: tenant, limit: 20, window_size: 60, algorithm: fixed_window}]},
  {name: hour, limits: [{name: per-hour, scope: tenant, limit: 10, window_size: 3600, algorithm: fixed_window},
    {name: users, scope: user, limit: 3, window_size: 600, algorithm: fixed_window},
    {name: writes, scope: tenant, endpoint: "POST /records", limit: 2, window_size: 86400, algorithm: fixed_window}]}]}`

const testMapping = `domains:
  edge:
    tenant_from: [descriptor.tenant]
    user_from: [descriptor.user]
    tier_from: [descriptor.plan, static.free]
    endpoint_from: [descriptor.path]
    method_from: [descriptor.method]
  draft: {tenant_from: [descriptor.tenant], tier_from: [descriptor.plan], draft_headers: true, limit_override: true}
`

// world is a server over buckets in memory, at an instant that stands still.
type world struct {
	*testing.T
	*Server
	registry *prometheus.Registry
	ready    bool
	storeErr error
	takes    atomic.Int64
	during   func(ctx context.Context) // called in each take; nil: nothing
}

// take returns the takes of buckets, which are counted and may fail.
func (w *world) take(buckets *memory.Store) admit.TakeFunc {
	return func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
		if w.takes.Add(1); w.storeErr != nil {
			return w.storeErr
		}
		if w.during != nil {
			w.during(ctx)
		}
		return buckets.Take(ctx, bounds, statuses)
	}
}

// newWorld returns a world with a config.
func newWorld(t *testing.T, config string) *world {
	t.Helper()
	parsed := policytest.Config(t, config)
	plan, err := resolve.ForCallers(parsed)
	require.NoError(t, err)
	mapping, err := ParseMapping([]byte(testMapping))
	require.NoError(t, err)
	w := &world{T: t, registry: prometheus.NewRegistry(), ready: true}
	buckets := memory.New(memory.Options{Now: func() limit.Micros { return now }, MaxBuckets: 10_000})
	decider := &admit.Decider{
		Now: func() limit.Micros { return now }, Buckets: w.take(buckets), Renderer: response.New(parsed, nil),
		FailClosed: parsed.OnInternalError == schema.FailClosed,
		Observers:  []admit.Observer{metrics.New("test", metrics.Sources{}), usage.NewCounter()},
	}
	decider.Policies.Store(plan)
	w.Server = NewServer(Options{
		Mapping: mapping, Decider: decider, Peeker: buckets, Ready: func() bool { return w.ready }, Metrics: w.registry,
		Log: slog.New(slog.DiscardHandler),
	})
	return w
}

// callOf returns a call whose descriptors are texts such as "tenant=acme user=u_1 hits=0".
func callOf(domain string, descriptors ...string) *rls.RateLimitRequest {
	call := &rls.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		d := &common.RateLimitDescriptor{}
		for pair := range strings.FieldsSeq(text) {
			key, value, _ := strings.Cut(pair, "=")
			if key == "hits" {
				d.HitsAddend = wrapperspb.UInt64(uint64(len(value) - 1)) // hits=x is 0, hits=xxx 2
				continue
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		call.Descriptors = append(call.Descriptors, d)
	}
	return call
}

// call sends a call, which must be answered.
func (w *world) call(call *rls.RateLimitRequest) *rls.RateLimitResponse {
	w.Helper()
	answer, err := w.ShouldRateLimit(w.Context(), call)
	require.NoError(w, err)
	return answer
}
