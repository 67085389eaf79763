package phase

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// usedUp is fourLimits with one request a day for a user.
func usedUp(scope string) string {
	return fmt.Sprintf(`{"tenant_from":["consumer.custom_id"],"user_from":["consumer.id"],"tiers":[{"name":"a","limits":[
		{"name":"burst","scope":"tenant","limit":1000000000,"window_size":1},
		{"name":"each","scope":"tenant+endpoint","limit":1000000000,"window_size":60},
		{"name":"user","scope":"user","limit":1,"window_size":86400},
		{"name":"all","scope":"global","limit":1000000000,"window_size":1}]}]%s}`, scope)
}

// serveMemory serves connections in memory, and starts the instance 1 of a config.
func serveMemory(t *testing.T, config string) (*Server, *kongtest.Memory) {
	t.Helper()
	m := kongtest.NewMemory()
	s := New(Options{Build: buildComplete})
	kongtest.Serve(t, m, s.Serve)
	m.Run(kongtest.StartCall(t, kongtest.WithSeq(1, "p", config)))
	return s, m
}

// commonAnswers returns Kong's answers about a request of fourLimits.
func commonAnswers() map[string][]byte {
	return map[string][]byte{
		getConsumer: []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme"),
		getRoute:    []byte("\x22\x07records"),
	}
}

// Kong ends a connection with each denial, so that a denial has a connection of its own.
func TestADenialAllocatesNothingInSteadyState(t *testing.T) {
	s, m := serveMemory(t, usedUp(routeScoped))
	event := kongtest.EventCall(t, 1)
	consumer := kongtest.Frame(commonAnswers()[getConsumer])
	m.Run(event, append(consumer, kongtest.Frame(commonAnswers()[getRoute])...)) // admitted; the instance gets its route
	answers := [][]byte{consumer}
	deny := func() {
		if got := m.Run(event, answers...); !bytes.Contains(got, []byte("kong.response.exit")) {
			t.Errorf("the server has written %q, want a denial", got)
		}
	}
	for range 100 {
		deny()
	}
	questions := s.Counters().Questions
	if got := testing.AllocsPerRun(2000, deny); got != 0 {
		t.Errorf("%v allocations for a denial, from the connection to its end; want 0", got)
	}
	if got := s.Counters().Questions - questions; got != 2001 { // AllocsPerRun runs it once before
		t.Errorf("%d questions for 2001 denials, want the consumer alone", got)
	}
	if got := s.Counters().Failures; got != 0 {
		t.Errorf("%d events were not decided", got)
	}
}

// TestAnAnswerDoesNotDependOnEarlierRequests compares the answers of sessions that hold the garbage of other requests
// with those of new sessions.
func TestAnAnswerDoesNotDependOnEarlierRequests(t *testing.T) {
	want := serveVaried(t, func(e *wire.Event) { e.Local = nil })
	filled := 0
	got := serveVaried(t, func(e *wire.Event) {
		if s, ok := e.Local.(*session); ok {
			for _, memory := range []any{&s.exchange, &s.headers, &s.req, &s.decoders, &s.questions} {
				fill(reflect.ValueOf(memory).Elem())
			}
			filled++
		}
	})
	var requests []varied
	for instance := range int32(len(variedConfigs)) {
		for text := range variedTexts {
			requests = append(requests, varied{instance + 1, variedTexts[text], text%2 == 1})
		}
	}
	kinds := map[string]bool{}
	for _, i := range rand.Perm(4 * len(requests)) {
		r := requests[i%len(requests)]
		fresh := want(r)
		used := got(r)
		assert.True(t, used == fresh, "request %+v after others:\n%s\nalone:\n%s", r, used, fresh)
		kinds[fresh] = true
	}
	if filled < 3*len(requests) || len(kinds) < 10 {
		t.Errorf("%d sessions were used again, for %d different answers", filled, len(kinds))
	}
}

// varied is a request: text stands for its consumer, its route, its headers and all else that Kong answers about it.
type varied struct {
	instance int32
	text     string
	grpc     bool
}

var variedTexts = []string{
	"", "a", "acme", "alice,bob", "POST /x HTTP/2.0", "GET /records/7 HTTP/1.1", "application/grpc+proto",
	"e30.eyJvcmciOiJhY21lIiwic3ViIjoiYWxpY2UifQ.x",
}

