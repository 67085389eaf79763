package phase

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// fourLimits returns a usual config: limits per tenant, endpoint and user, and one for all tenants. The consumer names
// the tenant, and all headers are on. endpoint and scope are more fields.
func fourLimits(endpoint, scope string) string {
	return fmt.Sprintf(`{"tenant_from":["consumer.custom_id"],"user_from":["consumer.id"],"kong_headers":true,
		"tiers":[{"name":"a","limits":[
		{"name":"burst","scope":"tenant","limit":1000000000,"window_size":1},
		{"name":"each","scope":"tenant+endpoint","limit":1000000000,"window_size":60%s},
		{"name":"user","scope":"user","limit":1000000000,"window_size":1},
		{"name":"all","scope":"global","limit":1000000000,"window_size":1}]}]%s}`, endpoint, scope)
}

const getConsumer, getRoute = "kong.client.get_consumer", "kong.router.get_route"

const routeScoped = `,"route_id":"2e5a1d3e-55c4-4d1c-8a3c-0d4b5d1f3f59"`

// clock returns the time of day.
func clock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// buildComplete builds deciders with buckets in memory and metrics.
func buildComplete(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
	decider := &admit.Decider{
		Now: clock, Elapsed: clock, Buckets: memory.New(memory.Options{Now: clock}),
		Renderer: response.New(config, nil), Observers: []admit.Observer{metrics.New("1", metrics.Sources{})},
	}
	decider.Policies.Store(plan)
	return decider, nil, nil
}

// serveComplete serves the deciders of buildComplete.
func serveComplete(t testing.TB) *harness {
	t.Helper()
	return serve(t, nil, func(o *Options) { o.Build = buildComplete })
}

func TestUsageCostsTwoQuestionsInOneWriteAndOneExit(t *testing.T) {
	h := serve(t, nil, func(o *Options) {
		o.Build = func(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
			decider, release, err := buildComplete(config, plan)
			if err == nil {
				decider.Usage, err = admit.NewUsageReader(decider.Buckets.(*memory.Store), "default", decider.Buckets, clock)
			}
			return decider, release, err
		}
	})
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	config := strings.Replace(fourLimits("", routeScoped), "{", `{"usage_only":true,"log_decisions":true,`, 1)
	id := k.StartInstance(1, config)
	writes := h.writes()
	require.NoError(t, k.Event(id))
	want := []string{getConsumer, "kong.nginx.get_var=request"}
	if !slices.Equal(k.Questions, want) || h.writes()-writes != 2 {
		t.Errorf("questions %q in %d writes, want %q in one, and one for the exit", k.Questions, h.writes()-writes, want)
	}
	if k.Exit == nil || k.Exit.Status != 200 || !strings.Contains(string(k.Exit.Body), `"name":"burst"`) ||
		strings.Contains(string(k.Exit.Body), `"name":"all"`) || k.Headers != nil {
		t.Errorf("exit %v, headers %v; want the usage of the tenant's own limits", k.Exit, k.Headers)
	}
}

func TestTheCommonConfigCostsOneQuestionAndOneSetHeaders(t *testing.T) {
	for name, config := range map[string]string{
		"route-scoped":      fourLimits("", routeScoped),
		"consumer's limits": strings.Replace(fourLimits("", `,"observe_endpoint":false`), "tenant+endpoint", "tenant", 1),
	} {
		h := serveComplete(t)
		k := h.dial()
		k.Answers = kongtest.AnswersOf(t, "key-auth")
		id := k.StartInstance(1, config)
		require.NoError(t, k.Event(id)) // the instance keeps its route
		questions, writes := h.questions(), h.writes()
		require.NoError(t, k.Event(id))
		if want := []string{"kong.client.get_consumer"}; !slices.Equal(k.Questions, want) || h.questions()-questions != 1 {
			t.Errorf("%s: questions %q, want %q", name, k.Questions, want)
		}
		got := h.writes() - writes
		assert.True(t, got == 2, "%s: %d writes, want 2: the question; headers, end and return together", name, got)
		if n := strings.Count(k.Headers["RateLimit-Policy"], ";q="); n != 3 || k.Headers["RateLimit-Reset"] == "" {
			t.Errorf("%s: headers %v, want all headers of the tenant's three limits", name, k.Headers)
		}
	}
}

