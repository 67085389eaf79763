package spec

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// edge maps descriptors of the domain edge.
const edge = `domains: {edge: {tenant_from: [descriptor.tenant], user_from: [descriptor.user],
  tier_from: [descriptor.tier, static.enterprise], endpoint_from: [descriptor.path]}}`

// envoyDoor serves the API with the door for Envoy, and returns a connection to that.
func (p *plane) envoyDoor(args ...string) (*api, *grpc.ClientConn) {
	p.t.Helper()
	file, address := filepath.Join(p.t.TempDir(), "envoy.yml"), freeport.Address(p.t)
	require.NoError(p.t, os.WriteFile(file, []byte(edge), 0o600))
	a := p.serve(append([]string{"--envoy-listen", address, "--envoy-config", file}, args...)...)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	return a, conn
}

// descriptor returns a descriptor with entries: pairs of key and value.
func descriptor(pairs ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func TestKongAndEnvoyShareOneBudgetAndADeniedCallSpendsNothing(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	kong := p.node("kong", p.dsn)
	_, conn := p.envoyDoor()
	client := rls.NewRateLimitServiceClient(conn)
	ask := func(descriptors ...*common.RateLimitDescriptor) *rls.RateLimitResponse {
		answer, err := client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "edge", Descriptors: descriptors})
		require.NoError(t, err)
		return answer
	}
	// Each call of Envoy takes from acme, which Kong's requests spend from too, and from a tenant of its own or, in every
	// other, from one that is soon exhausted.
	var asked, narrow atomic.Int64
	admitted := race(t, map[string]door{
		"Kong": byHTTP(func() (answer, error) { return kong.send(http.MethodGet, "/records", "apikey", "alice") }),
		"Envoy": func() (bool, error) {
			beside := []string{"narrow", "wide"}[asked.Add(1)%2]
			got := ask(descriptor("tenant", "acme", "user", "u_1"), descriptor("tenant", beside)).GetOverallCode()
			if got == rls.RateLimitResponse_OK && beside == "narrow" {
				narrow.Add(1)
			}
			if got == rls.RateLimitResponse_UNKNOWN {
				return false, errors.New("neither admitted nor denied")
			}
			return got == rls.RateLimitResponse_OK, nil
		},
	}, 4, 20)
	require.EqualValues(t, 60, sum(t, admitted), "of 160")
	// The ledger of the second descriptors: what was admitted, and nothing of what acme's limit denied.
	for tenant, spent := range map[string]int64{"narrow": narrow.Load(), "wide": admitted["Envoy"] - narrow.Load()} {
		answer := ask(descriptor("tenant", tenant))
		if left := int64(answer.GetStatuses()[0].GetLimitRemaining()); left != 60-spent-1 {
			t.Errorf("%s has %d tokens left, want %d", tenant, left, 60-spent-1)
		}
	}
	answer := ask(descriptor("tenant", "acme"), descriptor("tenant", "wide"))
	limit := answer.GetStatuses()[0].GetCurrentLimit()
	if answer.GetOverallCode() != rls.RateLimitResponse_OVER_LIMIT || limit.GetRequestsPerUnit() != 60 ||
		limit.GetUnit() != rls.RateLimitResponse_RateLimit_YEAR || len(answer.GetRawBody()) == 0 {
		t.Errorf("%v", answer)
	}
}

func TestTheDoorForEnvoyDrainsAndFollowsFailModes(t *testing.T) {
	t.Parallel()
	p := planeOf(t, `tiers: [{name: enterprise, limits: [
    {name: open, scope: tenant, limit: 60, window_size: 31536000, algorithm: fixed_window, fail_mode: open}]},
    {name: closed, limits: [
    {name: closed, scope: tenant, limit: 60, window_size: 31536000, algorithm: fixed_window, fail_mode: closed}]}]`)
	a, conn := p.envoyDoor("--drain-time", "15s") // in which a call is answered, on a busy machine too
	client := rls.NewRateLimitServiceClient(conn)
	code := func(tier string) string {
		answer, err := client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
			Domain: "edge", Descriptors: []*common.RateLimitDescriptor{descriptor("tenant", "acme", "tier", tier)},
		})
		if err != nil {
			return status.Code(err).String()
		}
		return answer.GetOverallCode().String()
	}
	health := func() string {
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			return err.Error()
		}
		return answer.GetStatus().String()
	}
	require.Equal(t, "SERVING OK OK", health()+" "+code("enterprise")+" "+code("closed"))
	p.redis.Kill()
	require.Equal(t, "OK OVER_LIMIT", code("enterprise")+" "+code("closed"))

	ended := make(chan error, 1)
	go func() { ended <- a.terminate() }()
	await.That(t, "the door is not healthy", func() bool { return health() == "NOT_SERVING" })
	require.Equal(t, "OK", code("enterprise"), "calls are answered while it drains")
	require.NoError(t, <-ended)
	await.That(t, "the door is closed", func() bool { return code("enterprise") == codes.Unavailable.String() })
}
