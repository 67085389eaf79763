package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	units "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// describe returns an answer as a text: the overall code, then each status with its limit, what remains and the reset.
func describe(answer *rls.RateLimitResponse) string {
	text := answer.GetOverallCode().String()
	for _, s := range answer.GetStatuses() {
		text += "; " + s.GetCode().String()
		if l := s.GetCurrentLimit(); l != nil {
			text += fmt.Sprintf(" %s %d/%s", l.GetName(), l.GetRequestsPerUnit(), l.GetUnit())
			text += fmt.Sprintf(" %d %s", s.GetLimitRemaining(), s.GetDurationUntilReset().AsDuration())
		}
	}
	return text
}

// These calls have the shapes of the integration tests of envoyproxy/ratelimit, with limits of tiers in place of keys.
func TestCallsAreAnsweredAsTheReferenceDoes(t *testing.T) {
	w := newWorld(t, testConfig)
	assert.Equal(t, "OK; OK", describe(w.call(callOf("foo", "hello=world"))), "an unknown domain")
	assert.Equal(t, "OK; OK per-second 50/SECOND 49 1s", describe(w.call(callOf("edge", "tenant=foo plan=second"))))
	for i := range 25 {
		want := fmt.Sprintf("OK; OK per-minute 20/MINUTE %d 40s", 19-i)
		if i >= 20 {
			want = "OVER_LIMIT; OVER_LIMIT per-minute 20/MINUTE 0 40s"
		}
		assert.Equal(t, want, describe(w.call(callOf("edge", "tenant=one plan=minute"))), "call %d", i)
	}
	// Two limits of different windows: where the second denies, the first is not charged.
	for i := range 15 {
		code, left1, left2 := "OK", 19-i, 9-i
		if i >= 10 {
			code, left1, left2 = "OVER_LIMIT", 10, 0
		}
		want := fmt.Sprintf("%s; OK per-minute 20/MINUTE %d 40s; %[1]s per-hour 10/HOUR %[3]d 46m40s", code, left1, left2)
		got := describe(w.call(callOf("edge", "tenant=two plan=minute", "tenant=three plan=hour")))
		assert.Equal(t, want, got, "call %d", i)
	}
	whole := callOf("edge", "tenant=four plan=minute", "tenant=five plan=hour")
	whole.HitsAddend = 4
	assert.Equal(t, "OK; OK per-minute 20/MINUTE 16 40s; OK per-hour 10/HOUR 6 46m40s", describe(w.call(whole)))
}

func TestDescriptorsHaveHitsOfTheirOwnAndZeroAsks(t *testing.T) {
	w := newWorld(t, testConfig)
	for _, c := range []struct{ first, second, want string }{
		{"hits=xxx", "hits=x", "OK; OK per-minute 20/MINUTE 18 40s; OK per-hour 10/HOUR 10 46m40s"},
		{"hits=x", "hits=xxxxxxxxxxx", "OK; OK per-minute 20/MINUTE 18 40s; OK per-hour 10/HOUR 0 46m40s"},
		{"hits=xx", "hits=x", "OVER_LIMIT; OK; OVER_LIMIT per-hour 10/HOUR 0 46m40s"}, // the question denies
	} {
		got := describe(w.call(callOf("edge", "tenant=a plan=minute "+c.first, "tenant=b plan=hour "+c.second)))
		assert.Equal(t, c.want, got)
	}
	exempt := callOf("edge", "tenant=a plan=minute", "tenant=c plan=unknown")
	assert.Equal(t, "OK; OK per-minute 20/MINUTE 17 40s; OK", describe(w.call(exempt)), "the default tier has no limit")
}

