package admit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const jointConfig = `{on_missing_tenant: skip, on_missing_user: skip, tiers: [{name: a, limits: [
  {name: tenants, scope: tenant, limit: 6, window_size: 31536000, algorithm: fixed_window},
  {name: users, scope: user, limit: 3, window_size: 31536000, algorithm: fixed_window}]}],
  global: {limits: [{name: all, scope: global, limit: 9, window_size: 31536000, algorithm: fixed_window}]}}`

// jointModel counts what the buckets of jointConfig hold.
type jointModel map[string]int64

var capacities = map[string]int64{"tenants": 6, "users": 3, "all": 9}

// admit adds what parts cost, each bucket once, if all of it fits, and what is asked does too. It returns which parts
// are denied by a bucket of their own; nil: none is.
func (m jointModel) admit(parts []admit.Part) (denied []bool) {
	costs, asked := map[string]int64{}, map[string]int64{}
	buckets := func(p *admit.Part) (names []string) {
		names = []string{"all/"}
		if p.Facts.Tenant != "" {
			names = append(names, "tenants/"+p.Facts.Tenant)
			if p.Facts.User != "" {
				names = append(names, "users/"+p.Facts.Tenant+p.Facts.User)
			}
		}
		return names
	}
	for i := range parts {
		for _, name := range buckets(&parts[i]) {
			to := costs
			if parts[i].Asks {
				to = asked
			}
			to[name] = max(to[name], parts[i].Facts.Cost, 1)
		}
	}
	full := func(costs map[string]int64, name string) bool {
		kind, _, _ := strings.Cut(name, "/")
		return m[name]+costs[name] > capacities[kind]
	}
	questions := false // one denies, so that the others are not read
	for name := range asked {
		questions = questions || full(asked, name)
	}
	any := false
	denied = make([]bool, len(parts))
	for i := range parts {
		for _, name := range buckets(&parts[i]) {
			if parts[i].Asks {
				denied[i] = denied[i] || full(asked, name)
			} else {
				denied[i] = denied[i] || !questions && full(costs, name)
			}
		}
		any = any || denied[i]
	}
	if any {
		return denied
	}
	for name, cost := range costs {
		m[name] += cost
	}
	return nil
}

func TestPartsSpendTogetherOrNotAtAllAndABucketOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		decider, observed := callerDeciderOf(t, jointConfig)
		buckets := decider.Buckets.(*shelf)
		model, joint := jointModel{}, new(admit.Joint) // whose memory all calls share
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			n := rapid.IntRange(1, 4).Draw(rt, "parts")
			joint.Parts = slices.Grow(joint.Parts[:0], n)[:n]
			parts := joint.Parts
			for i := range parts {
				parts[i].Asks = rapid.IntRange(0, 4).Draw(rt, "asks") == 0
				parts[i].Facts.Caller = identity.Caller{
					Tenant: rapid.SampledFrom([]string{"", "x", "y"}).Draw(rt, "tenant"), Tier: "a",
					User: rapid.SampledFrom([]string{"", "u", "v"}).Draw(rt, "user"),
					Cost: rapid.Int64Range(0, 3).Draw(rt, "cost"),
				}
			}
			*observed = nil
			whole, err := decider.AdmitAll(t.Context(), buckets, joint)
			require.NoError(rt, err)
			denied := model.admit(parts)
			require.Equal(rt, denied != nil, whole.Decision.Denied(), "the whole")
			require.Equal(rt, denied != nil, whole.Response.Denied, "the response of the whole")
			seen := 0
			for i := range parts {
				own := denied != nil && denied[i]
				require.Equal(rt, own, parts[i].Decision.Denied(), "part %d of %+v", i, parts)
				if !parts[i].Asks && (own || denied == nil) {
					seen++
				}
			}
			require.Len(rt, *observed, seen, "observers see what was spent, or what denied")
			used := buckets.used(decider.Policies.Load())
			want := map[string]int64{}
			for name, n := range model {
				kind, _, _ := strings.Cut(name, "/")
				want[kind] += n
			}
			for kind, n := range want {
				require.Equal(rt, n, used[kind], "the ledger of %s", kind)
			}
		}
	})
}

func TestAPartThatIsDeniedBeforeItsBucketsKeepsTheOthersFromSpending(t *testing.T) {
	config := strings.Replace(jointConfig, "on_missing_tenant: skip", "on_missing_tenant: deny", 1)
	decider, observed := callerDeciderOf(t, config)
	buckets := decider.Buckets.(*shelf)
	parts := make([]admit.Part, 2)
	parts[0].Facts.Tenant = "x"
	whole, err := decider.AdmitAll(t.Context(), buckets, &admit.Joint{Parts: parts})
	require.NoError(t, err)
	require.Zero(t, buckets.takes)
	require.Equal(t, decision.TenantMissing, whole.Decision.Reason)
	require.Equal(t, "[false true]", fmt.Sprint([]bool{parts[0].Decision.Denied(), parts[1].Decision.Denied()}))
	require.Len(t, *observed, 1)
}