// observing is byConsumer with the default of observe_endpoint: metrics and denial records need endpoints, limits do
// not.
var observing = strings.Replace(byConsumer, `"observe_endpoint":false,`, "", 1)

// serveEndpoints serves configs and returns the endpoints of their requests.
func serveEndpoints(t *testing.T) (*harness, *[]string) {
	t.Helper()
	endpoints := new([]string)
	h := serve(t, nil, func(o *Options) {
		o.Build = func(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
			decider := &admit.Decider{Buckets: bucketsFunc(admitAll), Renderer: response.New(config, nil)}
			decider.Observers = []admit.Observer{
				observerFunc(func(d *decision.Decision) { *endpoints = append(*endpoints, d.Resolution.Endpoint) }),
			}
			decider.Policies.Store(plan)
			return decider, nil, nil
		}
	})
	return h, endpoints
}

// An endpoint costs one question and no write.
func TestTheEndpointIsNamedForLimitsOfEveryScope(t *testing.T) {
	for name, test := range map[string]struct {
		config       string
		first, later []string
		endpoint     string
	}{
		"with a route": {
			strings.TrimSuffix(observing, "}") + routeScoped + "}",
			[]string{getConsumer, getRoute},
			[]string{getConsumer},
			"authed",
		},
		"with a route and no other question": {
			`{"global":{"limits":[{"name":"all","scope":"global","limit":9,"window_size":1}]}` + routeScoped + "}",
			[]string{getRoute},
			nil, "authed",
		},
		"global":        {observing, []string{getConsumer, getRoute}, []string{getConsumer, getRoute}, "authed"},
		"that opts out": {byConsumer, []string{getConsumer}, []string{getConsumer}, ""},
		"with a route that opts out": {
			strings.TrimSuffix(byConsumer, "}") + routeScoped + "}",
			[]string{getConsumer},
			[]string{getConsumer},
			"",
		},
	} {
		t.Run("a config "+name, func(t *testing.T) {
			h, endpoints := serveEndpoints(t)
			k := h.dial()
			k.Answers = kongtest.AnswersOf(t, "key-auth")
			id := k.StartInstance(1, test.config)
			for _, want := range [][]string{test.first, test.later} {
				writes := h.writes()
				require.NoError(t, k.Event(id))
				got, wantWrites := h.writes()-writes, uint64(1+min(len(want), 1)) // the answer is a write
				if !slices.Equal(k.Questions, want) || got != wantWrites {
					t.Errorf("questions %q in %d writes, want %q in %d", k.Questions, got, want, wantWrites)
				}
			}
			assert.Equal(t, []string{test.endpoint, test.endpoint}, *endpoints, "endpoints")
		})
	}
}

func TestARouteWithoutANameIsItsID(t *testing.T) {
	h, endpoints := serveEndpoints(t)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	k.Answers["kong.router.get_route"] = kongtest.Encode(t, &kongtest.Route{Id: "2e5a1d3e", Protocols: []string{"http"}})
	require.NoError(t, k.Event(k.StartInstance(1, observing)))
	assert.Equal(t, []string{"2e5a1d3e"}, *endpoints, "endpoints")
}

