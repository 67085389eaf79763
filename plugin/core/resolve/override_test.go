package resolve_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const overridden = `
user_from: [header.X-User]
trusted_headers: [X-User]
on_missing_tenant: limit_by_ip
tiers:
- name: one
  limits:
  - {name: t, scope: tenant, limit: 100, window_size: 60, burst: 200}
  - {name: te, scope: tenant+endpoint, endpoint: "GET /x", limit: 100, window_size: 60, algorithm: fixed_window}
  - {name: u, scope: user, limit: 100, window_size: 60, algorithm: sliding_log, soft_threshold_pct: 80}
  - {name: ue, scope: user+endpoint, endpoint: "GET /x", limit: 100, window_size: 60, algorithm: leaky_bucket}
  - {name: c, scope: credential, limit: 100, window_size: 60, algorithm: leaky_bucket, burst: 5}
  - {name: i, scope: ip, limit: 100, window_size: 60}
global: {limits: [{name: g, scope: global, limit: 100, window_size: 60}]}
`

// numbered returns the rows of overrides, the first of id 1.
func numbered(overrides ...schema.Override) (rows []policy.Override) {
	for i, o := range overrides {
		rows = append(rows, policytest.Override(int64(i+1), o))
	}
	return rows
}

// instant returns an instant as a row has it.
func instant(at limit.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }

// quotas resolves a request of user u of acme, and returns the limit of each of its bounds.
func quotas(t *testing.T, now limit.Micros, overrides ...schema.Override) (map[string]int64, resolve.Resolution) {
	t.Helper()
	plan := compile(t, overridden).With(build(t, policy.Rows{Overrides: numbered(overrides...)}))
	var r resolve.Resolution
	plan.ResolveAt(&visitor, now, &r)
	all := map[string]int64{}
	for _, b := range r.Bounds {
		all[b.Policy.Name] = b.Policy.Limit.Spec().Quantity
	}
	return all, r
}

var visitor = identity.Identity{
	Tenant: tenant("acme"), User: identity.Name{Kind: identity.User, ID: "u"}, Credential: "key", IP: "192.0.2.1",
	Method: "GET", Path: "/x", Route: "r",
}

func times(factor schema.Factor, o schema.Override) schema.Override {
	o.Kind, o.Factor = schema.KindMultiplier, factor
	return o
}

func penalty(factor schema.Factor, o schema.Override) schema.Override {
	o.Source = schema.SourceDetector
	return times(factor, o)
}

func custom(name string, quantity int64, o schema.Override) schema.Override {
	o.Kind, o.Policy, o.Limit = schema.KindCustomLimit, name, quantity
	return o
}

var (
	acme         = schema.Override{Tenant: "acme"}
	user         = schema.Override{Tenant: "acme", User: "u"}
	endpoint     = schema.Override{Tenant: "acme", Endpoint: "GET /x"}
	userAt       = schema.Override{Tenant: "acme", User: "u", Endpoint: "GET /x"}
	credentialed = schema.Override{Credential: "key"}
	origin       = schema.Override{IP: "192.0.2.1"}
)

