package metrics

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// used returns the status of a bucket of ten tokens that resets in a second.
func used(tokens int64) decision.Status {
	s := decision.Status{Source: decision.Redis}
	s.Used, s.Remaining, s.Reset = tokens, 10-tokens, limit.Micros(time.Now().Add(time.Second).UnixMicro())
	return s
}

func TestABusyTenantsOwnBucketsAreShownAsLastSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New("1", Sources{})
		minute := policy.Policy{Name: "minute", Scope: policy.Tenant}
		bounds := []answered{
			{minute, used(4)},
			{policy.Policy{Name: "daily", Scope: policy.Tenant}, used(9)},
			{policy.Policy{Name: "writes", Scope: policy.Tenant, Endpoint: "POST /x"}, used(5)},
			{policy.Policy{Name: "each", Scope: policy.TenantEndpoint}, used(2)},
			{policy.Policy{Name: "user", Scope: policy.User}, used(10)},
			{policy.Policy{Name: "trial", Scope: policy.Tenant, Mode: policy.Shadow}, used(10)},
		}
		d := decided(t, "gold", bounds...)
		d.Resolution.Bounds[3].Key.Endpoint = "GET /y"
		m.Observe(d)
		d.Statuses[0] = used(6)
		m.Observe(d)
		const tokens = `endpoint="(none)" org_id="acme" scope="tenant" 1
endpoint="GET /y" org_id="acme" scope="tenant+endpoint" 8
endpoint="POST /x" org_id="acme" scope="tenant" 5`
		const ratios = `org_id="acme" policy="daily" 0.9
org_id="acme" policy="minute" 0.6
org_id="acme" policy="writes" 0.5`
		if got := samples(t, m, "bucket_tokens"); got != tokens {
			t.Errorf("tokens left are\n%s\nwant\n%s", got, tokens)
		}
		if got := samples(t, m, "tenant_usage_ratio"); got != ratios {
			t.Errorf("used are\n%s\nwant\n%s", got, ratios)
		}

		time.Sleep(time.Second)
		if got := samples(t, m, "tenant_usage_ratio"); strings.Contains(got, "0.") || strings.Count(got, " 0") != 3 {
			t.Errorf("after the reset used are\n%s\nwant 0 of each", got)
		}
		time.Sleep(2 * rotateEvery)
		assert.Empty(t, samples(t, m, "bucket_tokens")+samples(t, m, "tenant_usage_ratio"), "long after the reset there")
	})
}

func TestBucketsOfOneNameInSeveralNamespacesShowTheFullest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New("1", Sources{})
		d := decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, used(7)})
		m.Observe(d)
		d.Resolution.Bounds[0].Key.Namespace = "eu"
		d.Statuses[0] = used(2)
		m.Observe(d)
		if got := samples(t, m, "tenant_usage_ratio"); got != `org_id="acme" policy="minute" 0.7` {
			t.Errorf("used are\n%s\nwant 0.7", got)
		}
		if got := samples(t, m, "bucket_tokens"); got != `endpoint="(none)" org_id="acme" scope="tenant" 3` {
			t.Errorf("left are\n%s\nwant 3", got)
		}
	})
}

func TestNoMoreBucketsOfATenantAreShownThanThereIsRoomFor(t *testing.T) {
	m := New("1", Sources{})
	d := decided(t, "gold", answered{policy.Policy{Name: "each", Scope: policy.TenantEndpoint}, used(1)})
	for i := range 10 * maxBuckets {
		d.Resolution.Bounds[0].Key.Endpoint = strconv.Itoa(i)
		m.Observe(d)
	}
	assert.Equal(t, maxBuckets, strings.Count(samples(t, m, "bucket_tokens"), "org_id"), "buckets are shown")
}

func TestOnlyAnAnswerOfTheSharedStoreShowsHowFullABucketIs(t *testing.T) {
	m := New("1", Sources{})
	local := used(5)
	local.Source, local.Failure = decision.Local, decision.TimedOut
	m.Observe(decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, local}))
	m.Observe(decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, unanswered}))
	other := decided(t, "gold")
	other.Identity.Tenant.ID = "other"
	m.Observe(other)
	for _, name := range []string{"bucket_tokens", "tenant_usage_ratio", "bucket_fullness"} {
		n, err := testutil.GatherAndCount(m, prefix+name)
		assert.True(t, n == 0 && err == nil, "%s has %d series, %v; want none", name, n, err)
	}
}

func TestAnAnswerOfALeaseShowsHowFullABucketIs(t *testing.T) {
	m := New("1", Sources{})
	leased := used(5)
	leased.Source = decision.Leased
	m.Observe(decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, leased}))
	for _, name := range []string{"bucket_tokens", "tenant_usage_ratio", "bucket_fullness"} {
		n, err := testutil.GatherAndCount(m, prefix+name)
		assert.True(t, n != 0 && err == nil, "%s has %d series, %v; want some", name, n, err)
	}
}

