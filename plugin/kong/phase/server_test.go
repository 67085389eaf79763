package phase

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const byConsumer = `{"observe_endpoint":false,"tenant_from":["consumer.custom_id"],
	"tier_from":["consumer.tag.tier"],"tiers":[
	{"name":"essentials","limits":[{"name":"burst","scope":"tenant","limit":5,"window_size":1}]},
	{"name":"enterprise","limits":[{"name":"burst","scope":"tenant","limit":50,"window_size":1}]}]}`

func TestAConsumerConfigAsksOnlyForTheConsumerInOneWriteAndAnswersInOne(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	id := k.StartInstance(17, byConsumer)
	before := h.writes()
	require.NoError(t, k.Event(id))
	assert.Equal(t, []string{"kong.client.get_consumer"}, k.Questions, "questions")
	got := h.writes() - before
	assert.True(t, got == 2, "%d writes, want 2: the question; headers, end and return together", got)
	if k.Headers["X-RateLimit-Limit"] != "50" || k.Headers["X-RateLimit-Remaining"] != "7" {
		t.Errorf("headers %v, want those of tier enterprise", k.Headers)
	}
}

func TestAllQuestionsOfARequestLeaveInOneWrite(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "jwt")
	id := k.StartInstance(1, `{"tenant_from":["consumer.custom_id"],"user_from":["jwt.sub","header.X-User-Id"],
		"trusted_headers":["X-User-Id"],"tiers":[{"name":"a","limits":[
		{"name":"u","scope":"user+endpoint","endpoint":"GET /jwt/*","limit":5,"window_size":1},
		{"name":"c","scope":"credential","limit":5,"window_size":1}]}]}`)
	before := h.writes()
	require.NoError(t, k.Event(id))
	want := []string{
		"kong.client.get_consumer",
		"kong.client.get_credential",
		"kong.nginx.get_var=request",
		"kong.router.get_route",
		"kong.ctx.shared.get=authenticated_jwt_token",
		"kong.nginx.get_var=http_x_user_id",
	}
	assert.Equal(t, want, k.Questions, "questions")
	got := h.writes() - before
	assert.True(t, got == 2, "%d writes for %d questions, want 2", got, len(k.Questions))
}

func TestTheModelOfARequestIsAskedInTheSameWrite(t *testing.T) {
	var model, provider string
	h := serve(t, admitAll, func(o *Options) {
		build := o.Build
		o.Build = func(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
			decider, release, err := build(config, plan)
			decider.Observers = []admit.Observer{observerFunc(func(d *decision.Decision) {
				model, provider = d.Identity.Model, d.Identity.Provider
			})}
			return decider, release, err
		}
	})
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	k.Answers["kong.nginx.get_var=http_x_model"] = kongtest.Encode(t, &kongtest.String{V: "claude"})
	id := k.StartInstance(1, `{"observe_endpoint":false,"trusted_headers":["X-Model"],
		"llm":{"request_model":"header.X-Model","request_provider":"shared.llm_provider"},"tiers":[{"name":"a","limits":[
		{"name":"l","scope":"tenant","limit":5,"window_size":1,"match":{"model":"gpt-4o*"},
		"settle":{"sources":[{"from":"shared.n"}]}}]}]}`)
	for _, test := range []struct {
		shared *structpb.Value
		want   string
	}{
		{structpb.NewStringValue("open, ai"), "open, ai"}, {structpb.NewNullValue(), ""}, {structpb.NewNumberValue(7), ""},
	} {
		k.Answers["kong.ctx.shared.get=llm_provider"] = kongtest.Encode(t, test.shared)
		before := h.writes()
		require.NoError(t, k.Event(id))
		assert.Equal(t, []string{
			"kong.client.get_consumer", "kong.nginx.get_var=http_x_model", "kong.ctx.shared.get=llm_provider",
		}, k.Questions)
		assert.Equal(t, [2]string{"claude", test.want}, [2]string{model, provider})
		assert.EqualValues(t, 2, h.writes()-before, "writes")
		assert.Nil(t, k.Headers, "the limit is for another model")
	}
}