func TestOfTwoLimitsOfOneBucketTheEnforcedOneCountsElseTheSmaller(t *testing.T) {
	const tiers = `{tiers: [{name: a, limits: [{name: year, scope: tenant, limit: 2, window_size: 31536000,
  algorithm: fixed_window}]}, {name: b, limits: [{name: year, scope: tenant, limit: SIZE-B,
  window_size: 31536000, algorithm: fixed_window, mode: MODE-B}]}]}`
	for _, c := range []struct{ order, mode, size string }{
		{"ab", "enforce", "9"}, {"ba", "enforce", "9"}, {"ab", "shadow", "1"}, {"ba", "shadow", "1"},
	} {
		order := c.order
		decider, _ := callerDeciderOf(t, strings.NewReplacer("MODE-B", c.mode, "SIZE-B", c.size).Replace(tiers))
		buckets := decider.Buckets.(*shelf)
		parts := make([]admit.Part, 2)
		for i := range parts {
			parts[i].Facts.Caller = identity.Caller{Tenant: "x", Tier: order[i : i+1], Cost: int64(2 - i)}
		}
		for _, denied := range []bool{false, true} {
			whole, err := decider.AdmitAll(t.Context(), buckets, &admit.Joint{Parts: parts})
			require.NoError(t, err)
			require.Equal(t, denied, whole.Decision.Denied(), order)
			require.Len(t, whole.Decision.Resolution.Bounds, 1)
			require.EqualValues(t, 2, whole.Decision.Resolution.Bounds[0].Cost)
			require.Equal(t, []int64{2, 2}, []int64{
				parts[0].Decision.Resolution.Bounds[0].Policy.Limit.Capacity(),
				parts[1].Decision.Resolution.Bounds[0].Policy.Limit.Capacity(),
			})
		}
	}
}

func TestOfWhatABucketWasChargedOnlyTheFirstPartIsTold(t *testing.T) {
	decider, _ := callerDeciderOf(t, jointConfig)
	buckets := decider.Buckets.(*shelf)
	decider.Buckets = admit.TakeFunc(func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
		err := buckets.Take(ctx, bounds, statuses)
		for i := range statuses {
			statuses[i].Charged = true
		}
		return err
	})
	charged := map[string]int{}
	parts := make([]admit.Part, 3)
	for i := range parts {
		parts[i].Facts.Caller = identity.Caller{Tenant: []string{"x", "x", "y"}[i], Tier: "a"}
	}
	_, err := decider.AdmitAll(t.Context(), buckets, &admit.Joint{Parts: parts})
	require.NoError(t, err)
	for i := range parts {
		for at, s := range parts[i].Decision.Statuses {
			if s.Charged {
				charged[fmt.Sprint(i, parts[i].Decision.Resolution.Bounds[at].Policy.Name)]++
			}
		}
	}
	require.Equal(t, map[string]int{"0all": 1, "0tenants": 1, "2tenants": 1}, charged)
}

func TestACallWithTwoBansWaitsForTheLaterEnd(t *testing.T) {
	decider, _ := callerDeciderOf(t, jointConfig)
	decider.Now = func() limit.Micros { return now }
	rows := policy.Rows{Version: 1}
	for i, tenant := range []string{"a-minute", "an-hour"} {
		end := time.UnixMicro(int64(now + []limit.Micros{60, 3600}[i]*limit.Second))
		rows.Overrides = append(rows.Overrides, policytest.Override(int64(i+1),
			schema.Override{Tenant: tenant, Kind: schema.KindBan, ExpiresAt: end}))
	}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	require.Empty(t, faults)
	decider.Policies.Store(decider.Policies.Load().With(snapshot))
	for _, order := range [][]string{{"a-minute", "an-hour"}, {"an-hour", "a-minute"}} {
		parts := make([]admit.Part, 2)
		parts[0].Facts.Tenant, parts[1].Facts.Tenant = order[0], order[1]
		whole, err := decider.AdmitAll(t.Context(), decider.Buckets.(*shelf), &admit.Joint{Parts: parts})
		require.NoError(t, err)
		require.Equal(t, decision.Banned, whole.Decision.Reason)
		require.Equal(t, 3600*limit.Second, whole.Decision.RetryAfter, "of %v", order)
	}
}

// caps denies the enforced bounds of one tenant, or moves them aside in shadow, and counts demand.
type caps struct {
	denied  string
	counted []string
}

func (c *caps) Cap(d *decision.Decision, at limit.Micros) int {
	if d.Identity.Tenant.ID != c.denied {
		return len(d.Statuses)
	}
	for i := range d.Statuses {
		d.Statuses[i] = decision.Status{Wait: limit.Second, Now: at, Source: decision.FairShare}
	}
	return 0
}

func (c *caps) Count(d *decision.Decision) { c.counted = append(c.counted, d.Identity.Tenant.ID) }

