package phase

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// bucketsFunc implements admit.Buckets with a function.
type bucketsFunc func(bounds []policy.Bound, statuses []decision.Status) error

func (f bucketsFunc) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return f(bounds, statuses)
}

// observerFunc implements admit.Observer with a function.
type observerFunc func(*decision.Decision)

func (f observerFunc) Observe(d *decision.Decision) { f(d) }

// admitAll admits everything.
func admitAll(bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{Status: limit.Status{Remaining: 7, Reset: 1_000_000}, Source: decision.Memory}
	}
	return nil
}

// denyAll denies everything.
func denyAll(bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{
			Wait: 3 * limit.Second, Status: limit.Status{Reset: 3_000_000}, Source: decision.Memory,
		}
	}
	return nil
}

// harness is a server under test, its socket and its log.
type harness struct {
	*Server
	t     testing.TB
	path  string
	paths atomic.Int64 // built and not released
	log   *logtest.Text
	stop  func() error
}

// serve serves plugin configs whose deciders take from buckets.
func serve(t testing.TB, buckets bucketsFunc, change func(*Options)) *harness {
	t.Helper()
	h := &harness{t: t, path: filepath.Join(t.TempDir(), "s"), log: new(logtest.Text)}
	options := Options{
		Budget: await.Longest,
		Log:    slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Build: func(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
			h.paths.Add(1)
			decider := &admit.Decider{
				Buckets:    buckets,
				Renderer:   response.New(config, nil),
				FailClosed: config.OnInternalError == schema.FailClosed,
			}
			decider.Policies.Store(plan)
			return decider, func() { h.paths.Add(-1) }, nil
		},
	}
	if change != nil {
		change(&options)
	}
	h.Server = New(options)
	listener, err := net.Listen("unix", h.path)
	require.NoError(t, err)
	h.stop = kongtest.Serve(t, listener, h.Serve)
	return h
}

// writes returns how many writes to sockets the server has done.
func (h *harness) writes() uint64 { return h.Counters().Writes }

// questions returns how many questions the server has sent.
func (h *harness) questions() uint64 { return h.Counters().Questions }

// dial connects a worker of Kong.
func (h *harness) dial() *kongtest.Worker {
	h.t.Helper()
	return kongtest.Dial(h.t, h.path)
}