func TestAConfigWithoutLimitsAsksNothing(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	id := k.StartInstance(1, `{"observe_endpoint":false,"tiers":[{"name":"internal"}]}`)
	before := h.writes()
	require.NoError(t, k.Event(id))
	if len(k.Questions) != 0 || k.Headers != nil || h.writes()-before != 1 {
		t.Errorf("questions %q, headers %v, %d writes; want only the end",
			k.Questions, k.Headers, h.writes()-before)
	}
}

func TestARouteScopedInstanceAsksForItsRouteOnce(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	config := `{"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant+endpoint","limit":5,"window_size":1}]}]`
	scoped, global := k.StartInstance(1, config+`,"route_id":"r1"}`), k.StartInstance(2, config+`}`)
	for i, want := range []struct {
		id   int32
		asks bool
	}{{scoped, true}, {scoped, false}, {scoped, false}, {global, true}, {global, true}} {
		require.NoError(t, k.Event(want.id))
		if got := slices.Contains(k.Questions, "kong.router.get_route"); got != want.asks {
			t.Errorf("event %d: questions %q, for the route %t, want %t", i, k.Questions, got, want.asks)
		}
	}
}

func TestTheAddressIsAskedOnlyWhenTheTenantIsMissing(t *testing.T) {
	h := serve(t, admitAll, nil)
	k := h.dial()
	id := k.StartInstance(1, byConsumer)
	k.Answers = kongtest.AnswersOf(t, "no-auth")
	require.NoError(t, k.Event(id))
	assert.Equal(t, []string{"kong.client.get_consumer", "kong.client.get_forwarded_ip"}, k.Questions, "questions")
}

func TestADenialExitsAndTheDroppedConnectionIsNotLogged(t *testing.T) {
	h := serve(t, denyAll, nil)
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "key-auth")
	id := k.StartInstance(1, byConsumer)
	require.NoError(t, k.Event(id))
	if k.Exit == nil || k.Exit.Status != 429 || k.Exit.Headers.Fields["Retry-After"].GetStringValue() != "3" {
		t.Fatalf("exit %v, want 429 with Retry-After 3", k.Exit)
	}
	require.NoError(t, h.stop())
	assert.NotContains(t, h.log.String(), "closed")
}

func TestATooLongAnswerIsSkippedAndOnInternalErrorAnswers(t *testing.T) {
	for _, mode := range []string{"open", "closed"} {
		h := serve(t, admitAll, nil)
		k := h.dial()
		id := k.StartInstance(1, strings.TrimSuffix(byConsumer, "}")+`,"on_internal_error":"`+mode+`"}`)
		long := &kongtest.Consumer{CustomId: strings.Repeat("x", 5<<20)}
		k.Answers["kong.client.get_consumer"] = kongtest.Encode(t, long)
		require.NoError(t, k.Event(id))
		denied := k.Exit != nil
		assert.True(t, denied == (mode == "closed") && (!denied || k.Exit.Status == 503), "%s: exit %v", mode, k.Exit)
		if mode == "closed" {
			k = h.dial()
		}
		k.Answers = kongtest.AnswersOf(t, "key-auth")
		if err := k.Event(id); err != nil || k.Headers["X-RateLimit-Limit"] != "50" {
			t.Errorf("%s: the next event: %v, headers %v", mode, err, k.Headers)
		}
	}
}

func TestLongAnswersWithinTheBoundAreDecided(t *testing.T) {
	var tenant string
	h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
		tenant = bounds[0].Key.GroupID
		return admitAll(bounds, statuses)
	}, nil)
	k := h.dial()
	id := k.StartInstance(1, byConsumer)
	k.Answers["kong.client.get_consumer"] = kongtest.Encode(t, &kongtest.Consumer{
		CustomId: strings.Repeat("x", 1<<20), Tags: slices.Repeat([]string{"tier:enterprise"}, 10_000),
	})
	require.NoError(t, k.Event(id))
	if k.Headers["X-RateLimit-Limit"] != "50" || !strings.HasPrefix(tenant, "sha256:") {
		t.Errorf("headers %v, tenant %.20q; want the tier and a hashed tenant", k.Headers, tenant)
	}
}

