package quota_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Both tiers have a limit that is called daily.
func twoTiers(w *world, proPool string) {
	w.Helper()
	plan, err := resolve.FromConfig(schema.Config{
		DefaultTier: "basic", OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"},
		Strategy: schema.StrategyRedis, Redis: schema.Redis{Host: "a"},
		RedisPools: []schema.RedisPool{{Name: "big", Redis: schema.Redis{Host: "b"}}},
		Tiers: []schema.Tier{
			{Name: "basic", Limits: []schema.Limit{daily(100)}},
			{Name: "pro", RedisPool: proPool, Limits: []schema.Limit{daily(10_000)}},
		},
	}.WithDefaults())
	require.NoError(w, err)
	snapshot, faults := policy.NewSnapshot(policy.Rows{}, nil)
	if len(faults) > 0 {
		w.Fatal(faults)
	}
	w.plan = plan.With(snapshot)
}

func TestANoticeIsOfTheTierThatNodesDecidedBy(t *testing.T) {
	w := newWorld(t)
	twoTiers(w, "")
	w.tiers["acme"] = "pro"
	w.spend("acme", "a", 120, 0)
	w.spend("globex", "a", 90, 0)
	if got, err := w.lead(true); err != nil || got != "globex daily 80% of 100: 90" {
		t.Fatalf("notices are %q (%v), want one of globex: acme has used 120 of 10,000", got, err)
	}
	w.tiers["acme"] = "basic" // from here on; what was spent stays spent
	w.spend("acme", "a", 1, 0)
	if got, err := w.lead(true); err != nil || got != "acme daily 100% of 100: 120" {
		t.Errorf("notices are %q (%v) after acme has moved to basic", got, err)
	}
	if n := w.event(); n.Tier != "basic" || n.PolicyID != 0 {
		t.Errorf("the notice is of policy %d of tier %q", n.PolicyID, n.Tier)
	}
}

func TestATenantOfTwoTiersIsNoticedByTheLimitOfEach(t *testing.T) {
	w := newWorld(t)
	twoTiers(w, "")
	w.tiers["acme"] = "basic pro"
	w.spend("acme", "a", 60, 0)
	w.tiers["acme"] = "pro basic" // another of its consumers
	w.spend("acme", "a", 40, 0)
	if got, err := w.lead(true); err != nil || got != "acme daily 100% of 100: 100" {
		t.Errorf("notices are %q (%v), want one by the limit of basic alone: pro has 10,000", got, err)
	}
}

func TestUsageOfAnotherTiersPolicyIsNoUsageOfThis(t *testing.T) {
	w := newWorld(t)
	twoTiers(w, "")
	w.tiers["acme"] = "pro"
	w.spend("acme", "a", 9_000, 0)
	w.tiers["acme"] = "basic" // nodes have not decided by it yet
	if got, err := w.lead(true); err != nil || got != "" {
		t.Errorf("notices are %q (%v), want none: no request was decided by basic", got, err)
	}
}
