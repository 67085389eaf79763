package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAnOverrideHasTheWarningsOfItsReview(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Shared(t).Database(t)
	const sharedAllows = " per 86400 s, which is more than policy all of tier gold allows all of them: 150 per 86400 s"
	const double = "multiplier --factor 2"
	shared, daily := perDay("all", "gold", "global", 150), perDay("daily", "gold", "tenant", 100)
	both, owned := []rows.Policy{shared, daily}, edited(daily, ofTenant)
	for name, c := range map[string]struct {
		rows     []rows.Policy
		override string // flags behind --kind
		file     string // the fields of the same override in a file, which reviews tenants and networks alone
		tier     string // of acme
		warning  string
	}{
		"a factor that lifts a tenant above a shared limit": {
			rows: both, override: double,
			warning: "override 1 of policy daily of tier gold allows one tenant 200" + sharedAllows,
		},
		"a factor up to a shared limit": {rows: both, override: "multiplier --factor 1.5"},
		"a custom limit above a shared one": {
			rows: both, override: "custom_limit --policy daily --limit 151",
			warning: "override 1 of policy daily of tier gold allows one tenant 151" + sharedAllows,
		},
		"a custom limit in place of a shared one, for one tenant": {
			rows: both, override: "custom_limit --policy all --limit 151",
			warning: "override 1 of policy all of tier gold allows one tenant 151" + sharedAllows,
		},
		"a factor for a limit that was above a shared one before": {
			rows: []rows.Policy{perDay("all", "gold", "global", 99), owned}, override: double,
		},
		"a factor for the limits of one user": {rows: both, override: double + " --user u"},
		"a factor for other requests than those of a shared limit": {
			rows:     []rows.Policy{edited(shared, at("POST /records")), daily},
			override: double + ` --policy daily --endpoint "GET /records"`,
		},
		"a factor for the requests of a shared limit": {
			rows:     []rows.Policy{edited(shared, at("GET /records")), daily},
			override: double + ` --policy daily --endpoint "GET /records"`,
			warning:  "override 1 of policy daily of tier gold",
		},
		"a factor for a tenant of another tier": {
			rows: []rows.Policy{shared, daily, perDay("daily", "silver", "tenant", 100)}, override: double, tier: "silver",
		},
		"a factor for a tenant whose own row replaces that of its tier": {
			rows:     []rows.Policy{shared, daily, edited(perDay("daily", "", "tenant", 10), ofTenant)},
			override: double,
		},
		"with the config: a factor that lifts a tenant above a shared limit": {
			override: "multiplier --factor 1000 --policy daily",
			warning:  "than policy heavy for POST /records/bulk in the plugin's config allows all of them: 5000 per 60 s",
		},
		"with the config: a factor for a part of what counts together": {
			override: double + " --ip 2001:db8::/65", file: `"kind":"multiplier","factor":2,"ip":"2001:db8::/65"`,
			warning: "ip: all addresses of 2001:db8::/64 count together",
		},
		"a start in the past": {
			override: "ban --starts-at 2001-01-01T00:00:00Z",
			warning:  "starts_at: is in the past: the override is in force at once",
		},
		"a factor for a part of what counts together": {
			override: double + " --ip 2001:db8::/65", file: `"kind":"multiplier","factor":2,"ip":"2001:db8::/65"`,
			warning: "ip: unless the plugin's config has another ipv6_prefix_length, all addresses of 2001:db8::/64 count",
		},
		"a ban of a part of what counts together": {
			override: "ban --ip 2001:db8::/65", file: `"kind":"ban","ip":"2001:db8::/65"`,
		},
		"a tenant that was never seen": {
			override: "ban --tenant ghost", file: `"kind":"ban","tenant":"ghost"`, warning: "tenant ghost was never seen",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := guardCase{rows: c.rows, warning: c.warning, config: strings.HasPrefix(name, "with the config")}
			x := g.open(t, dsn)
			acme := rows.Tenant{Tenant: schema.Tenant{ID: "acme", Tier: c.tier, TimeZone: "UTC"}}
			_, _, err := x.store.SetTenant(t.Context(), rows.Change{Actor: "ann", Reason: "before"}, acme)
			require.NoError(t, err)
			args := words(t, "override add --tenant acme --permanent --kind "+c.override)
			text, written := x.writes(g, false, args...)
			g.wantsWarning(t, text, written)
			if c.file != "" {
				x = g.open(t, dsn)
				x.stdin = `{"overrides":[{` + c.file + `,"permanent":true,"reason":"a test"}]}`
				text, written = x.writes(g, false, "apply", "-f", "-")
				g.wantsWarning(t, text, written)
			}
		})
	}
}

func TestAnOddStartHasTheSameFaultByACommandAndAFile(t *testing.T) {
	var g guardCase
	x := g.open(t, pgtest.Shared(t).Database(t))
	const end = "2099-01-01T00:00:00Z"
	for start, want := range map[string]string{
		``:                          schema.TimeForm,
		`tomorrow`:                  schema.TimeForm,
		`2098-01-01T00:00:00`:       schema.TimeForm,
		`2098-01-01`:                schema.TimeForm,
		`99999-01-01T00:00:00Z`:     schema.TimeForm,
		`0001-01-01T00:00:00Z`:      schema.TimeForm,
		`1969-12-31T23:59:59Z`:      "must be from 1970 to 9999",
		`9999-12-31T23:59:59-01:00`: "must be from 1970 to 9999",
		end:                         "must be before expires_at",
	} {
		byCommand, _ := x.writes(g, false, "override", "add", "--kind", "ban", "--tenant", "acme", "--starts-at", start,
			"--expires-at", end)
		document, err := json.Marshal(map[string]any{"overrides": []any{map[string]any{
			"kind": "ban", "tenant": "acme", "starts_at": start, "expires_at": end, "reason": "a test",
		}}})
		require.NoError(t, err)
		x.stdin = string(document)
		byFile, _ := x.writes(g, false, "apply", "--partial", "-f", "-")
		if !strings.Contains(byCommand, want) || !strings.Contains(byFile, want) {
			t.Errorf("%q: by a command %q, by a file %q, want %q", start, byCommand, byFile, want)
		}
	}
}
