package rows_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ofTier returns tenant acme with a tier, as a write from a revision has it.
func ofTier(tier string, revision int64) rows.Tenant {
	return rows.Tenant{Tenant: schema.Tenant{ID: "acme", Tier: tier}, Revision: revision}
}

func TestTenantsWithUsageAreListedBesideThoseWithARow(t *testing.T) {
	s := used(t, time.Minute) // acme and globex, endpoints and a policy
	for _, id := range []string{"acme", "corp"} {
		gold := rows.Tenant{Tenant: schema.Tenant{ID: id, Tier: "gold"}}
		_, _, err := s.SetTenant(t.Context(), ann, gold)
		require.NoError(t, err)
	}
	for want, f := range map[string]rows.TenantFilter{
		"acme/gold corp/gold":         {},
		"acme/gold corp/gold globex/": {Usage: true},
		"acme/gold corp/gold ":        {Usage: true, Tier: "gold"},
		"corp/gold globex/":           {Usage: true, After: "acme", Max: 2},
		"acme/gold":                   {Usage: true, Max: 1},
		"globex/":                     {Usage: true, Prefix: "g"},
		"":                            {Usage: true, After: "globex"},
	} {
		var listed []string
		found, err := s.Tenants(t.Context(), f)
		require.NoError(t, err)
		for _, tenant := range found {
			listed = append(listed, tenant.ID+"/"+tenant.Tier)
		}
		if got := strings.Join(listed, " "); got != strings.TrimSpace(want) {
			t.Errorf("%+v lists %q, want %q", f, got, want)
		}
	}
}

func TestATenantIsListedWhileOneOfItsUsageTablesHasARow(t *testing.T) {
	s, pool := open(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		pgtest.Exec(t, pool, sql, args...)
	}
	listed := func() (ids string) {
		found, err := s.Tenants(t.Context(), rows.TenantFilter{Usage: true})
		require.NoError(t, err)
		for _, tenant := range found {
			ids += " " + tenant.ID
		}
		return ids
	}
	exec(`SELECT rate_limiter.keep_usage_partitions()`)
	for _, table := range [...]string{"usage_minutes", "usage_hours", "usage_days"} {
		exec(`INSERT INTO rate_limiter.usage_names (name) VALUES ($1)`, table)
		late := map[bool]string{true: ", false"}[table == "usage_days"]
		exec(`INSERT INTO rate_limiter.`+table+` SELECT date_trunc('day', now(), 'UTC'), 1, 0, 0, 0, 0, NULL, id, 0, 0`+late+`
			FROM rate_limiter.usage_names WHERE name = $1`, table)
	}
	assert.Equal(t, " usage_days usage_hours usage_minutes", listed())
	exec(`DELETE FROM rate_limiter.usage_minutes`) // as its partitions are dropped
	assert.Equal(t, " usage_days usage_hours", listed(), "without minutes, listed")
}

func TestAnOverrideOfATenantThatWasNeverSeenIsWarnedOf(t *testing.T) {
	s, pool := open(t)
	pgtest.Exec(t, pool, `
		INSERT INTO rate_limiter.usage_names (name) VALUES ('counted'), ('daily');
		CREATE TABLE rate_limiter.usage_days_2099 PARTITION OF rate_limiter.usage_days
			FOR VALUES FROM ('2099-01-01') TO ('2100-01-01');
		INSERT INTO rate_limiter.usage_days
			(at, tenant, endpoint, policy, late, admitted, soft, denied, shadow_denied, cost)
		SELECT '2099-05-01', t.id, p.id, p.id, false, 1, 0, 0, 0, 1
		FROM rate_limiter.usage_names t, rate_limiter.usage_names p WHERE t.name = 'counted' AND p.name = 'daily';
		SET rate_limiter.reason = 'a test'; SET rate_limiter.actor = 'ann';
		INSERT INTO rate_limiter.tenants (id, time_zone) VALUES ('listed', 'UTC')`)
	isConsumer := func(name string) bool { return name == "consumer" }
	for tenant, isStranger := range map[string]bool{
		"listed": false, "counted": false, "consumer": false, "": false, "daily": true, "nosuchtenant": true,
	} {
		o := rows.Override{Override: schema.Override{Kind: schema.KindBan, Tenant: tenant}}
		got, err := s.OverrideWarnings(t.Context(), nil, isConsumer, o)
		want := "tenant " + tenant + " was never seen: "
		if err != nil || len(got) > 0 != isStranger || isStranger && !strings.HasPrefix(got[0], want) {
			t.Errorf("an override of %q is warned of by %q (%v), want a warning: %t", tenant, got, err, isStranger)
		}
	}
}
