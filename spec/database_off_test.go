package spec

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// files is a config of envoyproxy/ratelimit.
const files = `{domain: messaging, descriptors: [{key: to_number, rate_limit: {unit: year, requests_per_unit: 6}}]}`

// imported returns what ratelimit import makes of files for the plane's Redis: the config and the mapping.
func (p *plane) imported() (config, mapping string) {
	p.t.Helper()
	dir := p.t.TempDir()
	from := filepath.Join(dir, "ratelimit.yaml")
	config, mapping = filepath.Join(dir, "envoy-limits.yml"), filepath.Join(dir, "envoy-doors.yml")
	require.NoError(p.t, os.WriteFile(from, []byte(files), 0o600))
	p.operate("import", from, "--envoy-config", mapping, "--redis", p.redis.Address(), "-o", config)
	return config, mapping
}

// withoutDatabase serves both doors by a config alone, and returns a connection to that for Envoy.
func (p *plane) withoutDatabase(config, mapping string) (*api, *grpc.ClientConn) {
	p.t.Helper()
	headers := filepath.Join(p.t.TempDir(), "forward-auth.yml")
	text := "{tenant_from: [header.X-Tenant], tier_from: [static.messaging.to_number]}"
	require.NoError(p.t, os.WriteFile(headers, []byte(text), 0o600))
	address, door := freeport.Address(p.t), freeport.Address(p.t)
	a := p.run(p.command("serve", "--database", "off", "--config", config, "--listen", address, "--metrics-listen", "off",
		"--envoy-listen", door, "--envoy-config", mapping,
		"--forward-auth", headers, "--forward-auth-proxies", "127.0.0.1"), &api{url: "http://" + address})
	await.That(p.t, "the process is ready", func() bool { return a.status("/readyz") == http.StatusOK })
	conn, err := grpc.NewClient(door, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	return a, conn
}

func TestTheImportedConfigOfEnvoysServiceIsServedWithoutPostgres(t *testing.T) {
	t.Parallel()
	p := &plane{t: t, redis: redistest.Single(t)}
	config, mapping := p.imported()
	a, first := p.withoutDatabase(config, mapping)
	_, second := p.withoutDatabase(config, mapping)
	ask := func(conn *grpc.ClientConn, number string) string {
		got, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
			Domain: "messaging", Descriptors: []*common.RateLimitDescriptor{descriptor("to_number", number)},
		})
		require.NoError(t, err)
		return fmt.Sprint(got.GetOverallCode(), " ", got.GetStatuses()[0].GetLimitRemaining())
	}
	for left := 5; left > 0; left -= 2 { // both count in Redis
		require.Equal(t, fmt.Sprint("OK ", left), ask(first, "555"))
		require.Equal(t, fmt.Sprint("OK ", left-1), ask(second, "555"))
	}
	require.Equal(t, "OVER_LIMIT 0", ask(first, "555"))
	require.Equal(t, "OK 5", ask(second, "556"))
	health, err := healthpb.NewHealthClient(first).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, "SERVING", health.GetStatus().String())

	proxy := nginx(t, backend(t), strings.TrimPrefix(a.url, "http://"))
	for left := range 6 {
		got, err := proxy.send(http.MethodGet, "/records", "", "apikey", "alices-key")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("200 ", 5-left), fmt.Sprint(got.Status, " ", got.Header.Get("X-RateLimit-Remaining")))
	}
	got, err := proxy.send(http.MethodGet, "/records", "", "apikey", "alices-key")
	require.NoError(t, err)
	require.Equal(t, http.StatusTooManyRequests, got.Status)

	a.want(http.StatusOK, nil, http.MethodGet, "/healthz", "")
	for _, path := range []string{"/v1/ratelimit/policies", "/portal/", "/openapi.json"} {
		got := a.want(http.StatusNotFound, nil, http.MethodGet, path, "")
		require.Equal(t, "application/problem+json", got.Header.Get("Content-Type"), path)
		require.Contains(t, got.Body, "--database is off", path)
	}
	p.redis.Kill()
	await.That(t, "the loss of Redis is reported", func() bool {
		got := a.want(http.StatusOK, nil, http.MethodGet, "/readyz", "")
		return strings.Contains(got.Body, "Redis does not answer") && !strings.Contains(got.Body, "database")
	})
	require.NoError(t, a.terminate())
	require.NotContains(t, a.log.String(), "Postgres")
}
