package rows_test

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
