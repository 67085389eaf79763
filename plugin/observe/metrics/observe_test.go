package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// counted lists the counters of m that are not 0, as a scrape shows them, without their prefix: the tenants and
// endpoints of one together.
func counted(t *testing.T, m *Metrics) string {
	t.Helper()
	lines, err := gathered(m)
	require.NoError(t, err)
	return lines
}

// gathered returns what counted does, and the error of the scrape.
func gathered(m *Metrics) (string, error) {
	families, err := m.Gather()
	var lines strings.Builder
	for _, family := range families {
		sums := map[string]float64{}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				if name := label.GetName(); name != orgLabel && name != endpointLabel {
					labels = append(labels, fmt.Sprintf("%s=%q", name, label.GetValue()))
				}
			}
			sums[strings.Join(labels, ",")] += metric.GetCounter().GetValue()
		}
		for _, labels := range slices.Sorted(maps.Keys(sums)) {
			name, ours := strings.CutPrefix(family.GetName(), prefix)
			if !ours || sums[labels] == 0 {
				continue
			}
			if labels != "" {
				name += "{" + labels + "}"
			}
			fmt.Fprintln(&lines, name, sums[labels])
		}
	}
	return lines.String(), err
}

func TestADecisionIsCountedByWhatItsBoundsDid(t *testing.T) {
	minute := policy.Policy{Name: "minute", Scope: policy.Tenant}
	daily := policy.Policy{Name: "daily", Scope: policy.TenantEndpoint, FailMode: policy.FailClosed}
	open := policy.Policy{Name: "open", Scope: policy.IP, FailMode: policy.FailOpen}
	trial := policy.Policy{Name: "trial", Scope: policy.User, Mode: policy.Shadow, FailMode: policy.FailClosed}
	soft := admits
	soft.Soft = true
	tests := []struct {
		name   string
		bounds []answered
		want   string
	}{
		{"no bounds", nil, `requests_total{mode="enforce",result="allowed",tier="gold"} 1`},
		{"all admit", []answered{{minute, admits}, {trial, admits}}, `
requests_total{mode="enforce",result="allowed",tier="gold"} 1`},
		{"soft", []answered{{minute, soft}}, `requests_total{mode="enforce",result="soft_throttled",tier="gold"} 1`},
		{"each that denies", []answered{{minute, denies}, {open, admits}, {daily, denies}}, `
denials_total{policy="daily",scope="tenant+endpoint",tier="gold"} 1
denials_total{policy="minute",scope="tenant",tier="gold"} 1
requests_total{mode="enforce",result="hard_throttled",tier="gold"} 1`},
		{"a shadow", []answered{{minute, admits}, {trial, denies}}, `
requests_total{mode="enforce",result="allowed",tier="gold"} 1
shadow_denials_total{policy="trial",scope="user",tier="gold"} 1
tenant_shadow_denials_total 1`},
		{"local and open admit unverified", []answered{{minute, localYes}, {open, unanswered}}, `
fallback_activations_total{reason="redis_timeout"} 1
fallback_activations_total{reason="redis_unavailable"} 1
requests_total{mode="enforce",result="allowed",tier="gold"} 1
unverified_total{fail_mode="local",policy="minute"} 1
unverified_total{fail_mode="open",policy="open"} 1`},
		{"a denied request is not counted as unverified", []answered{{minute, localNo}, {open, unanswered}}, `
denials_total{policy="minute",scope="tenant",tier="gold"} 1
fallback_activations_total{reason="redis_timeout"} 1
fallback_activations_total{reason="redis_unavailable"} 1
requests_total{mode="enforce",result="hard_throttled",tier="gold"} 1`},
		{"closed", []answered{{minute, localYes}, {daily, unanswered}}, `
fallback_activations_total{reason="redis_timeout"} 1
fallback_activations_total{reason="redis_unavailable"} 1
requests_total{mode="enforce",result="hard_throttled",tier="gold"} 1
unavailable_total{policy="daily"} 1`},
		{"closed, but another has no room", []answered{{minute, denies}, {daily, unanswered}}, `
denials_total{policy="minute",scope="tenant",tier="gold"} 1
fallback_activations_total{reason="redis_unavailable"} 1
requests_total{mode="enforce",result="hard_throttled",tier="gold"} 1`},
		{"an address counted in this process while the store answers", []answered{{minute, localByChoice}}, `
requests_total{mode="enforce",result="allowed",tier="gold"} 1`},
		{"a shadow without an answer", []answered{{trial, unanswered}}, `
fallback_activations_total{reason="redis_unavailable"} 1
requests_total{mode="enforce",result="allowed",tier="gold"} 1`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := New("1", Sources{})
			m.Observe(decided(t, "gold", test.bounds...))
			got := counted(t, m)
			assert.True(t, strings.TrimSpace(got) == strings.TrimSpace(test.want), "counted\n%s\nwant\n%s", got, test.want)
		})
	}
}

