package forward

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const now = 1_700_000_000 * limit.Second

const testConfig = `{on_missing_user: skip, default_tier: free, tiers: [{name: free, limits: [
  {name: per-tenant, scope: tenant, limit: 4, window_size: 3600, algorithm: fixed_window},
  {name: per-address, scope: ip, limit: 3, window_size: 3600, algorithm: fixed_window},
  {name: writes, scope: tenant, endpoint: "POST /records", limit: 2, window_size: 86400, algorithm: fixed_window}]}]}`

const testMapping = `{tenant_from: [header.X-Tenant], user_from: [header.X-User],
  method_from: [header.X-Forwarded-Method], endpoint_from: [header.X-Forwarded-Uri]}`

// world is a door over buckets in memory, at an instant that stands still. Its only proxy is 192.0.2.1.
type world struct {
	*testing.T
	*Door
	registry *prometheus.Registry
	ready    bool
	during   func(ctx context.Context) // called in each take; nil: nothing
	cancel   func()                    // ends the question that is asked
}

func newWorld(t *testing.T) *world {
	t.Helper()
	parsed := policytest.Config(t, testConfig)
	plan, err := resolve.ForCallers(parsed)
	require.NoError(t, err)
	mapping, err := ParseMapping([]byte(testMapping))
	require.NoError(t, err)
	w := &world{T: t, registry: prometheus.NewRegistry(), ready: true}
	buckets := memory.New(memory.Options{Now: func() limit.Micros { return now }, MaxBuckets: 100})
	decider := &admit.Decider{
		Now: func() limit.Micros { return now }, Renderer: response.New(parsed, nil),
		Buckets: admit.TakeFunc(func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
			if w.during != nil {
				w.during(ctx)
			}
			return buckets.Take(ctx, bounds, statuses)
		}),
	}
	decider.Policies.Store(plan)
	w.Door = New(Options{
		Mapping: mapping, Decider: decider, Ready: func() bool { return w.ready }, Metrics: w.registry,
		ClientOf: func(r *http.Request) (netip.Addr, bool) {
			client, _ := netip.ParseAddr(r.Header.Get("X-Forwarded-For"))
			return client, strings.HasPrefix(r.RemoteAddr, "192.0.2.1:")
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return w
}

// ask asks as Traefik and Caddy do about a request, such as "POST /records", with lines of headers beside.
func (w *world) ask(query, request string, lines ...string) *httptest.ResponseRecorder {
	w.Helper()
	r := httptest.NewRequest(http.MethodGet, Path+query, nil)
	r.RemoteAddr = "192.0.2.1:4000"
	method, uri, _ := strings.Cut(request, " ")
	for _, line := range append(lines, "X-Forwarded-Method: "+method, "X-Forwarded-Uri: "+uri,
		"X-Forwarded-Proto: https", "X-Forwarded-Host: api.example.com", "User-Agent: curl/8") {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Peer" {
			r.RemoteAddr = value
			continue
		}
		r.Header.Add(name, value)
	}
	got := httptest.NewRecorder()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	w.cancel = cancel
	w.ServeHTTP(got, r.WithContext(ctx))
	require.Equal(w, "no-store", got.Header().Get("Cache-Control"), "of %d", got.Code)
	return got
}

func TestAProxyThatStopsWaitingDoesNotEndTheCallOfRedis(t *testing.T) {
	w := newWorld(t)
	w.during = func(ctx context.Context) {
		w.cancel()
		require.NoError(t, ctx.Err())
	}
	w.ask("", "GET /", "X-Tenant: acme")
	w.during = nil
	got := w.ask("", "GET /", "X-Tenant: acme")
	require.Equal(t, "1", got.Header().Get("X-RateLimit-Remaining"), "both questions have spent")
}

func TestAProxyIsAnsweredWithThePluginsDecision(t *testing.T) {
	w := newWorld(t)
	const acme, one, other = "X-Tenant: acme", "X-Forwarded-For: 198.51.100.1", "X-Forwarded-For: 198.51.100.2"
	for i, c := range []struct {
		query, request string
		lines          []string
		want           string // status, X-RateLimit-Status, X-RateLimit-Remaining
		body           string
	}{
		{"", "POST /records?x=1", []string{acme, one}, "200  1", ""},
		{"", "post //rec%6frds", []string{acme, one}, "200  0", ""}, // the same endpoint, as a router sees it
		{"", "POST /records", []string{acme, one}, "429  0", `"violated-policies":["writes"]`},
		{"?deny=403", "POST /records", []string{acme, one}, "403 429 0", `"status":429`},
		{"?deny=403", "GET /records", []string{acme, one}, "200  0", ""},
		{"", "GET /records", []string{acme, one}, "429  0", `"violated-policies":["per-address"]`},
		{"", "GET /records", []string{acme, other, "X-User: u_1"}, "200  0", ""},
		{"", "GET /", []string{acme, other}, "429  0", `"violated-policies":["per-tenant"]`},
		{"", "GET /", []string{acme, "X-Tenant: evil", other}, "400  ", "The header X-Tenant must be sent once"},
		{"", "GET /", []string{"X-Tenant: acme,evil", other}, "400  ", "and hold one value, without a comma"},
		{"?deny=403", "GET /", []string{acme, acme, other}, "403 400 ", "The header X-Tenant must be sent once"},
	} {
		got := w.ask(c.query, c.request, c.lines...)
		h := got.Header()
		status := fmt.Sprint(got.Code, " ", h.Get("X-RateLimit-Status"), " ", h.Get("X-RateLimit-Remaining"))
		if status != c.want || !strings.Contains(got.Body.String(), c.body) || (c.body == "") != (got.Body.Len() == 0) {
			t.Errorf("%d: %q with %q: %q %s, want %q and %q", i, c.request, c.lines, status, got.Body, c.want, c.body)
		}
		if wait := h.Get("Retry-After"); strings.Contains(status, "429") != (wait != "") {
			t.Errorf("%d: %s has Retry-After %q", i, status, wait)
		}
	}
	promtest.WantValues(t, promtest.CheckGathered(t, "testdata/metrics.golden", w.registry),
		"rate_limiter_forward_auth_answers_total ", map[string]float64{"allowed": 4, "denied": 7})
}

func TestWhatIsNotDecidedSpendsNothingAndHasAStatusThatNginxTakesForAnError(t *testing.T) {
	w := newWorld(t)
	const acme = "X-Tenant: acme"
	got := w.ask("?deny=403", "GET /", acme, "Peer: 198.51.100.7:99", "X-Forwarded-For: 192.0.2.1")
	if got.Code != 404 || !strings.Contains(got.Body.String(), "--forward-auth-proxies") {
		t.Errorf("an untrusted peer: %d %s", got.Code, got.Body)
	}
	w.ready = false
	if got := w.ask("", "GET /", acme); got.Code != 503 || !strings.Contains(got.Body.String(), "warming up") {
		t.Errorf("without policies: %d %s", got.Code, got.Body)
	}
	w.ready = true
	if got := w.ask("", "GET /", acme); got.Header().Get("X-RateLimit-Remaining") != "2" {
		t.Errorf("something was spent: %v", got.Header())
	}
}

func TestAMappingThatIsWrongNamesTheField(t *testing.T) {
	for text, want := range map[string]string{
		"[]":                              "must be YAML of the form {tenant_from: [header.X-Tenant]}",
		"":                                "tenant_from: is required where nothing else is mapped, such as [header.X-Tenant]",
		"{tenants: [static.x]}":           "tenants: unknown field: use tenant_from, user_from",
		"{tenant_from: header.X-Tenant}":  "tenant_from: must be a list of sources",
		"{user_from: [descriptor.user]}":  `user_from: unknown source "descriptor.user": use header.<name> or static.<text>`,
		"{ip_from: [static.x, header.]}":  `ip_from: unknown source "header."`,
		"{endpoint_from: [header.X, {}]}": "endpoint_from: must be a list of sources",
	} {
		if _, err := ParseMapping([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
