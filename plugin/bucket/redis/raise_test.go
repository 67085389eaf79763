package redis

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func monthly(t testing.TB, tenant string) policy.Bound {
	t.Helper()
	month, err := calendar.New(calendar.Month, calendar.Anchor{}, "Europe/Berlin")
	require.NoError(t, err)
	b := bound(t, "monthly", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Calendar: month})
	b.Key.GroupID = tenant
	return b
}

// Leaders raise the counts of three tenants at once, while requests spend.
func TestBucketsAreRaisedToANumberAndNeverLoweredHoweverOften(t *testing.T) {
	single, cluster := redistest.Single(t), redistest.Cluster(t, 3, 0)
	for name, stores := range map[string][]*Store{
		"one server": opened(t, at(single, true)), "a cluster": opened(t, among(cluster, true)),
	} {
		bounds := []policy.Bound{monthly(t, "lost"), monthly(t, "higher"), monthly(t, "over"), monthly(t, "none"), hundred(t)}
		statuses := make([]decision.Status, len(bounds))
		require.NoError(t, stores[0].Take(t.Context(), []policy.Bound{costing(bounds[1], 90)}, statuses[:1]))
		var total [2][]int64
		var leaders sync.WaitGroup
		for i, s := range stores {
			leaders.Go(func() {
				charged, err := s.Raise(t.Context(), bounds, []int64{60, 70, 130, 0, 5})
				assert.NoError(t, err, name)
				total[i] = charged
			})
		}
		leaders.Wait()
		require.NoError(t, stores[0].Peek(t.Context(), bounds, statuses))
		for i, want := range []struct{ used, charged int64 }{{60, 60}, {90, 0}, {130, 130}, {0, 0}, {5, 5}} {
			charged := total[0][i] + total[1][i]
			if s := &statuses[i]; s.Used != want.used || charged != want.charged || s.Admits() != (want.used < 100) {
				t.Errorf("%s: of bucket %d %d are used and %d charged, want %+v", name, i, s.Used, charged, want)
			}
		}
		require.NoError(t, stores[1].Take(t.Context(), []policy.Bound{costing(bounds[0], 40)}, statuses[:1]))
		assert.True(t, statuses[0].Charged && statuses[0].Used == 100, "%s: %+v", name, statuses[0])
	}
}

func TestAServerThatDoesNotAnswerRaisesNothingAndIsReported(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	transport.unavailable = "away"
	charged, err := f.Raise(t.Context(), []policy.Bound{monthly(t, "here"), monthly(t, "away")}, []int64{7, 7})
	assert.ErrorIs(t, err, errBroken)
	assert.Equal(t, []int64{7, 0}, charged)
}