func TestADenialForAnotherReasonThanAPolicyHasTheReasonAsItsPolicy(t *testing.T) {
	m := New("1", Sources{})
	denied := decided(t, "")
	denied.Deny(decision.MetaLimited)
	m.Observe(denied)
	rehearsed := decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, admits})
	rehearsed.Mode = policy.Log
	rehearsed.DenyOrRecord(decision.TenantMissing, 0)
	m.Observe(rehearsed)
	const want = `denials_total{policy="(meta_limited)",scope="(none)",tier="(none)"} 1
requests_total{mode="enforce",result="hard_throttled",tier="(none)"} 1
requests_total{mode="log",result="allowed",tier="gold"} 1
shadow_denials_total{policy="(tenant_missing)",scope="(none)",tier="gold"} 1
tenant_shadow_denials_total 1
`
	got := counted(t, m)
	assert.True(t, got == want, "counted\n%s\nwant\n%s", got, want)
}

func TestMissingNamesAreCountedByKind(t *testing.T) {
	m := New("1", Sources{})
	for _, id := range []identity.Identity{
		{Anonymous: true, Tier: "platinum"}, // the tier of an anonymous request does not count
		{Anonymous: true, UserMissing: true, Tenant: identity.Name{Kind: identity.IP, ID: "192.0.2.7"}},
		{UserMissing: true, Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Tier: "gold"},
		{UserMissing: true, Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}},
		{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Tier: "platinum"},
	} {
		d := decided(t, "gold")
		d.Identity = id
		m.Observe(d)
	}
	const want = `
# HELP rate_limiter_missing_identities_total Requests without a tenant, without a user that a limit requires, or with a tier that does not exist.
# TYPE rate_limiter_missing_identities_total counter
rate_limiter_missing_identities_total{kind="tenant"} 2
rate_limiter_missing_identities_total{kind="tier"} 1
rate_limiter_missing_identities_total{kind="user"} 3
`
	assert.NoError(t, testutil.GatherAndCompare(m, strings.NewReader(want), "rate_limiter_missing_identities_total"))
}

func TestEveryFailureOfAStoreIsThereBeforeItHappens(t *testing.T) {
	n, err := testutil.GatherAndCount(New("1", Sources{}), "rate_limiter_fallback_activations_total")
	assert.True(t, err == nil && n == int(decision.WrongType), "%d reasons, %v; want %d", n, err, decision.WrongType)
}

// busy returns a decision that changes most counters that one request can.
func busy(t testing.TB) *decision.Decision {
	return decided(t, "gold",
		answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, localYes},
		answered{policy.Policy{Name: "open", Scope: policy.IP, FailMode: policy.FailOpen}, unanswered},
		answered{policy.Policy{Name: "trial", Scope: policy.User, Mode: policy.Shadow}, denies})
}

func TestAnUnknownRouteIsNoLabel(t *testing.T) {
	each := policy.Policy{Name: "each", Scope: policy.TenantEndpoint}
	for route, label := range map[string]string{"records": "records", "invented": none} {
		m := New("1", Sources{})
		m.Routes = func(name string) bool { return name == "records" }
		d := decided(t, "gold", answered{each, used(2)})
		d.Identity.Route, d.Resolution.Endpoint, d.Resolution.Bounds[0].Key.Endpoint = route, route, route
		m.Observe(d)
		if got := samples(t, m, "requests_total"); !strings.Contains(got, `endpoint="`+label+`"`) {
			t.Errorf("%s: requests are\n%s\nwant endpoint %s", route, got, label)
		}
		if got := samples(t, m, "bucket_tokens"); (got != "") != (label == route) || strings.Contains(got, "invented") {
			t.Errorf("%s: tokens left are %q, want none of an unknown route", route, got)
		}
		writes := policy.Policy{Name: "writes", Scope: policy.TenantEndpoint, Endpoint: "POST /x"}
		d = decided(t, "gold", answered{writes, used(2)})
		d.Identity.Route, d.Resolution.Endpoint, d.Resolution.Bounds[0].Key.Endpoint = route, "POST /x", "POST /x"
		m.Observe(d)
		got := samples(t, m, "requests_total") + samples(t, m, "bucket_tokens")
		assert.Equal(t, 2, strings.Count(got, `endpoint="POST /x"`), "%s: a pattern must stay a label:\n%s", route, got)
	}
}

func TestALimitOfAnotherModelIsNotUnverified(t *testing.T) {
	minute := policy.Policy{Name: "minute", Scope: policy.Tenant}
	m, d := New("1", Sources{}), decided(t, "gold", answered{minute, localYes})
	d.Resolution.Bounds[0].Unmatched = true
	m.Observe(d)
	assert.NotContains(t, counted(t, m), "unverified_total")
}
