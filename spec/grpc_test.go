package spec

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// healthService serves gRPC's health service and returns its port.
func healthService(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// grpcDeck is a decK file with a gRPC route, whose plugin config is route's, and a global one.
func grpcDeck(port int, route, global string) string {
	plugin := func(config string) string {
		if config == "" {
			return ""
		}
		return "{name: tenant-rate-limiting, config: " + config + "}"
	}
	return fmt.Sprintf(`_format_version: "3.0"
services:
- {name: health, protocol: grpc, host: 127.0.0.1, port: %d, routes: [
    {name: health, protocols: [grpc, grpcs], paths: [/grpc.health.v1.Health], plugins: [%s]}]}
- {name: echo, url: http://echo.internal, routes: [{name: rest, hosts: [rest.test], paths: [/]}]}
plugins: [%s]
`, port, plugin(route), plugin(global))
}

// call is a unary call ("Check") or a stream ("Watch") of the health service.
func (n *node) call(t *testing.T, method string, options ...grpc.CallOption) (metadata.MD, error) {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(n.URL(), "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := healthpb.NewHealthClient(conn)
	if method == "Check" {
		var header, trailer metadata.MD
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
		return metadata.Join(header, trailer), err
	}
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{}, options...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		return stream.Trailer(), err
	}
	header, err := stream.Header()
	return header, err
}

func TestADeniedGRPCCallReadsItsStatusAndWhenToRetry(t *testing.T) {
	const limits = `{error_message: "Zu schnell: 5 % übrig", tiers: [{name: a, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600, algorithm: fixed_window}]}], on_missing_tenant: limit_by_ip}`
	for name, deck := range map[string]func(port int) string{
		"of a route": func(port int) string { return grpcDeck(port, limits, "") },
		"of any":     func(port int) string { return grpcDeck(port, "", limits) },
	} {
		for _, method := range []string{"Check", "Watch"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				n := start(t, deck(healthService(t)))
				md, err := n.call(t, method)
				if err != nil || !slices.Equal(md["x-ratelimit-remaining"], []string{"0"}) {
					t.Fatalf("the first call: %v, metadata %v; want it admitted with our headers", err, md)
				}
				for _, option := range []grpc.CallOption{grpc.EmptyCallOption{}, grpc.CallContentSubtype("proto")} {
					md, err := n.call(t, method, option)
					if got := status.Convert(err); got.Code() != codes.ResourceExhausted || got.Message() != "Zu schnell: 5 % übrig" {
						t.Errorf("%v %q, want ResourceExhausted with error_message", got.Code(), got.Message())
					}
					if len(md["retry-after"]) != 1 || len(md["x-ratelimit-limit"]) != 1 || len(md["ratelimit-policy"]) != 1 {
						t.Errorf("metadata %v, want retry-after and the limits", md)
					}
				}
			})
		}
	}
}

func TestADeniedGRPCCallTellsWhyByItsCode(t *testing.T) {
	for name, test := range map[string]struct {
		config string
		code   codes.Code
	}{
		"no tenant": {`{on_missing_tenant: deny, tiers: [{name: a, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600}]}]}`, codes.PermissionDenied},
		"no Redis": {
			`{strategy: redis, redis: {host: 127.0.0.1, port: 1}, global: {limits: [{name: all, scope: global, limit: 1, window_size: 3600, fail_mode: closed}]}}`,
			codes.Unavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, grpcDeck(healthService(t), test.config, ""))
			for _, method := range []string{"Check", "Watch"} {
				md, err := n.call(t, method)
				if got := status.Convert(err); got.Code() != test.code || strings.Contains(got.Message(), "HTTP status") {
					t.Errorf("%s: %v %q, metadata %v; want %v of our own", method, got.Code(), got.Message(), md, test.code)
				}
			}
		})
	}
}

func TestOnlyGRPCCallsAreDeniedInGRPC(t *testing.T) {
	n := start(t, grpcDeck(healthService(t), "", `{global: {limits: [{name: all, scope: global, limit: 1, window_size: 3600, algorithm: fixed_window}]}}`))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	post := func(host, contentType string) *http.Response {
		request, err := http.NewRequest(http.MethodPost, n.URL()+"/grpc.health.v1.Health/Check", bytes.NewReader(make([]byte, 5)))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		request.Header.Set("Content-Type", contentType)
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return response
	}
	post("rest.test", "text/plain") // spends the limit
	for _, test := range []struct {
		host, contentType string
		status            int
		answer            string
	}{
		{"health.test", "application/grpc", 200, "application/grpc"},
		{"health.test", "application/grpc+proto", 200, "application/grpc"},
		{"health.test", "application/grpc-web", 429, "application/problem+json"},
		{"health.test", "application/grpc-web-text+proto", 429, "application/problem+json"},
		{"rest.test", "application/grpc", 429, "application/problem+json"},
		{"rest.test", "application/json", 429, "application/problem+json"},
	} {
		if a := post(test.host, test.contentType); a.StatusCode != test.status || a.Header.Get("Content-Type") != test.answer {
			t.Errorf("%s to %s: %d %v, want %d in %s", test.contentType, test.host, a.StatusCode, a.Header, test.status, test.answer)
		}
	}
}
