package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// overrideCase is an override of tenant acme that is written beside rows.
type overrideCase struct {
	guardCase
	tier     string // that the row of acme sets; "": a row without a tier
	unseen   bool   // acme has no row
	override schema.Override
}

// shared and daily are a limit of all tenants of tier gold, and one of each.
var (
	shared = perDay("all", "gold", "global", 150)
	daily  = perDay("daily", "gold", "tenant", 100)
)

const sharedAllows = "which is more than policy all of tier gold allows all of them: 150 per 86400 s"

// guardedOverrides are the same for all doors of an operator.
var guardedOverrides = []overrideCase{
	{
		guardCase: guardCase{
			name: "a factor that lifts a tenant above a shared limit", rows: []rows.Policy{shared, daily},
			warning: "override 1 of policy daily of tier gold allows one tenant 200 per 86400 s, " + sharedAllows,
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000},
	},
	{
		guardCase: guardCase{name: "a factor up to a shared limit", rows: []rows.Policy{shared, daily}},
		override:  schema.Override{Kind: schema.KindMultiplier, Factor: 1500},
	},
	{
		guardCase: guardCase{
			name: "a custom limit above a shared one", rows: []rows.Policy{shared, daily},
			warning: "override 1 of policy daily of tier gold allows one tenant 151 per 86400 s, " + sharedAllows,
		},
		override: schema.Override{Kind: schema.KindCustomLimit, Policy: "daily", Limit: 151},
	},
	{
		guardCase: guardCase{
			name: "a custom limit in place of a shared one, for one tenant", rows: []rows.Policy{shared, daily},
			warning: "override 1 of policy all of tier gold allows one tenant 151 per 86400 s, " + sharedAllows,
		},
		override: schema.Override{Kind: schema.KindCustomLimit, Policy: "all", Limit: 151},
	},
	{
		guardCase: guardCase{
			name: "a factor for a limit that was above a shared one before",
			rows: []rows.Policy{perDay("all", "gold", "global", 99), edited(daily, ofTenant)},
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000},
	},
	{
		guardCase: guardCase{name: "a factor for the limits of one user", rows: []rows.Policy{shared, daily}},
		override:  schema.Override{Kind: schema.KindMultiplier, Factor: 2000, User: "u"},
	},
	{
		guardCase: guardCase{
			name: "a factor for other requests than those of a shared limit",
			rows: []rows.Policy{edited(shared, at("POST /records")), daily},
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000, Policy: "daily", Endpoint: "GET /records"},
	},
	{
		guardCase: guardCase{
			name:    "a factor for the requests of a shared limit",
			rows:    []rows.Policy{edited(shared, at("GET /records")), daily},
			warning: "override 1 of policy daily of tier gold",
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000, Policy: "daily", Endpoint: "GET /records"},
	},
	{
		guardCase: guardCase{
			name: "a factor for a tenant of another tier",
			rows: []rows.Policy{shared, daily, perDay("daily", "silver", "tenant", 100)},
		},
		tier:     "silver",
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000},
	},
	{
		guardCase: guardCase{
			name: "a factor for a tenant whose own row replaces that of its tier",
			rows: []rows.Policy{shared, daily, edited(perDay("daily", "", "tenant", 10), ofTenant)},
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000},
	},
	{
		guardCase: guardCase{
			name: "a factor that lifts a tenant above a shared limit of the config", config: true,
			warning: "than policy heavy for POST /records/bulk in the plugin's config allows all of them: 5000 per 60 s",
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 1_000_000, Policy: "daily"},
	},
	{
		guardCase: guardCase{
			name:    "a factor for a part of what counts together",
			warning: "ip: unless the plugin's config has another ipv6_prefix_length, all addresses of 2001:db8::/64 count",
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000, IP: "2001:db8::/65"},
	},
	{
		guardCase: guardCase{
			name: "a factor for a part of what counts together in the config", config: true,
			warning: "ip: all addresses of 2001:db8::/64 count together",
		},
		override: schema.Override{Kind: schema.KindMultiplier, Factor: 2000, IP: "2001:db8::/65"},
	},
	{
		guardCase: guardCase{
			name: "a start in the past", warning: "starts_at: is in the past: the override is in force at once",
		},
		override: schema.Override{Kind: schema.KindBan, StartsAt: time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)},
	},
	{
		guardCase: guardCase{name: "a ban of a part of what counts together"},
		override:  schema.Override{Kind: schema.KindBan, IP: "2001:db8::/65"},
	},
	{
		guardCase: guardCase{name: "a tenant that was never seen", warning: "tenant acme was never seen"},
		unseen:    true,
		override:  schema.Override{Kind: schema.KindBan},
	},
}

