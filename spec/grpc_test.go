package spec

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/grpctest"
)

// grpcDeck returns a decK file with a gRPC route, its plugin config, and a global plugin config.
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

func TestADeniedGRPCCallHasAStatusAndARetryAfter(t *testing.T) {
	t.Parallel()
	const message = "Zu schnell: 5 % übrig"
	const limits = `{error_message: "` + message + `", on_missing_tenant: limit_by_ip, tiers: [{name: a, limits: [
		{name: year, scope: tenant, limit: 1, window_size: 31536000, algorithm: fixed_window}]}]}`
	for name, deck := range map[string]func(port int) string{
		"with a route": func(port int) string { return grpcDeck(port, limits, "") },
		"global":       func(port int) string { return grpcDeck(port, "", limits) },
	} {
		for _, method := range []string{grpctest.Check, grpctest.Watch} {
			t.Run(name+"/"+method, func(t *testing.T) {
				n := start(t, deck(grpctest.ServeHealth(t)))
				first := grpctest.Call(t, n.URL(), method)
				if first.Code != codes.OK || !slices.Equal(first.Header["x-ratelimit-remaining"], []string{"0"}) {
					t.Fatalf("the first call: %+v; want it admitted with our headers", first)
				}
				for _, option := range []grpc.CallOption{grpc.EmptyCallOption{}, grpc.CallContentSubtype("proto")} {
					got := grpctest.Call(t, n.URL(), method, option)
					if got.Code != codes.ResourceExhausted || got.Message != message {
						t.Errorf("%v %q, want ResourceExhausted with error_message", got.Code, got.Message)
					}
					for _, name := range []string{"retry-after", "x-ratelimit-limit", "ratelimit-policy"} {
						if len(got.Metadata[name]) != 1 {
							t.Errorf("metadata %v, want %s once", got.Metadata, name)
						}
					}
				}
			})
		}
	}
}

func TestOnlyGRPCCallsAreDeniedAsGRPC(t *testing.T) {
	t.Parallel()
	const global = `{global: {limits: [
		{name: all, scope: global, limit: 1, window_size: 31536000, algorithm: fixed_window}]}}`
	n := start(t, grpcDeck(grpctest.ServeHealth(t), "", global))
	grpctest.Post(t, n.URL(), "rest.test", "text/plain") // spends the limit
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
		a, _ := grpctest.Post(t, n.URL(), test.host, test.contentType)
		if a.StatusCode != test.status || a.Header.Get("Content-Type") != test.answer {
			t.Errorf("%s to %s: %d %v, want %d in %s",
				test.contentType, test.host, a.StatusCode, a.Header, test.status, test.answer)
		}
	}
}