// Kong does not start an instance anew when its route gets another name.
func TestARenamedRouteGetsItsNewNameWithinAMinute(t *testing.T) {
	in, fresh := &instance{routeScoped: true}, routeFresh
	named := func(now time.Duration) string {
		var req identity.Request
		if !in.fillRoute(&req, now) {
			return "ask"
		}
		return req.Route
	}
	assert.Equal(t, "ask", named(0), "before Kong has answered")
	in.keepRoute(&identity.Request{Route: "old"}, 0)
	if first, last, then := named(0), named(fresh-1), named(fresh); first != "old" || last != "old" || then != "ask" {
		t.Errorf("%q, %q, and then %q; want the old name for a minute", first, last, then)
	}
	in.keepRoute(&identity.Request{}, fresh) // an answer without a route
	in.keepRoute(&identity.Request{Route: "new"}, fresh)
	assert.Equal(t, "new", named(fresh), "after the minute, want the new name")
}

func TestAPatternCostsOneQuestionForMethodAndPathInTheSameWrite(t *testing.T) {
	h := serveComplete(t)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	k.Answers["kong.nginx.get_var=request"] = kongtest.Encode(t, &kongtest.String{V: "GET /records/7?x=1 HTTP/1.1"})
	id := k.StartInstance(1, fourLimits(`,"endpoint":"GET /records/{id}"`, `,"observe_endpoint":false`))
	writes := h.writes()
	require.NoError(t, k.Event(id))
	assert.Equal(t, []string{"kong.client.get_consumer", "kong.nginx.get_var=request"}, k.Questions, "questions")
	got := h.writes() - writes
	assert.True(t, got == 2, "%d writes, want 2: both questions; headers, end and return together", got)
	if !strings.Contains(k.Headers["RateLimit-Policy"], `"each"`) {
		t.Errorf("headers %v: the pattern did not match", k.Headers)
	}
}

func TestADenialAsksOnlyWhatIdentifiesAGRPCCall(t *testing.T) {
	const (
		getLine, getType = "kong.nginx.get_var=request", "kong.request.get_header=content-type"
		plain, grpc      = "http", "grpc"
	)
	h := serve(t, denyAll, nil)
	all, call := []string{getRoute, getLine, getType}, []string{getLine, getType}
	for name, test := range map[string]struct {
		scope, protocol, line string
		first, later          []string // without the question for the consumer
		call                  bool
	}{
		"a route for REST":           {routeScoped, plain, "POST /x HTTP/2.0", []string{getRoute}, nil, false},
		"a route for gRPC":           {routeScoped, grpc, "POST /x HTTP/2.0", all, call, true},
		"a route for gRPC over TLS":  {routeScoped, "grpcs", "POST /x HTTP/2.0", all, call, true},
		"a route for gRPC, HTTP/1.1": {routeScoped, grpc, "POST /x HTTP/1.1", all, call, false},
		"a route for gRPC, GET":      {routeScoped, grpc, "GET /x HTTP/2.0", all, call, false},
		"any route, one for REST":    {"", plain, "POST /x HTTP/2.0", []string{getRoute}, []string{getRoute}, false},
		"any route, one for gRPC":    {"", grpc, "POST /x HTTP/2.0", all, all, true},
		"any route, one for both":    {"", "http,grpc", "POST /x HTTP/2.0", all, all, true},
	} {
		t.Run(name, func(t *testing.T) {
			answers := kongtest.AnswersOf(t, "key-auth")
			route := &kongtest.Route{Id: "r", Name: "calls", Protocols: strings.Split(test.protocol, ",")}
			answers[getRoute] = kongtest.Encode(t, route)
			answers[getLine] = kongtest.Encode(t, &kongtest.String{V: test.line})
			answers[getType] = kongtest.Encode(t, &kongtest.String{V: "application/grpc+proto"})
			config := strings.TrimSuffix(byConsumer, "}") + test.scope + "}"
			k := h.dial()
			id := k.StartInstance(1, config)
			for _, want := range [][]string{test.first, test.later} {
				k = h.dial() // an exit has closed the last one
				k.Answers = answers
				writes := h.writes()
				require.NoError(t, k.Event(id))
				if got := k.Questions[1:]; !slices.Equal(got, want) {
					t.Errorf("questions %q besides the consumer, want %q", got, want)
				}
				rounds := uint64(2) // the consumer, and the exit
				for _, asked := range []string{getRoute, getType} {
					if slices.Contains(want, asked) {
						rounds++
					}
				}
				if got := h.writes() - writes; got != rounds {
					t.Errorf("%d writes for the questions %q, want %d", got, k.Questions, rounds)
				}
				status, isCall := k.Exit.Status, k.Exit.Headers.GetFields()["grpc-status"].GetStringValue() == "8"
				if isCall != test.call || (status == 200) != test.call {
					t.Errorf("exit %v; want one for gRPC: %v", k.Exit, test.call)
				}
			}
		})
	}
}

