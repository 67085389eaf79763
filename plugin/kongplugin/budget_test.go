package kongplugin

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// fourLimits is a config as most are: limits of the tenant, of each endpoint and of each user of it, and one of all
// tenants; the consumer says who it is, all headers are on. endpoint and scope are more fields.
func fourLimits(endpoint, scope string) string {
	return fmt.Sprintf(`{"tenant_from":["consumer.custom_id"],"user_from":["consumer.id"],"kong_headers":true,"tiers":[{"name":"a","limits":[
		{"name":"burst","scope":"tenant","limit":1000000000,"window_size":1},
		{"name":"each","scope":"tenant+endpoint","limit":1000000000,"window_size":60%s},
		{"name":"user","scope":"user","limit":1000000000,"window_size":1},
		{"name":"all","scope":"global","limit":1000000000,"window_size":1}]}]%s}`, endpoint, scope)
}

const routeScoped = `,"route_id":"2e5a1d3e-55c4-4d1c-8a3c-0d4b5d1f3f59"`

func clock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// whole builds paths of all that stands behind the socket: buckets in memory, and metrics.
func whole(config schema.Config, snapshot *policy.Snapshot) (*admit.Path, func(), error) {
	path := &admit.Path{
		Now: clock, Elapsed: clock, Buckets: memstore.New(memstore.Options{Now: clock}),
		Renderer: response.New(config, nil), Observers: []admit.Observer{metrics.New("1", metrics.Sources{})},
	}
	path.Policies.Store(snapshot)
	return path, nil, nil
}

func serveWhole(t testing.TB) *harness {
	t.Helper()
	return serve(t, nil, func(o *Options) { o.Build = whole })
}

func TestTheCommonConfigCostsOneQuestionAndOneSetHeaders(t *testing.T) {
	for name, config := range map[string]string{
		"route-scoped":      fourLimits("", routeScoped),
		"consumer's limits": strings.Replace(fourLimits("", ""), "tenant+endpoint", "tenant", 1),
	} {
		h := serveWhole(t)
		k := h.dial()
		k.answers = answersOf(t, "key-auth")
		id := k.startInstance(1, config)
		if err := k.event(id); err != nil { // the instance learns its route
			t.Fatal(err)
		}
		questions, writes := h.Counters().Questions.Load(), h.writes()
		if err := k.event(id); err != nil {
			t.Fatal(err)
		}
		if want := []string{"kong.client.get_consumer"}; !slices.Equal(k.asked, want) || h.Counters().Questions.Load()-questions != 1 {
			t.Errorf("%s: asked %q, want %q", name, k.asked, want)
		}
		if got := h.writes() - writes; got != 2 {
			t.Errorf("%s: %d writes, want 2: the question; headers, end and return together", name, got)
		}
		if n := strings.Count(k.headers["RateLimit-Policy"], ";q="); n != 3 || k.headers["RateLimit-Reset"] == "" {
			t.Errorf("%s: headers %v, want all headers of the tenant's three limits", name, k.headers)
		}
	}
}

func TestARouteScopedConfigNamesItsEndpointAndAsksForItOnce(t *testing.T) {
	var endpoints []string
	h := serve(t, nil, func(o *Options) {
		o.Build = func(config schema.Config, snapshot *policy.Snapshot) (*admit.Path, func(), error) {
			path := &admit.Path{Buckets: bucketsFunc(plenty), Renderer: response.New(config, nil)}
			path.Observers = []admit.Observer{observerFunc(func(d *decision.Decision) { endpoints = append(endpoints, d.Resolution.Endpoint) })}
			path.Policies.Store(snapshot)
			return path, nil, nil
		}
	})
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	id := k.startInstance(1, strings.TrimSuffix(byConsumer, "}")+routeScoped+"}") // no limit is per endpoint
	for _, want := range [][]string{{"kong.client.get_consumer", "kong.router.get_route"}, {"kong.client.get_consumer"}} {
		writes := h.writes()
		if err := k.event(id); err != nil {
			t.Fatal(err)
		}
		if got := h.writes() - writes; !slices.Equal(k.asked, want) || got != 2 {
			t.Errorf("asked %q in %d writes, want %q, all in one beside the answer's", k.asked, got, want)
		}
	}
	if want := []string{"authed", "authed"}; !slices.Equal(endpoints, want) {
		t.Errorf("endpoints %q, want %q", endpoints, want)
	}
}

func TestAPatternCostsOneQuestionForMethodAndPathInTheSameWrite(t *testing.T) {
	h := serveWhole(t)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	k.answers["kong.nginx.get_var=request"] = encode(t, &pb.String{V: "GET /records/7?x=1 HTTP/1.1"})
	id := k.startInstance(1, fourLimits(`,"endpoint":"GET /records/{id}"`, ""))
	writes := h.writes()
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if want := []string{"kong.client.get_consumer", "kong.nginx.get_var=request"}; !slices.Equal(k.asked, want) {
		t.Errorf("asked %q, want %q", k.asked, want)
	}
	if got := h.writes() - writes; got != 2 {
		t.Errorf("%d writes, want 2: both questions; headers, end and return together", got)
	}
	if !strings.Contains(k.headers["RateLimit-Policy"], `"each"`) {
		t.Errorf("headers %v: the pattern did not match", k.headers)
	}
}