func TestEntriesNameUsersAndEndpointsAndABucketIsChargedOnce(t *testing.T) {
	w := newWorld(t, testConfig)
	// Both descriptors name acme: its limit per hour is charged once.
	both := callOf("edge", "tenant=acme plan=hour user=u_1", "tenant=acme plan=hour method=POST path=/records?x=1")
	assert.Equal(t, "OK; OK users 3/UNKNOWN 2 6m40s; OK writes 2/DAY 1 1h46m40s", describe(w.call(both)))
	one := callOf("edge", "tenant=acme plan=hour")
	assert.Equal(t, "OK; OK per-hour 10/HOUR 8 46m40s", describe(w.call(one)))
	w.call(both)
	assert.Equal(t, "OVER_LIMIT; OK users 3/UNKNOWN 1 6m40s; OVER_LIMIT writes 2/DAY 0 1h46m40s", describe(w.call(both)))
	assert.Equal(t, "OK; OK", describe(w.call(callOf("draft", "other=x"))), "nothing is mapped")
	assert.EqualValues(t, 1, testutil.ToFloat64(w.ignored.WithLabelValues(ignoredDescriptor)))
}

func TestADenialHasTheBodyAndHeadersOfThePolicies(t *testing.T) {
	w := newWorld(t, testConfig)
	spent := callOf("edge", "tenant=acme plan=hour", "tenant=beta plan=minute")
	spent.HitsAddend = 11
	answer := w.call(spent)
	headers := map[string]string{}
	for _, h := range answer.GetResponseHeadersToAdd() {
		headers[h.GetKey()] = h.GetValue()
	}
	assert.Contains(t, string(answer.GetRawBody()), `"status":429`)
	assert.Equal(t, "application/problem+json", headers["content-type"])
	assert.Equal(t, "10", headers["x-ratelimit-limit"])
	assert.Contains(t, headers["ratelimit-policy"], `"per-hour";q=10;w=3600`)

	draft := w.call(callOf("draft", "tenant=draft plan=hour", "tenant=draft2 plan=minute"))
	assert.Equal(t, []string{
		`x-ratelimit-limit: 10, 10;w=3600;name="per-hour", 20;w=60;name="per-minute"`, "x-ratelimit-remaining: 9",
		"x-ratelimit-reset: 2800",
	}, lines(draft))
}

func lines(answer *rls.RateLimitResponse) (list []string) {
	for _, h := range answer.GetResponseHeadersToAdd() {
		list = append(list, h.GetKey()+": "+h.GetValue())
	}
	return list
}

func TestALimitInADescriptorCountsOnlyWhereItMay(t *testing.T) {
	w := newWorld(t, testConfig)
	stated := func(domain string) *rls.RateLimitRequest {
		call := callOf(domain, "tenant=acme plan=minute")
		call.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: 2, Unit: units.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(2),
		}
		return call
	}
	assert.Equal(t, "OK; OK per-minute 20/MINUTE 19 40s", describe(w.call(stated("edge"))))
	assert.EqualValues(t, 1, testutil.ToFloat64(w.ignored.WithLabelValues(ignoredLimit)))
	w.call(stated("draft"))
	assert.Equal(t, "OK; OK descriptor 2/UNKNOWN 0 1h46m40s", describe(w.call(stated("draft"))))
	assert.Equal(t, "OVER_LIMIT; OVER_LIMIT descriptor 2/UNKNOWN 0 1h46m40s", describe(w.call(stated("draft"))))
	assert.Equal(t, "OK; OK per-minute 20/MINUTE 16 40s", describe(w.call(callOf("draft", "tenant=acme plan=minute"))))
	other := stated("draft")
	other.Descriptors[0].Entries[0].Value = "beta"
	assert.Equal(t, "OK; OK descriptor 2/UNKNOWN 1 1h46m40s", describe(w.call(other)), "a bucket of its own")
}

func TestAStatedLimitOfZeroDeniesTheCallAndSpendsNothing(t *testing.T) {
	w := newWorld(t, testConfig)
	call := callOf("draft", "tenant=acme plan=minute", "tenant=beta plan=hour")
	call.Descriptors[1].Limit = &common.RateLimitDescriptor_RateLimitOverride{Unit: units.RateLimitUnit_HOUR}
	denied := w.call(call)
	assert.Equal(t, "OVER_LIMIT; OK; OVER_LIMIT descriptor 0/HOUR 0 0s", describe(denied))
	assert.Contains(t, lines(denied), "x-ratelimit-remaining: 0")
	assert.Contains(t, string(denied.GetRawBody()), `"violated-policies":["descriptor"]`)
	assert.Zero(t, w.takes.Load())
}

