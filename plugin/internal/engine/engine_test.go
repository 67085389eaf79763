package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// followed are paths that follow rows, which the test hands to them, and what they logged.
type followed struct {
	*Engine
	t   *testing.T
	log bytes.Buffer
}

func newFollowed(t *testing.T) *followed {
	t.Helper()
	f := &followed{t: t}
	f.Engine = New(t.Context(), Options{Log: slog.New(slog.NewTextHandler(&f.log, nil))})
	rows, err := policysync.New(policysync.Options{Source: policysync.Source{DSN: "postgres://nowhere"}, Log: f.Engine.log})
	if err != nil {
		t.Fatal(err)
	}
	f.Rows = rows
	return f
}

// config adds a path whose config has these tiers, of which the first is the default.
func (f *followed) config(tiers ...string) *admit.Path {
	f.t.Helper()
	var config schema.Config
	for _, name := range tiers {
		config.Tiers = append(config.Tiers, schema.Tier{Name: name})
	}
	snapshot, err := policy.FromConfig(config)
	if err != nil {
		f.t.Fatal(err)
	}
	path := new(admit.Path)
	f.add(path, snapshot)
	return path
}

// tenants has the paths follow a new snapshot, in which tenants have tiers: "acme gold".
func (f *followed) tenants(all ...string) {
	f.t.Helper()
	var rows policy.Rows
	for _, one := range all {
		id, tier, _ := strings.Cut(one, " ")
		rows.Tenants = append(rows.Tenants, policy.TenantRow{ID: id, Tier: tier})
	}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		f.t.Fatal(faults)
	}
	f.follow(snapshot)
}

// want checks how many lines were logged so far, and how many faults the node has now.
func (f *followed) want(when string, lines, faults int) {
	f.t.Helper()
	if got := strings.Count(f.log.String(), "cannot be applied"); got != lines {
		f.t.Errorf("%s: %d lines are logged, want %d:\n%s", when, got, lines, f.log.String())
	}
	if s := f.Rows.Stats(); s.FaultCount != faults || len(s.Faults) != faults {
		f.t.Errorf("%s: the node has %d faults, %v, want %d", when, s.FaultCount, s.Faults, faults)
	}
}

func TestARowThatCannotBeFollowedIsLoggedOnceAndCountedAsLongAsItIsThere(t *testing.T) {
	f := newFollowed(t)
	f.config("small", "gold")
	f.tenants("acme gold", "em glod")
	f.want("with the first snapshot", 1, 1)
	f.tenants("acme gold", "em glod")
	f.tenants("acme gold", "em glod", "other glod", "beta gold")
	f.want("with snapshots that have it still", 1, 1)
	f.tenants("acme gold", "em gold", "other gold")
	f.want("with a snapshot without it", 1, 0)
	f.tenants("acme gold", "em glod")
	f.want("when it is back", 2, 1)
	f.tenants("acme gold", "em glod", "new golf")
	f.want("beside another", 3, 2)
}

func TestFaultsAreThoseOfTheLiveConfigsEachToldOnce(t *testing.T) {
	f := newFollowed(t)
	f.config("small")
	same := f.config("small")
	other := f.config("large")
	f.tenants("em glod")
	f.want("under two default tiers", 2, 2)
	f.remove(other)
	f.want("without the other default tier", 2, 1)
	f.remove(same)
	f.want("with one config", 2, 1)
	f.config("small", "glod")
	f.want("beside a config that knows it", 2, 1)
}