func TestEveryWayToWriteAnOverrideWarnsAlike(t *testing.T) {
	server := pgtest.Shared(t)
	for door, write := range map[string]func(*terminal, overrideCase) (text string, written bool){
		"override add": overrideByCLI, "REST": overrideByREST, "a file": overrideByFile,
	} {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			dsn := server.Database(t)
			for _, c := range guardedOverrides {
				if door == "a file" && c.override.IP == "" && !c.unseen {
					continue // apply reviews tenants and networks alone
				}
				t.Run(c.name, func(t *testing.T) { c.check(c.open(t, dsn), write) })
			}
		})
	}
}

// check writes the override, and wants the warning alone.
func (c overrideCase) check(x *terminal, write func(*terminal, overrideCase) (text string, written bool)) {
	x.t.Helper()
	if !c.unseen {
		acme := rows.Tenant{Tenant: schema.Tenant{ID: "acme", Tier: c.tier, TimeZone: "UTC"}}
		if _, _, err := x.store.SetTenant(x.t.Context(), rows.Change{Actor: "ann", Reason: "before"}, acme); err != nil {
			x.t.Fatal(err)
		}
	}
	text, written := write(x, c)
	n := strings.Count(text, "(warning)")
	if !written || n > 1 || (n == 1) != (c.warning != "") || !strings.Contains(text, c.warning) {
		x.t.Errorf("written: %t, and it shows %q; want the warning %q alone", written, text, c.warning)
	}
}

func overrideByCLI(x *terminal, c overrideCase) (string, bool) {
	o := c.override
	args := []string{"override", "add", "--kind", o.Kind, "--tenant", "acme", "--permanent"}
	for flag, value := range map[string]string{"user": o.User, "ip": o.IP, "endpoint": o.Endpoint, "policy": o.Policy} {
		if value != "" {
			args = append(args, "--"+flag, value)
		}
	}
	if !o.StartsAt.IsZero() {
		args = append(args, "--starts-at", o.StartsAt.Format(time.RFC3339))
	}
	switch o.Kind {
	case schema.KindMultiplier:
		args = append(args, "--factor", formatFactor(o.Factor))
	case schema.KindCustomLimit:
		args = append(args, "--limit", fmt.Sprint(o.Limit))
	}
	return x.byCLI(c.guardCase, false, args...)
}

func overrideByFile(x *terminal, c overrideCase) (string, bool) {
	o := c.override
	row := map[string]any{"kind": o.Kind, "tenant": "acme", "ip": o.IP, "permanent": true, "reason": "a test"}
	if o.Factor != 0 {
		row["factor"] = json.Number(formatFactor(o.Factor))
	}
	document, err := json.Marshal(map[string]any{"overrides": []any{row}})
	require.NoError(x.t, err)
	x.stdin = string(document)
	return x.byCLI(c.guardCase, false, "apply", "-f", "-")
}

func overrideByREST(x *terminal, c overrideCase) (string, bool) {
	o := c.override
	body := map[string]any{"kind": o.Kind, "permanent": true, "reason": "a test"}
	for name, value := range map[string]string{"user": o.User, "ip": o.IP, "endpoint": o.Endpoint, "policy": o.Policy} {
		if value != "" {
			body[name] = value
		}
	}
	if !o.StartsAt.IsZero() {
		body["starts_at"] = o.StartsAt
	}
	switch o.Kind {
	case schema.KindMultiplier:
		body["factor"] = formatFactor(o.Factor)
	case schema.KindCustomLimit:
		body["limit"] = o.Limit
	}
	return x.byREST(c.guardCase, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides", "", body)
}

func TestAnOddStartHasTheSameFaultByEveryDoor(t *testing.T) {
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
		body := map[string]any{"kind": "ban", "starts_at": start, "expires_at": end, "reason": "a test"}
		answers := map[string]string{}
		answers["CLI"], _ = x.byCLI(g, false, "override", "add", "--kind", "ban", "--tenant", "acme", "--starts-at", start,
			"--expires-at", end)
		answers["REST"], _ = x.byREST(g, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides", "", body)
		body["tenant"] = "acme"
		document, err := json.Marshal(map[string]any{"overrides": []any{body}})
		require.NoError(t, err)
		x.stdin = string(document)
		answers["a file"], _ = x.byCLI(g, false, "apply", "--partial", "-f", "-")
		for door, text := range answers {
			if !strings.Contains(text, want) {
				t.Errorf("%q by %s: %q, want %q", start, door, text, want)
			}
		}
	}
	for _, start := range []string{`5`, `null`, `true`, `{}`, `["2098-01-01T00:00:00Z"]`} {
		body := json.RawMessage(`{"starts_at":` + start + `,"kind":"ban","permanent":true,"reason":"a test"}`)
		text, _ := x.byREST(g, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides", "", body)
		if want := "body.starts_at: " + schema.TimeForm; text != want {
			t.Errorf("%s: %q, want %q", start, text, want)
		}
	}
}