func TestNoNameOfATenantIsThatOfTheBucketOfADescriptor(t *testing.T) {
	w := newWorld(t, `{on_missing_user: skip, tiers: [{name: victim, limits: [
  {name: descriptor, scope: tenant, limit: 9, window_size: 3600, algorithm: fixed_window}]}]}`)
	long := strings.Repeat("x", 100)
	call := callOf("draft", "key="+long+" tenant=acme")
	call.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{
		RequestsPerUnit: 9, Unit: units.RateLimitUnit_HOUR,
	}
	require.Equal(t, "OK; OK descriptor 9/HOUR 8 46m40s", describe(w.call(call)))
	// Names of more than 128 bytes are hashed, and this is what the bucket's name is a hash of.
	hashed := fmt.Sprintf(`"draft" %d "key"=%q "tenant"="acme"`, 3600*limit.Second, long)
	text := callOf("draft", "tenant= plan=victim")
	text.Descriptors[0].Entries[0].Value = hashed
	assert.Equal(t, "OK; OK descriptor 9/HOUR 8 46m40s", describe(w.call(text)), "the first of 9")
}

func TestTheBodyOfAnAnswerIsItsOwn(t *testing.T) {
	w := newWorld(t, testConfig)
	var answers []*rls.RateLimitResponse
	var bodies []string
	for i := range 20 {
		call := callOf("edge", "tenant=a plan=hour", fmt.Sprint("tenant=b plan=", []string{"hour", "minute"}[i%2]))
		call.HitsAddend = 1000
		answers = append(answers, w.call(call))
		bodies = append(bodies, string(answers[i].GetRawBody()))
	}
	for i, answer := range answers {
		require.Equal(t, bodies[i], string(answer.GetRawBody()), "answer %d, after the others", i)
	}
}

func TestAPanicIsAnsweredAsTheConfigSaysAndCounted(t *testing.T) {
	for mode, want := range map[string]string{"open": "OK; OK; OK", "closed": "OVER_LIMIT; OVER_LIMIT; OVER_LIMIT"} {
		w := newWorld(t, strings.Replace(testConfig, "{", "{on_internal_error: "+mode+", ", 1))
		var log strings.Builder
		w.Server.Log = slog.New(slog.NewTextHandler(&log, nil))
		w.during = func(context.Context) { panic("a fault") }
		answer := w.call(callOf("edge", "tenant=a plan=hour", "tenant=b plan=hour"))
		assert.Equal(t, want, describe(answer))
		assert.Equal(t, mode == "closed", strings.Contains(string(answer.GetRawBody()), `"status":503`))
		assert.Contains(t, log.String(), "a fault")
		assert.EqualValues(t, 1, testutil.ToFloat64(w.answered.WithLabelValues("panic")))
		w.during = nil
		assert.Equal(t, "OK; OK per-hour 10/HOUR 9 46m40s", describe(w.call(callOf("edge", "tenant=a plan=hour"))))
	}
}