func TestADenialAsksForItsRequestIDInOneWriteWithOtherFacts(t *testing.T) {
	const getID = "kong.nginx.get_var=kong_request_id"
	var ids []string
	h := serve(t, denyAll, func(o *Options) {
		build := o.Build
		o.Build = func(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
			decider, release, err := build(config, plan)
			if config.DenialRequestID {
				decider.AtDenial = identity.RequestIDFact
			}
			keepID := func(d *decision.Decision) { ids = append(ids, d.RequestID) }
			decider.Observers = []admit.Observer{observerFunc(keepID)}
			return decider, release, err
		}
	})
	for _, test := range []struct {
		config    string
		questions []string
		writes    uint64
	}{
		{strings.Replace(byConsumer, "{", `{"denial_request_id":false,`, 1), []string{getConsumer, getRoute}, 3},
		{byConsumer, []string{getConsumer, getRoute, getID}, 3},
		{observing, []string{getConsumer, getRoute, getID}, 3},
	} {
		k := h.dial()
		k.Answers = kongtest.AnswersOf(t, "key-auth")
		id := k.StartInstance(1, test.config)
		writes := h.writes()
		require.NoError(t, k.Event(id))
		if got := h.writes() - writes; !slices.Equal(k.Questions, test.questions) || got != test.writes {
			t.Errorf("questions %q in %d writes, want %q in %d, with the exit",
				k.Questions, got, test.questions, test.writes)
		}
	}
	const recorded = "90607d37e0161b1fe197673e0ef8b45b"
	want := []string{"", recorded, recorded}
	assert.True(t, slices.Equal(ids, want), "the requests are %q, want %q as Kong has answered", ids, want)
}

func TestAnEventAllocatesNothingInSteadyState(t *testing.T) {
	for name, scope := range map[string]string{"route-scoped": routeScoped, "global": ""} {
		t.Run(name, func(t *testing.T) {
			s, m := serveMemory(t, fourLimits("", scope))
			route, event := kongtest.Frame(commonAnswers()[getRoute]), kongtest.EventCall(t, 1)
			var answers [8][][]byte // of consumers in turn
			for i := range answers {
				consumer := &kongtest.Consumer{Id: fmt.Sprint("id-", i), CustomId: fmt.Sprint("org-", i)}
				answers[i] = [][]byte{append(kongtest.Frame(kongtest.Encode(t, consumer)), route...)}
			}
			if scope != "" {
				m.Run(event, answers[0]...) // the instance gets its route
				for i := range answers {
					answers[i][0] = bytes.TrimSuffix(answers[i][0], route)
				}
			}
			i := 0
			next := func() {
				i++
				if got := m.Run(event, answers[i%len(answers)]...); !bytes.Contains(got, []byte("kong.response.set_headers")) {
					t.Errorf("the server has written %q, want headers", got)
				}
			}
			for range 100 {
				next()
			}
			if got := testing.AllocsPerRun(2000, next); got != 0 {
				t.Errorf("%v allocations for an event, from the call to its return; want 0", got)
			}
			if got := s.Counters().Failures; got != 0 {
				t.Errorf("%d events were not decided", got)
			}
		})
	}
}