func TestAnIdentityThatIsNotUTF8IsCountedUnchanged(t *testing.T) {
	var tenant string
	h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
		tenant = bounds[0].Key.GroupID
		return admitAll(bounds, statuses)
	}, nil)
	k := h.dial()
	id := k.StartInstance(1, `{"tenant_from":["header.X-Org"],"trusted_headers":["x-org"],
		"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":5,"window_size":1}]}]}`)
	k.Answers["kong.nginx.get_var=http_x_org"] = []byte("\x0a\x04\xff\x00:}")
	require.NoError(t, k.Event(id))
	assert.Equal(t, "\xff\x00:}", tenant, "tenant")
}

func TestATrustedHeaderWithMoreThanOneValueIsDenied(t *testing.T) {
	const limits = `"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":5,"window_size":1}]}]}`
	for name, test := range map[string]struct{ config, variable, header string }{
		"the tenant's": {
			`{"tenant_from":["consumer.id","header.x-org"],"trusted_headers":["X-Org"],` + limits,
			"http_x_org", "X-Org",
		},
		"the user's": {
			`{"tenant_from":["header.X-Org"],"user_from":["header.X-User_Id"],"trusted_headers":["X-Org","X-User_Id"],
			"tiers":[{"name":"a","limits":[{"name":"l","scope":"user","limit":5,"window_size":1}]}]}`,
			"http_x_user_id", "X-User_id",
		},
		"the tier's": {
			`{"tier_from":["header.X-Tier"],"trusted_headers":["X-Tier"],"tiers":[{"name":"b"},` +
				strings.TrimPrefix(limits, `"tiers":[`),
			"http_x_tier", "X-Tier",
		},
		"the cost's": {`{"cost_header":"X-Cost","trusted_headers":["X-Cost"],` + limits, "http_x_cost", "X-Cost"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, value := range []string{"evil, real", "a,b", ", 7", "7, "} {
				takes := 0
				h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
					takes++
					return admitAll(bounds, statuses)
				}, nil)
				k := h.dial()
				k.Answers = kongtest.AnswersOf(t, "key-auth")
				for _, variable := range []string{"http_x_org", "http_x_user_id", "http_x_tier", "http_x_cost"} {
					k.Answers["kong.nginx.get_var="+variable] = kongtest.Encode(t, &kongtest.String{V: "7"})
				}
				k.Answers["kong.nginx.get_var="+test.variable] = kongtest.Encode(t, &kongtest.String{V: value})
				require.NoError(t, k.Event(k.StartInstance(1, test.config)))
				if takes != 0 || k.Exit == nil || k.Exit.Status != 400 ||
					!strings.Contains(string(k.Exit.Body), "The header "+test.header+" must be sent once") {
					t.Errorf("%q: %d takes, exit %v; want 400 that names %s", value, takes, k.Exit, test.header)
				}
			}
		})
	}
}

func TestAPanicIsAnsweredByOnInternalErrorAndLoggedOnce(t *testing.T) {
	h := serve(t, func([]policy.Bound, []decision.Status) error { panic("a bug") }, nil)
	for _, mode := range []string{"open", "closed"} {
		k := h.dial()
		k.Answers = kongtest.AnswersOf(t, "key-auth")
		id := k.StartInstance(1, strings.TrimSuffix(byConsumer, "}")+`,"on_internal_error":"`+mode+`"}`)
		for range 3 {
			require.NoError(t, k.Event(id))
			require.Equal(t, mode == "closed", k.Exit != nil, "%s: exit %v", mode, k.Exit)
			if k.Exit != nil {
				k = h.dial()
				k.Answers = kongtest.AnswersOf(t, "key-auth")
			}
		}
	}
	assert.EqualValues(t, 6, h.Counters().Panics, "panics counted")
	if line := h.log.Await(t, "panicked"); !strings.Contains(line, "server_test.go") {
		t.Errorf("the log line has no stack: %s", line)
	}
	assert.Equal(t, 1, h.log.Count("an event panicked"), "lines of the log")
}