func TestAMalformedCallIsAnErrorThatNamesTheField(t *testing.T) {
	w := newWorld(t, testConfig)
	changed := func(change func(*rls.RateLimitRequest)) *rls.RateLimitRequest {
		call := callOf("draft", "tenant=a")
		change(call)
		return call
	}
	many := make([]string, maxDescriptors+1)
	for i := range many {
		many[i] = "tenant=a"
	}
	for want, call := range map[string]*rls.RateLimitRequest{
		"domain: is required":                   callOf("", "tenant=a"),
		"descriptors: at least one is required": callOf("edge"),
		"descriptors: 101, must be at most 100": callOf("edge", many...),
		"descriptors[1].entries: at least one":  callOf("edge", "tenant=a", ""),
		"descriptors[0].entries[1]: its key or value has 65536 bytes, must be at most 65535": callOf("edge",
			"tenant=a b="+strings.Repeat("x", 64<<10)),
		"hits_addend: 2000000000, must be at most": changed(func(c *rls.RateLimitRequest) { c.HitsAddend = 2e9 }),
		"descriptors[0].hits_addend: 2000000000": changed(func(c *rls.RateLimitRequest) {
			c.Descriptors[0].HitsAddend = wrapperspb.UInt64(2e9)
		}),
		"descriptors[0].is_negative_hits":                changed(func(c *rls.RateLimitRequest) { c.Descriptors[0].IsNegativeHits = true }),
		"descriptors[0].entries: 33, must be at most 32": callOf("edge", strings.Repeat("tenant=a ", 33)),
		"limit: unit: UNKNOWN, must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR": changed(func(c *rls.RateLimitRequest) {
			c.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}
		}),
		"descriptors[0].limit: window": changed(func(c *rls.RateLimitRequest) {
			c.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: 1, Unit: units.RateLimitUnit_YEAR, UnitMultiplier: wrapperspb.UInt32(1 << 31),
			}
		}),
	} {
		_, err := w.ShouldRateLimit(t.Context(), call)
		assert.Equal(t, codes.InvalidArgument, status.Code(err), want)
		assert.ErrorContains(t, err, want)
	}
	assert.Zero(t, w.takes.Load())
	hundred := callOf("edge", many[:maxDescriptors]...)
	assert.Equal(t, rls.RateLimitResponse_OK, w.call(hundred).GetOverallCode())
}

func TestALateOrEarlyCallSpendsNothingAndAnInternalErrorFollowsTheConfig(t *testing.T) {
	closed := strings.Replace(testConfig, "{", "{on_internal_error: closed, ", 1)
	for config, want := range map[string]string{testConfig: "OK; OK", closed: "OVER_LIMIT; OVER_LIMIT"} {
		w := newWorld(t, config)
		late, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := w.ShouldRateLimit(late, callOf("edge", "tenant=a plan=hour"))
		assert.Equal(t, codes.Canceled, status.Code(err))
		w.ready = false
		_, err = w.ShouldRateLimit(t.Context(), callOf("edge", "tenant=a plan=hour"))
		assert.Equal(t, codes.Unavailable, status.Code(err))
		w.ready = true
		assert.Zero(t, w.takes.Load())
		w.storeErr = errors.New("broken")
		for _, descriptors := range [][]string{{"tenant=a plan=hour"}, {"tenant=a plan=hour", "tenant=b plan=hour"}} {
			got := describe(w.call(callOf("edge", descriptors...)))
			require.True(t, strings.HasPrefix(got, want), got)
		}
	}
}

func TestAMappingWithFaultsNamesEachField(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "domains: is required",
		"domain: {}":                          "domains: is required",
		"domains: [a]":                        "must be YAML of the form",
		"domains: {a: }":                      "domains.a: maps nothing: set tenant_from",
		"domains: {a: {draft_headers: ok}}":   `domains.a.draft_headers: "ok" must be true or false`,
		"domains: {a: {tenants: [static.x]}}": "domains.a.tenants: unknown field: use draft_headers, limit_override, rules, tenant_from",
		"domains: {a: {tenant_from: descriptor.a}}": "domains.a.tenant_from: must be a list",
		"domains: {a: {tenant_from: [header.X]}}":   `domains.a.tenant_from: unknown source "header.X"`,
		"domains: {a: {user_from: [descriptor.]}}":  `domains.a.user_from: unknown source "descriptor."`,
	} {
		_, err := ParseMapping([]byte(text))
		assert.ErrorContains(t, err, want, text)
	}
}

func TestTheMetricsAreThoseOfTheList(t *testing.T) {
	w := newWorld(t, testConfig)
	w.call(callOf("nowhere", "tenant=acme"))
	promtest.CheckGathered(t, "testdata/metrics.golden", w.registry)
}
