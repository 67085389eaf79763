package resolve_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func compile(t testing.TB, text string) *resolve.Plan {
	t.Helper()
	plan, err := resolve.FromConfig(policytest.Config(t, text))
	require.NoError(t, err, "compile config")
	return plan
}

func example(t testing.TB) *resolve.Plan {
	t.Helper()
	text, err := os.ReadFile("testdata/example.yaml")
	require.NoError(t, err)
	return compile(t, string(text))
}

func TestTheDocumentedConfigCompiles(t *testing.T) {
	plan := example(t)
	var got []string
	for _, p := range plan.Policies() {
		got = append(got, p.Tier+"/"+p.Name+": "+p.Describe()+" "+p.Quota)
	}
	slices.Sort(got)
	want := []string{
		`/all: 100000 per 60 s (token_bucket) in total "all";q=100000;w=60`,
		`/heavy: 5000 per 60 s (token_bucket) per endpoint "heavy";q=5000;w=60`,
		`/per-ip: 60 per 60 s (token_bucket) per ip "per-ip";q=60;w=60`,
		`enterprise/daily: 1000000 per 86400 s (fixed_window) per tenant "daily";q=1000000;w=86400`,
		`enterprise/per-user: 500 per 60 s (token_bucket) per user "per-user";q=500;w=60`,
		`essentials/burst: 50 per 1 s with a burst of 100 (token_bucket) per tenant "burst";q=50;w=1`,
		`essentials/daily: 15000 per 86400 s (fixed_window) per tenant "daily";q=15000;w=86400`,
		`essentials/search: 100 per 60 s (sliding_window) per tenant+endpoint "search";q=100;w=60`,
		`unlimited/daily: 5000000 per 86400 s (fixed_window) per tenant "daily";q=5000000;w=86400`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("policies are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if plan.Namespace() != "default" || plan.Mode() != policy.Enforce {
		t.Errorf("namespace %q, enforcing %v, want default and true", plan.Namespace(), plan.Mode() == policy.Enforce)
	}
}

func TestEveryFaultIsReportedWithItsPath(t *testing.T) {
	config := policytest.Config(t, `
costs: {"GET /a*": 2, "GET /{x}/b": 3}
tiers:
- name: one
  limits:
  - {name: fine, scope: tenant, limit: 10, window_size: 1}
  - {name: huge, scope: tenant, limit: 1000000000000, window_size: 31622399, algorithm: sliding_window}
  - {name: ambiguous, scope: tenant, endpoint: "GET /a/{x}", limit: 10, window_size: 1}
- name: two
  limits:
  - {name: odd, scope: tenant+endpoint, endpoint: "GET /%72ecords", limit: 10, window_size: 1}
anonymous:
  limits:
  - {name: huge-too, scope: ip, limit: 999999999989, window_size: 31622399, algorithm: token_bucket,
     burst: 1000000000000}
global: {limits: [{name: rest, scope: endpoint, endpoint: "* /x/*/y", limit: 10, window_size: 1}]}
`)
	plan, err := resolve.FromConfig(config)
	var faults schema.Faults
	if !errors.As(err, &faults) || plan != nil {
		t.Fatalf("FromConfig: plan %v, error %v of type %T, want schema.Faults", plan, err, err)
	}
	want := []schema.Fault{
		{Path: `anonymous.limits[0].limit`, Message: "cannot be counted exactly"},
		{Path: `costs["GET /a*"]`, Message: "stands alone at the end"},
		{Path: `costs["GET /{x}/b"]`, Message: `is ambiguous with "GET /a/{x}"`},
		{Path: `global.limits[0].endpoint`, Message: "* must be the last segment"},
		{Path: `tiers[0].limits[1].limit`, Message: "cannot be counted exactly"},
		{Path: `tiers[1].limits[0].endpoint`, Message: "write /records"},
	}
	slices.SortFunc(faults, func(a, b schema.Fault) int { return strings.Compare(a.Path, b.Path) })
	for i, fault := range faults {
		if i >= len(want) || fault.Path != want[i].Path || !strings.Contains(fault.Message, want[i].Message) {
			t.Errorf("fault %d is %s", i, fault)
		}
	}
	assert.Equal(t, len(want), len(faults), "faults")
}

func TestEachFaultyFieldOfAnUncheckedLimitIsReported(t *testing.T) {
	config := schema.Config{Tiers: []schema.Tier{{Name: "one", Limits: []schema.Limit{
		{Name: "a", Scope: "tenant", Algorithm: "token_bucket", Limit: -1, WindowSize: 0},
		{Name: "b", Scope: "galaxy", Algorithm: "token_bucket", Limit: 1, WindowSize: 1},
		{Name: "c", Scope: "tenant", Algorithm: "dice", Limit: 1, WindowSize: 1},
		{Name: "d", Scope: "tenant", Algorithm: "fixed_window", Limit: 1, WindowSize: 1, Burst: 5},
	}}}}
	_, err := resolve.FromConfig(config)
	var faults schema.Faults
	require.True(t, errors.As(err, &faults), "FromConfig: %v of type %T, want schema.Faults", err, err)
	var got []string
	for _, fault := range faults {
		got = append(got, fault.Path)
	}
	want := []string{
		"tiers[0].limits[0].limit", "tiers[0].limits[0].window_size", "tiers[0].limits[1].scope",
		"tiers[0].limits[2].algorithm", "tiers[0].limits[3].burst",
	}
	assert.Equal(t, want, got, "faults at")
}

func TestASourceThatWasNeverCheckedIsAFault(t *testing.T) {
	config := policytest.Config(t, `tiers: [{name: one, limits: [{name: a, scope: user, limit: 1, window_size: 1}]}, {name: two}]`)
	config.TenantFrom, config.TierFrom, config.UserFrom = []string{"moon"}, []string{"sun"}, []string{"star"}
	_, err := resolve.FromConfig(config)
	var faults schema.Faults
	if !errors.As(err, &faults) || len(faults) != 3 || faults[0].Path != "tenant_from" || faults[1].Path != "tier_from" ||
		faults[2].Path != "user_from" {
		t.Errorf("FromConfig: %v, want faults at tenant_from, tier_from and user_from", err)
	}
}

func TestALimitsOwnModeFailModeAndAccuracyWinOverTheConfigs(t *testing.T) {
	tests := []struct {
		common     string
		own        string
		mode       policy.Mode
		enforcing  bool
		commonFail string
		ownFail    string
		fail       policy.FailMode

		commonAccuracy string
		ownAccuracy    string
		accuracy       policy.Accuracy
	}{
		{"", "", policy.Enforce, true, "", "", policy.FailLocal, "", "", policy.Leased},
		{"enforce", "shadow", policy.Shadow, true, "open", "", policy.FailOpen, "leased", "", policy.Leased},
		{"enforce", "log", policy.Log, true, "closed", "", policy.FailClosed, "exact", "", policy.Exact},
		{"shadow", "", policy.Shadow, false, "open", "closed", policy.FailClosed, "exact", "leased", policy.Leased},
		{"log", "", policy.Log, false, "closed", "open", policy.FailOpen, "leased", "exact", policy.Exact},
		{"shadow", "enforce", policy.Enforce, false, "closed", "local", policy.FailLocal, "", "exact", policy.Exact},
		{"log", "shadow", policy.Shadow, false, "local", "", policy.FailLocal, "", "leased", policy.Leased},
	}
	for _, test := range tests {
		plan, err := resolve.FromConfig(schema.Config{
			Mode: test.common, FailMode: test.commonFail, Accuracy: test.commonAccuracy,
			Tiers: []schema.Tier{{Name: "one", Limits: []schema.Limit{
				{
					Name: "a", Scope: "tenant", Algorithm: "token_bucket", Limit: 1, WindowSize: 1, Mode: test.own,
					FailMode: test.ownFail, Accuracy: test.ownAccuracy,
				},
			}}},
		})
		require.NoError(t, err)
		p := plan.Policies()[0]
		if p.Mode != test.mode || (plan.Mode() == policy.Enforce) != test.enforcing {
			t.Errorf("config %q, limit %q: mode %s, enforcing %v, want %s and %v",
				test.common, test.own, p.Mode, plan.Mode() == policy.Enforce, test.mode, test.enforcing)
		}
		assert.Equal(t, test.fail, p.FailMode, "config %q, limit %q: fail mode", test.commonFail, test.ownFail)
		assert.Equal(t, test.accuracy, p.Accuracy, "config %q, limit %q: accuracy", test.commonAccuracy, test.ownAccuracy)
	}
}
