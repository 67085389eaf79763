package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/grpctest"
)

// grpcGateway starts a gateway with a route for gRPC calls to a health service, and one for other requests to the same
// path on the host plain.
func grpcGateway(t *testing.T, onEvent func(*fakeEvent)) *Gateway {
	t.Helper()
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
`, grpctest.ServeHealth(t)), onEvent)
	return g
}

// methods are those that the tests call.
var methods = []string{grpctest.Check, grpctest.Watch}

// denial is a way to end a call, the response of Kong to it, and the result for a client.
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

// denials returns the results of grpc-go 1.76.0 for exits of a Kong 3.9.3. That client returned Unavailable,
// "unexpected HTTP status code received from server: 429", for a 429 with the content type of gRPC. Later clients, as
// that of go.mod, return grpc-status.
func denials() []denial {
	const text = "API rate limit exceeded"
	g := map[string]any{"Content-Type": "application/grpc"}
	h := map[string]any{"grpc-status": "8", "grpc-message": text, "Retry-After": "7"}
	limits := map[string]any{"X-RateLimit-Limit": "5", "RateLimit-Policy": `"day";q=5`}
	with := func(headers ...map[string]any) []map[string]any { return headers }
	seven := map[string]string{"retry-after": "7"}
	all := map[string]string{"retry-after": "7", "x-ratelimit-limit": "5", "ratelimit-policy": `"day";q=5`}
	return []denial{
		{"200, G, H", 200, "", with(g, h), grpcType, "8", text, "", codes.ResourceExhausted, text, seven},
		{"200, G, H and others", 200, "", with(g, h, limits), grpcType, "8", text, "", codes.ResourceExhausted, text, all},
		{
			"200, G, H, an encoded message", 200, "", with(g, h, map[string]any{"grpc-message": "limit%20daily%3A%20%C3%A9"}),
			grpcType, "8", "limit%20daily%3A%20%C3%A9", "", codes.ResourceExhausted, "limit daily: é", seven,
		},
		{
			"200, a text, G, H", 200, "PHP no", with(g, h), grpcType, "8", text, "PHP no",
			codes.ResourceExhausted, "larger than max", nil,
		},
		{"429, G, H", 429, "", with(g, h), grpcType, "8", text, "", codes.ResourceExhausted, text, nil},
		{
			"429, JSON", 429, "{}", with(map[string]any{"Content-Type": "application/json"}), "application/json", "", "", "{}",
			codes.Unavailable, `429 (Too Many Requests); transport: received unexpected content-type "application/json"`, nil,
		},
		{
			"429, a problem document", 429, "{}", with(map[string]any{"Content-Type": "application/problem+json"}),
			"application/problem+json", "", "", "{}",
			codes.Unavailable, `transport: received unexpected content-type "application/problem+json"`, nil,
		},
	}
}

func TestGRPCDenialsEqualThoseOfARealKong(t *testing.T) {
	for _, row := range denials() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			headers := map[string]any{}
			for _, some := range row.headers {
				maps.Copy(headers, some)
			}
			g := grpcGateway(t, func(e *fakeEvent) { e.ask(exitWith(row.status, row.body, headers)) })
			wire, body := grpctest.Post(t, g.URL(), "calls.test", grpcType)
			h := wire.Header
			if wire.StatusCode != row.status || h.Get("Content-Type") != row.contentType ||
				h.Get("grpc-status") != row.grpcStatus || h.Get("grpc-message") != row.grpcMessage ||
				body != row.bodyOnWire {
				t.Errorf("on the wire %d %v %q", wire.StatusCode, wire.Header, body)
			}
			for _, method := range methods {
				got := grpctest.Call(t, g.URL(), method)
				if got.Code != row.code || !strings.Contains(got.Message, row.message) {
					t.Errorf("%s: %v %q, want %v %q", method, got.Code, got.Message, row.code, row.message)
				}
				for name, value := range row.metadata {
					if !slices.Contains(got.Metadata[name], value) {
						t.Errorf("%s: metadata %v, want %s: %s", method, got.Metadata, name, value)
					}
				}
			}
		})
	}
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
	for _, method := range methods {
		got := grpctest.Call(t, g.URL(), method)
		if got.Code != codes.OK || !slices.Contains(got.Header["x-ratelimit-limit"], "5") {
			t.Errorf("%s: %v %q, header %v; want it admitted with our header", method, got.Code, got.Message, got.Header)
		}
	}
	if line != "POST /grpc.health.v1.Health/Watch HTTP/2.0" || !strings.Contains(protocols, "grpc") {
		t.Errorf("the plugin saw %q on a route %q", line, protocols)
	}
}

func TestOtherRequestsNeverReachThePluginsOfAGRPCRoute(t *testing.T) {
	g := grpcGateway(t, func(e *fakeEvent) { e.ask(exitWith(418, "", nil)) })
	for _, test := range []struct {
		host, contentType string
		status            int
		grpcStatus        string
	}{
		{"calls.test", "application/json", 415, ""},
		{"calls.test", "application/grpc", 418, ""},
		{"plain.test", "application/json", 418, ""},
	} {
		got, _ := grpctest.Post(t, g.URL(), test.host, test.contentType)
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