func TestAnOverrideChangesTheLimitsOfItsTargetAndNoOthers(t *testing.T) {
	tests := []struct {
		name      string
		overrides []schema.Override
		changed   map[string]int64 // others keep 100
	}{
		{
			"a tenant's factor",
			[]schema.Override{times(2000, acme)},
			map[string]int64{"t": 200, "te": 200, "u": 200, "ue": 200, "c": 200},
		},
		{"a user's factor", []schema.Override{times(500, user)}, map[string]int64{"u": 50, "ue": 50}},
		{"an endpoint's factor", []schema.Override{times(500, endpoint)}, map[string]int64{"te": 50, "ue": 50}},
		{"a user's factor at an endpoint", []schema.Override{times(500, userAt)}, map[string]int64{"ue": 50}},
		{"a credential's factor", []schema.Override{times(500, credentialed)}, map[string]int64{"c": 50}},
		{"an address's factor", []schema.Override{times(500, origin)}, map[string]int64{"i": 50}},
		{
			"a factor that names a policy",
			[]schema.Override{times(500, schema.Override{Tenant: "acme", Policy: "g"})},
			map[string]int64{"g": 50},
		},
		{"a factor that leaves nothing", []schema.Override{times(1, user)}, map[string]int64{"u": 1, "ue": 1}},
		{
			"a factor that a log cannot hold",
			[]schema.Override{times(200_000, user)},
			map[string]int64{"u": 10_000, "ue": 20_000},
		},
		{"a custom limit", []schema.Override{custom("t", 7, acme)}, map[string]int64{"t": 7}},
		{"a custom limit that a log cannot hold", []schema.Override{custom("u", 10_001, acme)}, nil},
		{"a custom limit of no policy", []schema.Override{custom("nothing", 7, acme)}, nil},
		{
			"a credential's of another tenant",
			[]schema.Override{times(500, schema.Override{Tenant: "beta", Credential: "key"})},
			nil,
		},
	}
	for _, test := range tests {
		got, r := quotas(t, 1, test.overrides...)
		for _, name := range []string{"t", "te", "u", "ue", "c", "i", "g"} {
			want, changed := test.changed[name]
			if !changed {
				want = 100
			}
			assert.Equal(t, want, got[name], "%s: limit %s", test.name, name)
		}
		if r.Banned || r.Exempt || len(r.Bounds) != 7 {
			t.Errorf("%s: banned %v, exempt %v, %d bounds", test.name, r.Banned, r.Exempt, len(r.Bounds))
		}
	}
}

func TestAChangedLimitKeepsWhatTheOverrideDoesNotSay(t *testing.T) {
	tests := []struct {
		name     string
		override schema.Override
		policy   string
		want     limit.Spec
		quota    string
	}{
		{
			"scaled bucket", times(1500, acme), "t",
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 150, Window: 60 * limit.Second, Burst: 300},
			`"t";q=150;w=60`,
		},
		{
			"scaled window", times(1500, acme), "te",
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 150, Window: 60 * limit.Second, Burst: 150},
			`"te";q=150;w=60`,
		},
		{
			"thresholds", times(1500, acme), "u",
			limit.Spec{Algorithm: limit.SlidingLog, Quantity: 150, Window: 60 * limit.Second, Burst: 150, SoftPct: 80},
			`"u";q=150;w=60`,
		},
		{
			"strictly even", times(2000, acme), "ue",
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 200, Window: 60 * limit.Second, Burst: 1},
			`"ue";q=200;w=60`,
		},
		{
			"even, with a burst", times(2000, acme), "c",
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 200, Window: 60 * limit.Second, Burst: 10},
			`"c";q=200;w=60`,
		},
		{
			"custom, nothing else", custom("t", 7, acme), "t",
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 7, Window: 60 * limit.Second, Burst: 7},
			`"t";q=7;w=60`,
		},
		{
			"custom, all of it", custom("t", 7, schema.Override{Tenant: "acme", WindowSize: 2, Burst: 9}), "t",
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 7, Window: 2 * limit.Second, Burst: 9},
			`"t";q=7;w=2`,
		},
		{
			"custom, a burst for a window", custom("te", 7, schema.Override{Tenant: "acme", Burst: 9}), "te",
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 7, Window: 60 * limit.Second, Burst: 7},
			`"te";q=7;w=60`,
		},
	}
	for _, test := range tests {
		_, r := quotas(t, 1, test.override)
		i := slices.IndexFunc(r.Bounds, func(b policy.Bound) bool { return b.Policy.Name == test.policy })
		if got := r.Bounds[i]; got.Policy.Limit.Spec() != test.want || got.Policy.Quota != test.quota ||
			got.Override != 1 || got.Penalty != 0 {
			t.Errorf("%s: limit is %+v (%s) by override %d, want %+v (%s) by 1",
				test.name, got.Policy.Limit.Spec(), got.Policy.Quota, got.Override, test.want, test.quota)
		}
	}
}

