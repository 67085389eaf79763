package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fixture is an engine whose rows the test sets, with its log.
type fixture struct {
	*Engine
	t   *testing.T
	log bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t}
	f.Engine = New(t.Context(), Options{Log: slog.New(slog.NewTextHandler(&f.log, nil))})
	source := policysync.Source{DSN: "postgres://nowhere"}
	rows, err := policysync.New(policysync.Options{Source: source, Log: f.Engine.log})
	require.NoError(t, err)
	f.Rows = rows
	return f
}

// addConfig adds a decider whose config has these tiers. The first one is the default.
func (f *fixture) addConfig(tiers ...string) *admit.Decider {
	f.t.Helper()
	var config schema.Config
	for _, name := range tiers {
		config.Tiers = append(config.Tiers, schema.Tier{Name: name})
	}
	plan, err := resolve.FromConfig(config)
	require.NoError(f.t, err)
	decider := new(admit.Decider)
	f.add(decider, plan)
	return decider
}

// setTenants makes the deciders follow a new snapshot of tenants with their tiers: "acme gold".
func (f *fixture) setTenants(all ...string) {
	f.t.Helper()
	var rows policy.Rows
	for _, one := range all {
		id, tier, _ := strings.Cut(one, " ")
		rows.Tenants = append(rows.Tenants, schema.Tenant{ID: id, Tier: tier})
	}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		f.t.Fatal(faults)
	}
	f.follow(snapshot)
}

// want checks the number of logged lines so far, and of the faults that the node has now.
func (f *fixture) want(when string, lines, faults int) {
	f.t.Helper()
	if got := strings.Count(f.log.String(), "cannot be applied"); got != lines {
		f.t.Errorf("%s: %d lines are logged, want %d:\n%s", when, got, lines, f.log.String())
	}
	if s := f.Rows.Stats(); s.FaultCount != faults || len(s.Faults) != faults {
		f.t.Errorf("%s: the node has %d faults, %v, want %d", when, s.FaultCount, s.Faults, faults)
	}
}

func TestARowThatCannotBeAppliedIsLoggedOnceAndCountedWhileItExists(t *testing.T) {
	f := newFixture(t)
	f.addConfig("small", "gold")
	f.setTenants("acme gold", "em glod")
	f.want("with the first snapshot", 1, 1)
	f.setTenants("acme gold", "em glod")
	f.setTenants("acme gold", "em glod", "other glod", "beta gold")
	f.want("with snapshots that still have it", 1, 1)
	f.setTenants("acme gold", "em gold", "other gold")
	f.want("with a snapshot without it", 1, 0)
	f.setTenants("acme gold", "em glod")
	f.want("when it is back", 2, 1)
	f.setTenants("acme gold", "em glod", "new golf")
	f.want("with another fault", 3, 2)
}

func TestFaultsAreThoseOfTheLiveConfigsEachLoggedOnce(t *testing.T) {
	f := newFixture(t)
	f.addConfig("small")
	same := f.addConfig("small")
	other := f.addConfig("large")
	f.setTenants("em glod")
	f.want("with two default tiers", 2, 2)
	f.remove(other)
	f.want("without the other default tier", 2, 1)
	f.remove(same)
	f.want("with one config", 2, 1)
	f.addConfig("small", "glod")
	f.want("with a config that has the tier", 2, 1)
}

func TestDecisionsAndSettlementsCountAsUsageIfThatIsOn(t *testing.T) {
	for _, on := range []bool{false, true} {
		e := newFixture(t).Engine
		require.NoError(t, e.FollowRows(policysync.Options{Source: policysync.Source{DSN: "postgres://nowhere"}}))
		if on {
			e.CountUsage()
		}
		sources := e.Sources()
		sources.Settles = true
		e.Metrics = metrics.New("1", sources)
		decider, release, err := e.Build(schema.Config{}.WithDefaults(), new(resolve.Plan))
		require.NoError(t, err)
		release()
		observers := len(decider.Observers)
		budget := &policy.Bound{Policy: &policy.Policy{Name: "tokens"}, Cost: 100}
		e.Settlements().Reserved(budget)
		e.Settlements().Settled(budget, reservation.Settlement{Change: -30, Tenant: "acme", Endpoint: "chat"})
		if !on {
			if e.usage != nil || observers != 2 {
				t.Errorf("usage is off, and %d observers count", observers)
			}
			continue
		}
		if n := e.usage.reporter.Stats(); n.Rows != 2 || observers != 3 {
			t.Errorf("%d rows count a settlement with %d observers, want one of requests and one of the policy", n.Rows, observers)
		}
	}
}
