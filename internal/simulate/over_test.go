package simulate

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// generous is a store with a fault: it charges a part of what it admits.
type generous struct {
	outage.Central
	admits func(cost int64) (charged int64)
}

// Take implements store.Store.
func (g generous) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	changed := append([]policy.Bound{}, bounds...)
	for i := range changed {
		changed[i].Cost = g.admits(changed[i].Cost)
	}
	return g.Central.Take(ctx, changed, statuses)
}

func TestAStoreOrALeaseThatAdmitsTwiceIsReported(t *testing.T) {
	const text = `
nodes: 4
tenants: [{count: 1}]
load: [{for: 2s, rate: 900}]
config: {default_tier: a, tiers: [{name: a, limits: [{name: minute, scope: tenant, limit: 1000, window_size: 60}]}]}
`
	for name, admits := range map[string]func(int64) int64{
		"sound":  func(cost int64) int64 { return cost },
		"leases": func(cost int64) int64 { return max(cost/2, 1) },
		"all":    func(cost int64) int64 { return cost / 2 },
	} {
		s, err := Parse([]byte(text))
		require.NoError(t, err)
		s.shared = func(shared outage.Central) outage.Central { return generous{shared, admits} }
		r := s.Run()
		sound := name == "sound"
		if name == "leases" && r.Leases.Granted == 0 {
			t.Error("nothing is leased")
		}
		if r.WithinDocs != sound || (r.OverTokens == 0) != sound || r.Policies[0].Within != sound {
			t.Errorf("%s: %d tokens above the bound, within the docs: %v", name, r.OverTokens, r.WithinDocs)
		}
	}
}