func TestARowOfAnotherSourceIsLeftOutAndReported(t *testing.T) {
	row := policytest.Override(1, times(500, acme))
	for _, source := range []string{schema.SourceScheduled, "of a later release"} {
		row.Source = source
		snapshot, faults := policy.NewSnapshot(policy.Rows{Overrides: []policy.Override{row}}, nil)
		if snapshot.Len() != 0 || len(faults) != 1 || faults[0].Key != "1" {
			t.Errorf("%s: %d rows, faults %v, want none and one of row 1", source, snapshot.Len(), faults)
		}
	}
}

func TestABanOfAnAddressOrANetworkHoldsForAnonymousRequestsTooAndInAnySpelling(t *testing.T) {
	tests := []struct {
		written, seen string
		banned        bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"::ffff:192.0.2.1", "192.0.2.1", true},
		{"192.0.2.77/24", "192.0.2.1", true},
		{"::ffff:192.0.2.0/120", "192.0.2.1", true},
		{"192.0.2.0/24", "192.0.3.1", false},
		{"0.0.0.0/0", "2001:db8::/64", false},
		{"2001:DB8::7", "2001:db8::/64", true},
		{"2001:db8:0:0:1::/64", "2001:db8::/64", true},
		{"2001:db8::/48", "2001:db8:0:7::/64", true},
		{"2001:db8::/48", "2001:db8::/48", true},
		{"2001:db8::/64", "2001:db8::/48", false}, // it is not known which /64 of these it is
		{"2001:db8::/64", "2001:db8::9/128", true},
		{"192.0.2.1", "unknown", false},
		{"192.0.2.1", "", false},
	}
	for _, test := range tests {
		snapshot := build(t, policy.Rows{Overrides: numbered(schema.Override{Kind: schema.KindBan, IP: test.written})})
		for _, id := range []identity.Identity{
			{Anonymous: true, IP: test.seen},
			{Anonymous: true, Tenant: address(test.seen), IP: test.seen},
			{Tenant: tenant("acme"), IP: test.seen},
		} {
			var r resolve.Resolution
			if compile(t, overridden).With(snapshot).ResolveAt(&id, 1, &r); r.Banned != test.banned {
				t.Errorf("a ban of %s holds for %+v: %v, want %v", test.written, id, r.Banned, test.banned)
			}
		}
	}
}

func TestOfTwoNetworksTheNarrowerDecides(t *testing.T) {
	got, _ := quotas(t, 1, times(500, schema.Override{IP: "192.0.2.0/24"}),
		times(2000, schema.Override{IP: "192.0.2.0/28"}), times(3000, schema.Override{IP: "192.0.0.0/16"}))
	assert.EqualValues(t, 200, got["i"], "the limit per address is %d, want 200 as the /28 says", got["i"])
}

func TestARowWithoutAModeOrAnAccuracyHasThatOfTheConfigThatARequestMeets(t *testing.T) {
	own := perTenant(1, "acme", 5)
	own.Limit.Name, own.Limit.Mode, own.Limit.FailMode, own.Limit.Accuracy = "own", "log", "closed", "leased"
	snapshot := build(t, policy.Rows{Policies: []policy.PolicyRow{perTenant(2, "acme", 5), own}})
	for mode, want := range map[string]policy.Mode{"enforce": policy.Enforce, "shadow": policy.Shadow, "log": policy.Log} {
		plan, err := resolve.FromConfig(schema.Config{Namespace: "default", Mode: mode, FailMode: "open", Accuracy: "exact"})
		require.NoError(t, err)
		var r resolve.Resolution
		plan.With(snapshot).ResolveAt(&visitor, 1, &r)
		if len(r.Bounds) != 2 || r.Bounds[0].Policy.Mode != want || r.Bounds[0].Policy.FailMode != policy.FailOpen ||
			r.Bounds[1].Policy.Mode != policy.Log || r.Bounds[1].Policy.FailMode != policy.FailClosed {
			t.Errorf("config in mode %s: bounds are %+v", mode, r.Bounds)
		}
		if r.Bounds[0].Policy.Accuracy != policy.Exact || r.Bounds[1].Policy.Accuracy != policy.Leased {
			t.Errorf("config in mode %s: the row without an accuracy is %s, its own is %s",
				mode, r.Bounds[0].Policy.Accuracy, r.Bounds[1].Policy.Accuracy)
		}
	}
}

