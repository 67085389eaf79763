package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// tagged names tiers by the tags of its consumers. Of acme's consumers one has another tier than its tenant's others.
const tagged = `
plugins:
- name: tenant-rate-limiting
  config:
    tenant_from: [consumer.custom_id]
    tier_from: [consumer.tag.tier]
    default_tier: free
    on_missing_tenant: skip
    exempt: [{tag: staff}]
    tiers:
    - {name: free, limits: [{name: minute, scope: tenant, limit: 1, window_size: 60}]}
    - {name: gold, limits: [{name: minute, scope: tenant, limit: 10, window_size: 60}]}
consumers:
- {username: globex-web, custom_id: globex, tags: [team:a, "tier:gold"]}
- {username: acme-web, custom_id: acme, tags: ["tier:gold"]}
- {username: acme-batch, custom_id: acme, tags: ["tier:free"]}
- {username: initech, custom_id: initech}
- {username: staff, custom_id: ours, tags: [staff]}
`

func TestATierThatALogLacksIsThatOfItsConsumerInTheFile(t *testing.T) {
	const kong = `{"started_at":1795176000000,"request":{"method":"GET","uri":"/"},"consumer":%s}`
	csv := func(columns, values string) []string {
		return []string{"started_at," + columns, "2026-11-20T12:00:00Z," + values}
	}
	nginx := func(user string) []string {
		return []string{`192.0.2.1 - ` + user + ` [20/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"`}
	}
	for name, c := range map[string]struct {
		log     []string
		want    string
		without int64 // requests without a tier
	}{
		"a username of nginx":           {nginx("globex-web"), "globex gold", 0},
		"a username that is not there":  {nginx("hooli"), "", 0},
		"a custom id":                   {csv("consumer.custom_id", "globex"), "globex gold", 0},
		"a custom id that is not there": {csv("consumer.custom_id", "hooli"), "hooli free", 1},
		"a consumer without a tag":      {csv("consumer.username", "initech"), "initech free", 1},
		"a tag in the log":              {csv("consumer.username,consumer.tag.tier", "globex-web,free"), "globex free", 0},
		"one of a tenant's consumers":   {csv("consumer.username", "acme-batch"), "acme free", 0},
		"a consumer of Kong without tags": {
			[]string{fmt.Sprintf(kong, `{"id":"4bd0bd21","username":"globex-web","tags":["team:b"]}`)}, "globex gold", 0,
		},
		"a tenant":                        {csv("tenant", "globex"), "globex gold", 0},
		"a tenant with a tier in the log": {csv("tenant,tier", "globex,free"), "globex free", 0},
		"a tenant of two tiers":           {csv("tenant", "acme"), "acme free", 1},
		"a tenant that is not there":      {csv("tenant", "hooli"), "hooli free", 1},
		"an exempt consumer":              {csv("consumer.username", "staff"), "", 0},
	} {
		l := logOf(t, replay.LogOptions{}, c.log...)
		report, _ := replayed(t, tagged, replay.GatewayOptions{StatesTenants: l.StatesTenants()}, l)
		var rows []string
		for _, row := range report.Rows {
			rows = append(rows, strings.TrimSpace(row.Tenant+" "+row.Tier))
		}
		if report.Requests != 1 || report.Undecided != 0 {
			t.Errorf("%s: %+v", name, report)
		}
		if got := strings.Join(rows, ", "); got != c.want || report.WithoutTier != c.without {
			t.Errorf("%s: %q, %d without a tier; want %q, %d", name, got, report.WithoutTier, c.want, c.without)
		}
	}
}

func TestATierOfARowAndAConfigOfOneTierNeedNoTierInTheLog(t *testing.T) {
	rows, faults := policy.NewSnapshot(policy.Rows{Tenants: []schema.Tenant{{ID: "hooli", Tier: "gold"}}}, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	beforeGold, _, _ := strings.Cut(tagged, "    - {name: gold")
	for config, o := range map[string]replay.GatewayOptions{tagged: {Rows: rows}, beforeGold: {}} {
		l := logOf(t, replay.LogOptions{}, "started_at,consumer.custom_id", "2026-11-20T12:00:00Z,hooli")
		if report, _ := replayed(t, config, o, l); len(report.Rows) != 1 || report.WithoutTier != 0 {
			t.Errorf("%d requests are without a tier, of %+v", report.WithoutTier, report.Rows)
		}
	}
}