func TestFullnessIsTheShareOfEachEnforcedLimitByScope(t *testing.T) {
	m := New("1", Sources{})
	tenant, user := policy.Policy{Scope: policy.Tenant}, policy.Policy{Scope: policy.User}
	for _, n := range []int64{0, 1, 5, 9, 10, 11, 30} {
		m.Observe(decided(t, "gold", answered{tenant, used(n)}))
	}
	shadow := policy.Policy{Scope: policy.IP, Mode: policy.Shadow}
	m.Observe(decided(t, "gold", answered{user, used(3)}, answered{shadow, used(3)}))
	const want = `
# HELP rate_limiter_bucket_fullness Share of the limit that is used after a request, for each enforced limit if its store answered: 1 is all of it.
# TYPE rate_limiter_bucket_fullness histogram
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.1"} 2
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.25"} 2
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.5"} 3
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.75"} 3
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.8"} 3
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.9"} 4
rate_limiter_bucket_fullness_bucket{scope="tenant",le="0.95"} 4
rate_limiter_bucket_fullness_bucket{scope="tenant",le="1"} 5
rate_limiter_bucket_fullness_bucket{scope="tenant",le="1.25"} 6
rate_limiter_bucket_fullness_bucket{scope="tenant",le="2"} 6
rate_limiter_bucket_fullness_bucket{scope="tenant",le="+Inf"} 7
rate_limiter_bucket_fullness_sum{scope="tenant"} 6.6
rate_limiter_bucket_fullness_count{scope="tenant"} 7
rate_limiter_bucket_fullness_bucket{scope="user",le="0.1"} 0
rate_limiter_bucket_fullness_bucket{scope="user",le="0.25"} 0
rate_limiter_bucket_fullness_bucket{scope="user",le="0.5"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="0.75"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="0.8"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="0.9"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="0.95"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="1"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="1.25"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="2"} 1
rate_limiter_bucket_fullness_bucket{scope="user",le="+Inf"} 1
rate_limiter_bucket_fullness_sum{scope="user"} 0.3
rate_limiter_bucket_fullness_count{scope="user"} 1
`
	assert.NoError(t, testutil.GatherAndCompare(m, strings.NewReader(want), prefix+"bucket_fullness"))
}

// durationOf returns the number of durations of a source, their sum in seconds, and whether the histogram is native and
// classic.
func durationOf(t *testing.T, m *Metrics, source string) (n uint64, sum float64, both bool) {
	t.Helper()
	families, err := m.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != prefix+"check_duration_seconds" {
			continue
		}
		for _, metric := range f.GetMetric() {
			if h := metric.GetHistogram(); metric.GetLabel()[0].GetValue() == source {
				both := len(h.GetPositiveSpan()) > 0 && len(h.GetBucket()) == len(durationBuckets)
				return h.GetSampleCount(), h.GetSampleSum(), both
			}
		}
	}
	return 0, 0, false
}

func TestTheTimeOfACheckIsCountedBySource(t *testing.T) {
	memory, remembered := admits, denies
	memory.Source, remembered.Source = decision.Memory, decision.Leased
	notChecked := decision.Status{} // beside a remembered denial
	minute := policy.Policy{Name: "minute", Scope: policy.Tenant}
	for _, test := range []struct {
		source   string
		statuses []decision.Status
	}{
		{"memory", []decision.Status{memory, memory}},
		{"redis", []decision.Status{admits, denies}},
		{"local", []decision.Status{localYes}},
		{"none", []decision.Status{unanswered, unanswered}},
		{"lease", []decision.Status{remembered, notChecked}},
		{"mixed", []decision.Status{admits, unanswered}},
		{"mixed", []decision.Status{admits, localYes, unanswered}},
	} {
		m := New("1", Sources{})
		var bounds []answered
		for _, status := range test.statuses {
			bounds = append(bounds, answered{minute, status})
		}
		d := decided(t, "gold", bounds...)
		for _, took := range []limit.Micros{100, 150, -5, limit.Never} {
			d.Took = took
			m.Observe(d)
		}
		m.Observe(decided(t, "gold")) // has no bucket
		if n, sum, native := durationOf(t, m, test.source); n != 4 || sum < 60.00024 || sum > 60.00026 || !native {
			t.Errorf("%s: %d durations of %v s, native and classic %v; want 4 of 60.00025 s", test.source, n, sum, native)
		}
	}
}

func TestOverridesAreCountedByWhatTheyDo(t *testing.T) {
	m := New("1", Sources{})
	d := decided(t, "gold",
		answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, admits},
		answered{policy.Policy{Name: "user", Scope: policy.User}, admits})
	d.Resolution.Bounds[0].Override, d.Resolution.Bounds[0].Penalty, d.Resolution.Bounds[1].Override = 7, 8, 7
	m.Observe(d)
	for _, change := range []func(*resolve.Resolution){
		func(r *resolve.Resolution) { r.Banned = true },
		func(r *resolve.Resolution) { r.Exempt, r.Exemption = true, resolve.Exemption{By: "user", Override: 7} },
		func(r *resolve.Resolution) { r.Exempt, r.Exemption = true, resolve.Exemption{By: "cidr", Entry: 3} },
		func(r *resolve.Resolution) { r.Preflight, r.Exemption = true, resolve.Exemption{By: "preflight"} },
	} {
		d = decided(t, "gold")
		change(&d.Resolution)
		d.RecordExemption()
		m.Observe(d)
	}
	const want = `override_type="ban" scope="(none)" 1
override_type="exempt" scope="(none)" 1
override_type="limit" scope="tenant" 1
override_type="limit" scope="user" 1
override_type="penalty" scope="tenant" 1`
	if got := samples(t, m, "override_applied_total"); got != want {
		t.Errorf("counted\n%s\nwant\n%s", got, want)
	}
	const exempt = `kind="cidr" source="config" 1
kind="preflight" source="config" 1
kind="user" source="row" 1`
	if got := samples(t, m, "exempt_total"); got != exempt {
		t.Errorf("counted as exempt\n%s\nwant\n%s", got, exempt)
	}
}