// What overrides make of policies is made once, by the first request, and is the same for all.
func TestManyRequestsAtOnceGetTheSameLimits(t *testing.T) {
	halved := numbered(schema.Override{Kind: schema.KindMultiplier, Factor: 500, Tenant: "acme"})
	plan := compile(t, overridden).With(build(t, policy.Rows{Overrides: halved}))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			var r resolve.Resolution
			for range 50 {
				if plan.ResolveAt(&visitor, 1, &r); r.Bounds[0].Policy.Limit.Spec().Quantity != 50 {
					t.Errorf("limit is %d, want 50", r.Bounds[0].Policy.Limit.Spec().Quantity)
				}
			}
		})
	}
	group.Wait()
	var first, second resolve.Resolution
	plan.ResolveAt(&visitor, 1, &first)
	plan.ResolveAt(&visitor, 1, &second)
	assert.True(t, first.Bounds[0].Policy == second.Bounds[0].Policy, "a changed policy is made anew for each request")
}

func TestAllFaultsOfARowAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 129)
	for want, o := range map[string]schema.Override{
		"endpoint factor ip user": {
			Kind: "multiplier", Tenant: "acme", User: "u", IP: "nonsense", Endpoint: "records", Reason: "r", Author: "a",
		},
		"ip tenant user":  {Kind: schema.KindBan, Tenant: long, User: long, IP: "nonsense", Reason: "r", Author: "a"},
		"ip reason":       {Kind: schema.KindBan, Tenant: "acme", IP: "nonsense", Author: "a"},
		"endpoint reason": {Kind: schema.KindBan, Tenant: "acme", Endpoint: "records", Author: "a"},
		"endpoint tenant": {Kind: schema.KindBan, Endpoint: "records", Reason: "r", Author: "a"},
		"endpoint":        {Kind: schema.KindBan, Tenant: "acme", Endpoint: "records", Reason: "r", Author: "a"},
		"user":            {Kind: schema.KindBan, Tenant: "acme", User: "u", Credential: "k", Reason: "r", Author: "a"},
	} {
		o.Permanent = true
		_, faults := policy.NewSnapshot(policy.Rows{Overrides: []policy.Override{{Override: o}}}, nil)
		assert.Equal(t, want, fieldsOf(faults), "%+v: faults of", o)
	}
	for want, row := range map[string]policy.PolicyRow{
		"endpoint limit": {
			Policy: schema.Policy{
				Tier: "gold", Limit: schema.Limit{Name: "n", Scope: "tenant", Endpoint: "records", WindowSize: 60},
			},
		},
		"endpoint tier": {
			Policy: schema.Policy{
				Limit: schema.Limit{Name: "n", Scope: "tenant", Endpoint: "records", Limit: 5, WindowSize: 60},
			},
		},
		"endpoint": {
			Policy: schema.Policy{
				Tier: "gold", Limit: schema.Limit{Name: "n", Scope: "tenant", Endpoint: "records", Limit: 5, WindowSize: 60},
			},
		},
	} {
		_, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{row}}, nil)
		assert.Equal(t, want, fieldsOf(faults), "%+v: faults of", row)
	}
}

// fieldsOf are the fields of faults, in the order of their names.
func fieldsOf(faults []policy.Fault) string {
	var fields []string
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	slices.Sort(fields)
	return strings.Join(fields, " ")
}