// variedConfigs differ in all that a session holds. A limit of 1 denies.
var variedConfigs = []string{
	`{"observe_endpoint":false,` + tenantAndUser(1000000),
	`{"observe_endpoint":false,` + tenantAndUser(1) + routeScoped,
	`{"tenant_from":["header.X-Org"],"trusted_headers":["X-Org"],"on_missing_tenant":"deny",` + tenantAndUser(1000000),
	`{"tenant_from":["jwt.org"],"user_from":["jwt.sub"],"log_decisions":true,` + tenantAndUser(1),
	`{"mode":"shadow","kong_headers":true,"denial_request_id":true,` + tenantAndUser(1),
	`{"on_config_fault":"closed","tiers":5`,
}

func tenantAndUser(limit int) string {
	return fmt.Sprintf(`"tiers":[{"name":"a","limits":[{"name":"t","scope":"tenant","limit":%d,"window_size":60},
		{"name":"u","scope":"user","limit":%[1]d,"window_size":1}]}]`, limit)
}

// serveVaried serves variedConfigs, and returns what answers a request, on a connection of its own. before runs before
// each event.
func serveVaried(t *testing.T, before func(*wire.Event)) func(varied) string {
	t.Helper()
	build := func(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
		decider := &admit.Decider{Buckets: bucketsFunc(takeAboveOne), Renderer: response.New(config, nil)}
		decider.Policies.Store(plan)
		return decider, nil, nil
	}
	instances := newConfigs(build, slog.New(slog.DiscardHandler), func() time.Duration { return 0 })
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	kongtest.Serve(t, listener, wire.New(wire.Options{Start: func(c wire.Config) wire.Instance {
		in := instances.startInstance(c)
		access := in.Access
		in.Access = func(ctx context.Context, e *wire.Event) error {
			before(e)
			return access(ctx, e)
		}
		return in
	}}).Serve)
	for i, config := range variedConfigs {
		kongtest.Dial(t, socket).StartRaw([]byte(kongtest.WithSeq(i+1, fmt.Sprint("p", i), config+"}")))
	}
	return func(r varied) string {
		k := kongtest.Dial(t, socket)
		defer k.Conn.Close()
		k.Answers = variedAnswers(t, r)
		require.NoError(t, k.Event(r.instance))
		return fmt.Sprint(k.Questions, k.Headers, k.Exit)
	}
}

// takeAboveOne denies what has a limit of 1.
func takeAboveOne(bounds []policy.Bound, statuses []decision.Status) error {
	if len(bounds) > 0 && bounds[0].Policy.Limit.Spec().Quantity == 1 {
		return denyAll(bounds, statuses)
	}
	return admitAll(bounds, statuses)
}

func variedAnswers(t *testing.T, r varied) map[string][]byte {
	t.Helper()
	text := kongtest.Encode(t, &kongtest.String{V: r.text})
	route := &kongtest.Route{Id: "r", Name: r.text, Protocols: []string{"http"}}
	if r.grpc {
		route.Protocols = []string{"grpc"}
	}
	consumer := &kongtest.Consumer{Id: r.text, CustomId: r.text, Tags: []string{"tier:a", r.text}}
	return map[string][]byte{
		getConsumer: kongtest.Encode(t, consumer), getRoute: kongtest.Encode(t, route),
		"kong.nginx.get_var=request": text, "kong.nginx.get_var=http_x_org": text,
		"kong.nginx.get_var=kong_request_id": text, "kong.request.get_header=content-type": text,
		"kong.client.get_forwarded_ip": text, "kong.client.get_credential": text,
		"kong.ctx.shared.get=authenticated_jwt_token": append([]byte{0x1a, byte(len(r.text))}, r.text...),
	}
}

// fill sets all values that v holds to what no request has. Slices get new memory. Pointers and functions stay: they
// refer to what requests share.
func fill(v reflect.Value) {
	v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem() // settable although unexported
	switch {
	case v.Kind() == reflect.String:
		v.SetString("garbage")
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(77)
	case v.CanUint():
		v.SetUint(77)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), v.Cap()+1, v.Cap()+1))
		fallthrough
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}
