package admit_test

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// callerDeciderOf returns a decider for the requests of callers, under a config in YAML, with buckets and a diary of
// its own.
func callerDeciderOf(t testing.TB, text string) (*admit.Decider, *diary) {
	t.Helper()
	config := policytest.Config(t, text)
	plan, err := resolve.ForCallers(config)
	require.NoError(t, err)
	observed := new(diary)
	decider := &admit.Decider{
		Buckets: newShelf(), Renderer: response.New(config, nil), Observers: []admit.Observer{observed},
		FailClosed: config.OnInternalError == schema.FailClosed,
	}
	decider.Policies.Store(plan)
	return decider, observed
}

// callerOf returns the request of a caller that states what a gateway finds out about a request.
func callerOf(request *identity.Request) *admit.CallerRequest {
	r := &admit.CallerRequest{
		Caller:     identity.Caller{Tenant: request.Consumer.CustomID, User: request.Headers[0]},
		Credential: request.CredentialID, IP: request.IP,
		Method: request.Method, Path: request.Path, ContentType: request.ContentType,
	}
	for _, tag := range request.Consumer.Tags {
		if tier, ok := strings.CutPrefix(tag, "tier:"); ok {
			r.Tier = tier
		}
	}
	return r
}

func TestTheRequestOfACallerIsDecidedAsTheSameRequestThroughAGateway(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := config(
			"%tenant%", rapid.SampledFrom([]string{"limit_by_ip", "deny", "skip"}).Draw(rt, "on_missing_tenant"),
			"%user%", rapid.SampledFrom([]string{"credential", "ip", "skip", "deny"}).Draw(rt, "on_missing_user"),
			"%mode%", rapid.SampledFrom([]string{"enforce", "shadow"}).Draw(rt, "mode"),
			"[X-User-Id]", "[X-User-Id, X-Cost]\ncost_header: X-Cost\ncost_header_max: 1000000000",
		)
		throughGateway, _, byGateway := deciderOf(t, text)
		fromCaller, byCaller := callerDeciderOf(t, text)
		for range rapid.IntRange(1, 8).Draw(rt, "requests") {
			request := someRequest.Draw(rt, "request")
			caller := callerOf(&request)
			caller.Cost = rapid.SampledFrom([]int64{-1, 0, 1, 2, 1_000_000_000, 1 << 62}).Draw(rt, "cost")
			request.Headers = append(request.Headers, strconv.FormatInt(caller.Cost, 10))
			var a, b admit.Exchange
			require.NoError(rt, throughGateway.Admit(context.Background(), &gateway{request: request}, &a))
			require.NoError(rt, fromCaller.Admit(context.Background(), caller, &b))
			got, want := read(&b.Response), read(&a.Response)
			require.True(rt, got == want, "client reads\n%s\nwant\n%s", got, want)
		}
		for i := range *byGateway {
			if (*byCaller)[i] != (*byGateway)[i] {
				rt.Fatalf("decision %d is\n%s\nwant\n%s", i, (*byCaller)[i], (*byGateway)[i])
			}
		}
	})
}

func TestReadingTheRequestOfACallerAllocatesNothing(t *testing.T) {
	decider, _ := callerDeciderOf(t, config())
	decider.Observers = nil
	caller := &admit.CallerRequest{
		Caller: identity.Caller{Tenant: "acme", User: "u", Tier: "paid", Cost: 7},
		IP:     "192.0.2.1", Method: "POST", Path: "/records",
	}
	rules := &decider.Policies.Load().Rules
	var request identity.Request
	if n := testing.AllocsPerRun(100, func() {
		request.Reset()
		require.NoError(t, caller.Read(context.Background(), rules.Required, rules, &request))
	}); n > 0 {
		t.Errorf("%.0f allocations, want none", n)
	}
}

func TestATargetIsAMethodWithAPathOrARoute(t *testing.T) {
	for endpoint, want := range map[string][3]string{
		"POST /records/{id}": {"POST", "/records/{id}", ""},
		"* /":                {"*", "/", ""},
		"/records":           {"", "/records", ""},
		"search route":       {"", "", "search route"},
		"records":            {"", "", "records"},
		"":                   {},
	} {
		method, path, route := admit.Target(endpoint)
		assert.True(t, [3]string{method, path, route} == want, "%q is %q %q %q, want %q", endpoint, method, path, route, want)
	}
}

// parts implements what a decider may have besides buckets, for a decider that decides nothing.
type parts struct {
	admit.Shares
	admit.Reservations
	admit.Candidates
}

func TestADeciderWithOtherBucketsHasEachFieldOfTheFirstOrIsKnownToLackIt(t *testing.T) {
	from, _ := callerDeciderOf(t, config())
	clock, some := func() limit.Micros { return now }, &parts{}
	from.Now, from.Elapsed, from.FailClosed, from.AtDenial = clock, clock, true, identity.IPFact
	from.Meta, from.Usage, from.Shares = &admit.Meta{}, &admit.UsageReader{}, some
	from.Reservations, from.Candidates = some, some
	policies, buckets := new(resolve.Plan), newShelf()
	with := from.With(policies, buckets)
	if with.Policies.Load() != policies || with.Buckets != buckets {
		t.Error("the decider lacks the policies and the buckets that it is given")
	}
	replaced := []string{"Policies", "Buckets"}
	lacking := []string{"Reservations", "Candidates", "Usage"}
	a, b := reflect.ValueOf(from).Elem(), reflect.ValueOf(with).Elem()
	for i := range a.NumField() {
		name, field, got := a.Type().Field(i).Name, a.Field(i), b.Field(i)
		same := field.Kind() == reflect.Func && field.Pointer() == got.Pointer() ||
			field.Kind() != reflect.Func && reflect.DeepEqual(field.Interface(), got.Interface())
		switch {
		case slices.Contains(replaced, name):
		case field.IsZero():
			t.Errorf("%s: set it in this test", name)
		case slices.Contains(lacking, name) != got.IsZero():
			t.Errorf("%s is %v: copy it in With, or name it in this test as lacking", name, got)
		case !got.IsZero() && !same:
			t.Errorf("%s is not the one of the first decider", name)
		}
	}
}