func TestADenialAsksNoMoreThanItTakesToKnowAGRPCCall(t *testing.T) {
	const (
		getRoute, getLine, getType = "kong.router.get_route", "kong.nginx.get_var=request", "kong.request.get_header=content-type"
		rest, grpc                 = "http", "grpc"
	)
	h := serve(t, nothing, nil)
	for name, test := range map[string]struct {
		scope, protocol, line string
		first, later          []string // beside identity's
		call                  bool
	}{
		"a route for REST":           {routeScoped, rest, "POST /x HTTP/2.0", []string{getRoute}, nil, false},
		"a route for gRPC":           {routeScoped, grpc, "POST /x HTTP/2.0", []string{getRoute, getLine, getType}, []string{getLine, getType}, true},
		"a route for gRPC over TLS":  {routeScoped, "grpcs", "POST /x HTTP/2.0", []string{getRoute, getLine, getType}, []string{getLine, getType}, true},
		"a route for gRPC, HTTP/1.1": {routeScoped, grpc, "POST /x HTTP/1.1", []string{getRoute, getLine}, []string{getLine}, false},
		"a route for gRPC, GET":      {routeScoped, grpc, "GET /x HTTP/2.0", []string{getRoute, getLine}, []string{getLine}, false},
		"any route, one for REST":    {"", rest, "POST /x HTTP/2.0", []string{getRoute}, []string{getRoute}, false},
		"any route, one for gRPC":    {"", grpc, "POST /x HTTP/2.0", []string{getRoute, getLine, getType}, []string{getRoute, getLine, getType}, true},
		"any route, one for both":    {"", "http,grpc", "POST /x HTTP/2.0", []string{getRoute, getLine, getType}, []string{getRoute, getLine, getType}, true},
	} {
		t.Run(name, func(t *testing.T) {
			answers := answersOf(t, "key-auth")
			answers[getRoute] = encode(t, &pb.Route{Id: "r", Name: "calls", Protocols: strings.Split(test.protocol, ",")})
			answers[getLine] = encode(t, &pb.String{V: test.line})
			answers[getType] = encode(t, &pb.String{V: "application/grpc+proto"})
			config := strings.TrimSuffix(byConsumer, "}") + test.scope + "}"
			k := h.dial()
			id := k.startInstance(1, config)
			for _, want := range [][]string{test.first, test.later} {
				k = h.dial() // an exit has closed the last one
				k.answers = answers
				if err := k.event(id); err != nil {
					t.Fatal(err)
				}
				if got := k.asked[1:]; !slices.Equal(got, want) {
					t.Errorf("asked %q beside the consumer, want %q", got, want)
				}
				status, isCall := k.exit.Status, k.exit.Headers.GetFields()["grpc-status"].GetStringValue() == "8"
				if isCall != test.call || (status == 200) != test.call {
					t.Errorf("exit %v; want one for gRPC: %v", k.exit, test.call)
				}
			}
		})
	}
}

func TestAnEventAllocatesNothingInSteadyState(t *testing.T) {
	for name, scope := range map[string]string{"route-scoped": routeScoped, "global": ""} {
		t.Run(name, func(t *testing.T) { allocatesNothing(t, fourLimits("", scope)) })
	}
}

func allocatesNothing(t *testing.T, config string) {
	h := serveWhole(t)
	k := h.dial()
	k.answers = commonAnswers()
	id := k.startInstance(1, config)
	var consumers [8][]byte
	for i := range consumers {
		consumers[i] = encode(t, &pb.Consumer{Id: fmt.Sprintf("b32379d9-3d28-5683-a79c-72139be6e34%d", i), Username: fmt.Sprint("alice", i), CustomId: fmt.Sprint("org-", i)})
	}
	i := 0
	next := func() {
		i++
		k.answers["kong.client.get_consumer"] = consumers[i%len(consumers)]
		if err := k.fastEvent(id); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		next()
	}
	if got := testing.AllocsPerRun(2000, next); got != 0 {
		t.Errorf("%v allocations for an event, from the call to its return; want 0", got)
	}
	if got := h.Counters().Undecided.Load(); got != 0 {
		t.Errorf("%d events were not decided", got)
	}
}

func TestConnectionsOfAnyKindAreServed(t *testing.T) {
	h := serveOn(t, plenty, nil, func(l net.Listener) net.Listener { return otherListener{l} })
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	id := k.startInstance(1, byConsumer)
	writes := h.writes()
	for range 3 {
		if err := k.event(id); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
			t.Fatalf("%v, headers %v", err, k.headers)
		}
	}
	if got := h.writes() - writes; got != 6 {
		t.Errorf("%d writes for 3 events, want 6", got)
	}
	if err := h.stop(); err != nil {
		t.Error(err)
	}
}
