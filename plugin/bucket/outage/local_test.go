package outage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestWhatIsTakenLocallyIsThisNodesShareAndIsRecordedNowhereElse(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{Nodes: 2, SharePct: 60})
	bounds, statuses := []policy.Bound{bound(t, policy.FailClosed, 10, "acme")}, make([]decision.Status, 1)
	take := func() decision.Status {
		t.Helper()
		require.NoError(t, w.view.Local().Take(t.Context(), bounds, statuses))
		return statuses[0]
	}
	for i := range 5 {
		if s := take(); s.Admits() != (i < 3) || s.Source != decision.Local || s.Failure != decision.NoFailure ||
			s.Charged != s.Admits() {
			t.Errorf("request %d: %+v, want 3 of 10 × 60 %% ÷ 2", i, s)
		}
	}
	if stats := w.store.Stats(); w.servers.takes != 0 || stats.Buckets != 0 || len(stats.Policies) != 0 ||
		len(stats.Activations) != 0 {
		t.Errorf("%d takes of the shared store, %+v: want nothing", w.servers.takes, stats)
	}
	w.clock.Advance(minute)
	take()
	if err := w.view.Local().Refund(t.Context(), bounds, statuses); err != nil || statuses[0].Charged ||
		statuses[0].Used != 0 {
		t.Errorf("%+v, %v: want all given back", statuses[0], err)
	}
	bounds[0].Cost = 4
	if s := take(); s.Wait != limit.Second {
		t.Errorf("%+v: want a wait for what the share can never hold, and the limit can", s)
	}
}
