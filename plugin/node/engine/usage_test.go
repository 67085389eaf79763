package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestDecisionsAndSettlementsCountAsUsageIfThatIsOn(t *testing.T) {
	for _, on := range []bool{false, true} {
		e := newFixture(t).Engine
		require.NoError(t, e.FollowRows(policysync.Options{Source: policysync.Source{DSN: "postgres://nowhere"}}))
		if on {
			e.CountUsage()
		}
		sources := e.Sources()
		sources.Reservations = func() metrics.Reservations { return metrics.Reservations{} }
		e.Metrics = metrics.New("1", sources)
		decider, release, err := e.Build(schema.Config{}.WithDefaults(), new(resolve.Plan))
		require.NoError(t, err)
		release()
		observers := len(decider.Observers)
		budget := &policy.Bound{Policy: &policy.Policy{Name: "tokens"}, Cost: 100}
		e.Settlements().Reserved(budget)
		e.Settlements().Settled(budget, reservation.Settlement{Change: -30, Tenant: "acme", Endpoint: "chat"})
		if !on {
			if e.usage != nil || sources.Usage != nil || observers != 2 {
				t.Errorf("usage is off, and %d observers count", observers)
			}
			continue
		}
		if n := sources.Usage(); n.Rows != 2 || observers != 3 {
			t.Errorf("%d rows count a settlement with %d observers, want one of requests and one of the policy", n.Rows, observers)
		}
	}
}
