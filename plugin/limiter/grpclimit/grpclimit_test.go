package grpclimit_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter/grpclimit"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serving returns a client of gRPC's health service behind the interceptors, for a config in YAML. after is called by
// the handlers of unary calls.
func serving(t *testing.T, config string, after func(context.Context)) healthpb.HealthClient {
	t.Helper()
	parsed, err := limiter.Parse([]byte(config))
	require.NoError(t, err)
	l, err := limiter.New(limiter.Options{Config: parsed})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
	identify := func(ctx context.Context, _ string) limiter.Request {
		org := metadata.ValueFromIncomingContext(ctx, "org") // stands for what is authenticated
		return limiter.Request{Org: append(org, "")[0]}
	}
	handler := func(ctx context.Context, message any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		after(ctx)
		return next(ctx, message)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(grpclimit.Unary(l, identify), handler),
		grpc.StreamInterceptor(grpclimit.Stream(l, identify)))
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener := bufconn.Listen(1 << 16)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	dial := func(context.Context, string) (net.Conn, error) { return listener.Dial() }
	client, err := grpc.NewClient("passthrough:x", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, client.Close())
		server.Stop()
		assert.NoError(t, <-ended)
	})
	return healthpb.NewHealthClient(client)
}

func as(t *testing.T, org string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "org", org)
}

func TestADeniedCallHasTheStatusTheWaitAndTheHeaders(t *testing.T) {
	reached := 0
	client := serving(t, `
on_missing_tenant: deny
error_message: 100 % used
tiers:
  - name: a
    limits:
      - {name: checks, scope: tenant, endpoint: "POST /grpc.health.v1.Health/Check", limit: 1, window_size: 3600}`,
		func(context.Context) { reached++ })
	for _, want := range []struct {
		org, remaining, message string
		code                    codes.Code
	}{
		{"acme", "0", "", codes.OK},
		{"acme", "0", "100 % used", codes.ResourceExhausted},
		{"globex", "0", "", codes.OK},
		{"", "", "No tenant identified", codes.PermissionDenied},
	} {
		var headers metadata.MD
		_, err := client.Check(as(t, want.org), &healthpb.HealthCheckRequest{}, grpc.Header(&headers))
		answer := status.Convert(err)
		assert.Equal(t, want.code, answer.Code(), "%s: %v", want.org, err)
		assert.Equal(t, want.message, answer.Message(), "%s", want.org)
		assert.Equal(t, want.remaining, append(headers["x-ratelimit-remaining"], "")[0], "%s: %v", want.org, headers)
		if want.code == codes.ResourceExhausted {
			require.Len(t, answer.Details(), 1)
			info, _ := answer.Details()[0].(*errdetails.RetryInfo)
			assert.InDelta(t, time.Hour, info.GetRetryDelay().AsDuration(), float64(time.Minute))
			assert.Regexp(t, "^(3600|35[0-9]{2})$", headers["retry-after"][0]) // less on a machine that stalls
		}
	}
	assert.Equal(t, 2, reached, "calls that reached the handler")
}

func TestAStreamHoldsItsSlotUntilItEnds(t *testing.T) {
	client := serving(t, `
tiers: [{name: a, limits: [{name: streams, scope: tenant, limit: 1, algorithm: concurrency, max_duration: 600}]}]`, nil)
	open := func() (end func(), err error) {
		ctx, end := context.WithCancel(as(t, "acme"))
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		return end, err
	}
	end, err := open()
	require.NoError(t, err)
	endDenied, err := open()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	endDenied()
	end()
	await.NoError(t, "a stream after the first one has ended", func() error {
		end, err := open()
		end()
		return err
	})
}

func TestAHandlerSettlesWhatItsCallHasReserved(t *testing.T) {
	client := serving(t, `
tiers:
  - name: a
    limits:
      - name: tokens
        scope: tenant
        limit: 100
        window_size: 86400
        settle: {reserve: 80, sources: [{from: header.X}]}`,
		func(ctx context.Context) { assert.NoError(t, limiter.FromContext(ctx).Settle(5)) })
	for range 4 { // of which only one would have room without the settlement
		_, err := client.Check(as(t, "acme"), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
	}
	_, err := client.Check(as(t, "acme"), &healthpb.HealthCheckRequest{})
	require.NoError(t, err, "20 of 100 tokens were used, and 80 are reserved")
	_, err = client.Check(as(t, "acme"), &healthpb.HealthCheckRequest{})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "25 of 100 tokens were used")
}

func TestADecisionHoldsWhereHeadersCannotBeSent(t *testing.T) {
	config, err := limiter.Parse([]byte(`
tiers: [{name: a, limits: [{name: calls, scope: tenant, limit: 1, window_size: 86400}]}]`))
	require.NoError(t, err)
	l, err := limiter.New(limiter.Options{Config: config})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
	call := func() (any, error) { // whose context has no stream
		return grpclimit.Unary(l, nil)(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"},
			func(context.Context, any) (any, error) { return "handled", nil })
	}
	answer, err := call()
	require.NoError(t, err)
	require.Equal(t, "handled", answer)
	_, err = call()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}