func TestAFairShareThatDeniesAPartKeepsTheOthersFromSpendingUnlessItIsInShadow(t *testing.T) {
	for mode, denied := range map[string]bool{"enforce": true, "shadow": false} {
		decider, _ := callerDeciderOf(t, strings.Replace(`{tiers: [{name: a}], global: {limits: [{name: all, scope: global,
  limit: 600, window_size: 60, mode: MODE, fair: {default: 1}}]}}`, "MODE", mode, 1))
		shares := &caps{denied: "x"}
		decider.Shares = shares
		parts := make([]admit.Part, 3)
		parts[0].Facts.Tenant, parts[1].Facts.Tenant, parts[2].Facts.Tenant = "x", "y", "z"
		parts[2].Asks = true
		whole, err := decider.AdmitAll(t.Context(), decider.Buckets.(*shelf), &admit.Joint{Parts: parts})
		require.NoError(t, err)
		require.Equal(t, denied, whole.Decision.Denied(), mode)
		require.Equal(t, denied, parts[0].Decision.Denied(), mode)
		require.Equal(t, denied, decider.Buckets.(*shelf).takes == 0, mode)
		require.Equal(t, []string{"x", "y"}, shares.counted, "what asks is no demand")
	}
}

func TestAJointDecisionIsOneTakeAndAllocatesNothing(t *testing.T) {
	decider, _ := callerDeciderOf(t, strings.NewReplacer("limit: 6", "limit: 1000000", "limit: 3", "limit: 1000000",
		"limit: 9", "limit: 1000000").Replace(jointConfig))
	decider.Observers = nil
	joint := &admit.Joint{Parts: make([]admit.Part, 2)}
	for i := range joint.Parts {
		joint.Parts[i].Facts.Caller = identity.Caller{Tenant: []string{"x", "y"}[i], Tier: "a", User: "u"}
	}
	takes, take, peeker := 0, decider.Buckets.Take, decider.Buckets.(*shelf)
	decider.Buckets = admit.TakeFunc(func(ctx context.Context, b []policy.Bound, s []decision.Status) error {
		takes++
		return take(ctx, b, s)
	})
	allocations := testing.AllocsPerRun(1000, func() {
		whole, err := decider.AdmitAll(t.Context(), peeker, joint)
		require.NoError(t, err)
		require.False(t, whole.Response.Denied)
	})
	require.Zero(t, allocations)
	require.Equal(t, 1001, takes)
}

// takenPools records the pools of the bounds of each take.
type takenPools struct {
	*shelf
	pools []string
}

func (p *takenPools) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	text := ""
	for i := range bounds {
		text += fmt.Sprintf("%s=%d ", bounds[i].Policy.Name, bounds[i].Pool)
	}
	p.pools = append(p.pools, text)
	return p.shelf.Take(ctx, bounds, statuses)
}

func TestAllThatARequestSpendsIsInThePoolOfItsTier(t *testing.T) {
	decider, _ := callerDeciderOf(t, `{strategy: redis, redis: {host: a},
		redis_pools: [{name: b, host: b}, {name: c, host: c}], on_missing_tenant: skip,
		tiers: [{name: free, limits: [{name: mine, scope: tenant, limit: 9, window_size: 60}]},
			{name: big, redis_pool: c, limits: [{name: own, scope: tenant, limit: 9, window_size: 60}]}],
		global: {limits: [{name: all, scope: global, limit: 9, window_size: 60}]}}`)
	taken := &takenPools{shelf: decider.Buckets.(*shelf)}
	decider.Buckets = taken
	free, big := identity.Caller{Tenant: "f", Tier: "free"}, identity.Caller{Tenant: "b", Tier: "big"}
	for _, test := range []struct {
		parts []identity.Caller
		want  string
	}{
		{[]identity.Caller{big}, "own=2 all=2 "},
		{[]identity.Caller{free}, "mine=0 all=0 "},
		{[]identity.Caller{{}}, "all=0 "},
		{[]identity.Caller{{}, big}, "all=2 own=2 "},
		{[]identity.Caller{big, {}, free}, "own=2 all=2 mine=0 "},
	} {
		joint := &admit.Joint{}
		for _, caller := range test.parts {
			joint.Parts = append(joint.Parts, admit.Part{Facts: admit.CallerRequest{Caller: caller}})
		}
		taken.pools = nil
		_, err := decider.AdmitAll(t.Context(), taken, joint)
		if err != nil || len(taken.pools) != 1 || taken.pools[0] != test.want {
			t.Errorf("%+v: takes of %q, %v, want one of %q", test.parts, taken.pools, err, test.want)
		}
	}
}

func TestPartsWithMoreBucketsThanOneTakeHoldsAreNotDecided(t *testing.T) {
	decider, _ := callerDeciderOf(t, jointConfig)
	buckets := decider.Buckets.(*shelf)
	for parts, want := range map[int]error{63: nil, 64: admit.ErrTooMany} { // two buckets of each, and one of all
		joint := &admit.Joint{Parts: make([]admit.Part, parts)}
		for i := range joint.Parts {
			joint.Parts[i].Facts.Caller = identity.Caller{Tenant: fmt.Sprint("t", i), Tier: "a", User: "u"}
		}
		_, err := decider.AdmitAll(t.Context(), buckets, joint)
		require.ErrorIs(t, err, want, parts)
	}
}
