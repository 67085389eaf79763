package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
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

// grpcGateway starts a gateway with a route for gRPC calls to a health service, and one for other requests to the same
// path on the host plain.
func grpcGateway(t *testing.T, onEvent func(*fakeEvent)) *Gateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	upstream := grpc.NewServer()
	healthpb.RegisterHealthServer(upstream, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- upstream.Serve(listener) }()
	t.Cleanup(func() {
		upstream.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	g, _ := withFake(t, fmt.Sprintf(`
services:
- name: health
  protocol: grpc
  host: 127.0.0.1
  port: %d
  routes: [{name: calls, protocols: [grpc], paths: [/grpc.health.v1.Health], plugins: [{name: rec}]}]
- name: plain
  host: echo.internal
  routes:
  - {name: plain, hosts: [plain.test], paths: [/], plugins: [{name: rec}]}
  - {name: secure, hosts: [secure.test], protocols: [grpcs], paths: [/], plugins: [{name: rec}]}
`, listener.Addr().(*net.TCPAddr).Port), onEvent)
	return g
}

// called holds what a gRPC client reads of a call.
type called struct {
	code            codes.Code
	message         string
	header, trailer metadata.MD
}

func result(err error, header, trailer metadata.MD) called {
	s, _ := status.FromError(err)
	return called{s.Code(), s.Message(), header, trailer}
}

// calls makes a unary call and a stream.
func calls(t *testing.T, g *Gateway, options ...grpc.DialOption) map[string]called {
	t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(strings.TrimPrefix(g.URL(), "http://"), options...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := healthpb.NewHealthClient(conn)
	var header, trailer metadata.MD
	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	got := map[string]called{"unary": result(err, header, trailer)}
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	header, headerErr := stream.Header()
	if err == nil && headerErr != nil {
		t.Fatal(headerErr)
	}
	got["stream"] = result(err, header, stream.Trailer())
	return got
}

// denial is one way to end a call, the part of it that Kong puts on the wire, and what a client reads.
type denial struct {
	name    string
	status  int
	body    string
	headers []map[string]any

	contentType, grpcStatus, grpcMessage, bodyOnWire string

	code     codes.Code
	message  string // a part of it
	metadata map[string]string
}

// denials holds what kong.response.exit gave grpc-go 1.76.0 through a Kong 3.9.3. In the two rows of a 429 with the
// content type of gRPC that client read Unavailable, "unexpected HTTP status code received from server: 429"; later
// ones, as that of go.mod, read grpc-status there, too.
func denials() []denial {
	const text = "API rate limit exceeded"
	g := map[string]any{"Content-Type": "application/grpc"}
	h := map[string]any{"grpc-status": "8", "grpc-message": text, "Retry-After": "7"}
	limits := map[string]any{"X-RateLimit-Limit": "5", "RateLimit-Policy": `"day";q=5`}
	with := func(headers ...map[string]any) []map[string]any { return headers }
	seven := map[string]string{"retry-after": "7"}
	all := map[string]string{"retry-after": "7", "x-ratelimit-limit": "5", "ratelimit-policy": `"day";q=5`}
	const untyped = "malformed header: missing HTTP content-type"
	return []denial{
		{"200, G, H", 200, "", with(g, h), grpcType, "8", text, "", codes.ResourceExhausted, text, seven},
		{"200, G, H and others", 200, "", with(g, h, limits), grpcType, "8", text, "", codes.ResourceExhausted, text, all},
		{
			"200, G, H, an encoded message", 200, "", with(g, h, map[string]any{"grpc-message": "limit%20daily%3A%20%C3%A9"}),
			grpcType, "8", "limit%20daily%3A%20%C3%A9", "", codes.ResourceExhausted, "limit daily: é", seven,
		},
		{"200, H", 200, "", with(h), "", "8", "", "", codes.Unknown, untyped, nil},
		{
			"200, a text, G, H", 200, "PHP no", with(g, h), grpcType, "8", text, "PHP no",
			codes.ResourceExhausted, "larger than max", nil,
		},
		{"429, G, H", 429, "", with(g, h), grpcType, "8", text, "", codes.ResourceExhausted, text, nil},
		{
			"429, G", 429, "", with(g), grpcType, "8", "ResourceExhausted", "",
			codes.ResourceExhausted, "ResourceExhausted", nil,
		},
		{"429, H", 429, "", with(h), "", "8", "", "", codes.Unavailable, "429 (Too Many Requests); " + untyped, nil},
		{"429, nothing", 429, "", nil, "", "8", "", "", codes.Unavailable, "429 (Too Many Requests); " + untyped, nil},
		{"429, a text", 429, "no", nil, "", "8", "no", "", codes.Unavailable, "429 (Too Many Requests); " + untyped, nil},
		{
			"429, JSON", 429, "{}", with(map[string]any{"Content-Type": "application/json"}), "application/json", "", "", "{}",
			codes.Unavailable, `429 (Too Many Requests); transport: received unexpected content-type "application/json"`, nil,
		},
		{
			"429, a problem document", 429, "{}", with(map[string]any{"Content-Type": "application/problem+json"}),
			"application/problem+json", "", "", "{}",
			codes.Unavailable, `transport: received unexpected content-type "application/problem+json"`, nil,
		},
		{"403, a text", 403, "no", nil, "", "7", "no", "", codes.PermissionDenied, "403 (Forbidden); malformed header", nil},
		{
			"503, a text", 503, "no", nil, "", "14", "no", "",
			codes.Unavailable, "503 (Service Unavailable); malformed header", nil,
		},
		{"418, a text", 418, "no", nil, "", "3", "no", "", codes.Unknown, "418", nil},
	}
}

func TestGRPCDenialsAreThoseOfARealKong(t *testing.T) {
	for _, row := range denials() {
		t.Run(row.name, func(t *testing.T) {
			headers := map[string]any{}
			for _, some := range row.headers {
				maps.Copy(headers, some)
			}
			g := grpcGateway(t, func(e *fakeEvent) { e.ask(exitWith(row.status, row.body, headers)) })
			wire, body := overHTTP2(t, g, "calls.test", grpcType)
			h := wire.Header
			if wire.StatusCode != row.status || h.Get("Content-Type") != row.contentType ||
				h.Get("grpc-status") != row.grpcStatus || h.Get("grpc-message") != row.grpcMessage ||
				body != row.bodyOnWire {
				t.Errorf("on the wire %d %v %q", wire.StatusCode, wire.Header, body)
			}
			for kind, got := range calls(t, g) {
				if got.code != row.code || !strings.Contains(got.message, row.message) {
					t.Errorf("%s: %v %q, want %v %q", kind, got.code, got.message, row.code, row.message)
				}
				for name, value := range row.metadata {
					if !slices.Contains(got.trailer[name], value) {
						t.Errorf("%s: trailer %v, want %s: %s", kind, got.trailer, name, value)
					}
				}
			}
		})
	}
}

// overHTTP2 posts to the health service over HTTP/2 without TLS.
func overHTTP2(t *testing.T, g *Gateway, host, contentType string) (*http.Response, string) {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	url, emptyMessage := g.URL()+"/grpc.health.v1.Health/Check", bytes.NewReader(make([]byte, 5))
	request, err := http.NewRequest(http.MethodPost, url, emptyMessage)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	request.Header.Set("Content-Type", contentType)
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestGRPCCallsReachTheServiceAndPluginsSeeThemAsInKong(t *testing.T) {
	var line, protocols string
	g := grpcGateway(t, func(e *fakeEvent) {
		answers, err := e.ask(question{"kong.nginx.get_var", encodeString("request")}, question{"kong.router.get_route", nil})
		if err != nil {
			return
		}
		line, _ = decodeString(answers[0])
		protocols = string(answers[1])
		e.end(setHeadersCall(map[string]any{"X-RateLimit-Limit": "5"}))
	})
	for kind, got := range calls(t, g) {
		if got.code != codes.OK || !slices.Contains(got.header["x-ratelimit-limit"], "5") {
			t.Errorf("%s: %v %q, header %v; want it admitted with our header", kind, got.code, got.message, got.header)
		}
	}
	if line != "POST /grpc.health.v1.Health/Watch HTTP/2.0" || !strings.Contains(protocols, "grpc") {
		t.Errorf("the plugin saw %q on a route %q", line, protocols)
	}
}

func TestWhatIsNoGRPCCallNeverReachesThePluginsOfAGRPCRoute(t *testing.T) {
	g := grpcGateway(t, func(e *fakeEvent) { e.ask(exitWith(418, "", nil)) })
	for _, test := range []struct {
		host, contentType string
		status            int
		grpcStatus        string
	}{
		{"calls.test", "application/json", 415, ""},
		{"calls.test", "application/grpc", 418, "3"},
		{"plain.test", "application/json", 418, ""},
		{"secure.test", "application/grpc", 200, "1"},
	} {
		got, _ := overHTTP2(t, g, test.host, test.contentType)
		if got.StatusCode != test.status || got.Header.Get("grpc-status") != test.grpcStatus {
			t.Errorf("%s with %s: %d %v", test.host, test.contentType, got.StatusCode, got.Header)
		}
	}
	old := send(t, g, "POST /grpc.health.v1.Health/Check HTTP/1.1",
		"Host: calls.test", "Content-Type: application/grpc", "Content-Length: 0")
	if old.status != 426 || old.header.Get("Upgrade") != "HTTP/2" {
		t.Errorf("over HTTP/1.1: %d %v, want 426", old.status, old.header)
	}
}
