package routeconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// consumed is a decK file whose consumers are several tenants, with the sources of a config.
const consumed = `
plugins:
- {name: tenant-rate-limiting, config: {anonymous_consumers: [guest], trusted_headers: [X-Tier, X-Org], %s}}
consumers:
- {username: acme-web, custom_id: acme, tags: [team:a, "tier:gold", "tier:free"]}
- {username: acme-batch, custom_id: acme, tags: ["tier:silver"]}
- {username: globex, custom_id: globex, tags: ["plan:silver"]}
- {username: initech, id: 4bd0bd21-9c83-4c1e-a4a5-fd3dbd5a6a3c, tags: &bronze ["tier:bronze"]}
- {username: guest, custom_id: guest, tags: ["tier:gold"]}
- {username: untagged, custom_id: untagged}
- {username: hooli, custom_id: hooli, tags: *bronze}
`

func TestTheTenantAndTierOfAConsumerAreReadFromTheFile(t *testing.T) {
	for sources, want := range map[string]string{
		"tenant_from: [consumer.custom_id], tier_from: [consumer.tag.tier, consumer.tag.plan]": "" +
			"acme gold consumer.tag.tier, acme silver consumer.tag.tier, globex silver consumer.tag.plan, " +
			"hooli bronze consumer.tag.tier",
		"tenant_from: [consumer.custom_id, consumer.username], tier_from: [consumer.tag.plan, header.X-Tier]": "" +
			"globex silver consumer.tag.plan",
		"tenant_from: [consumer.id, consumer.username], tier_from: [consumer.tag.tier]": "" +
			"4bd0bd21-9c83-4c1e-a4a5-fd3dbd5a6a3c bronze consumer.tag.tier",
		"tenant_from: [consumer.custom_id], tier_from: [jwt.tier, consumer.tag.tier]":     "",
		"tenant_from: [header.X-Org, consumer.custom_id], tier_from: [consumer.tag.tier]": "",
	} {
		config, _, err := Load(fmt.Appendf(nil, consumed, sources), "kong.yml", "")
		if err != nil {
			t.Fatalf("%s: %v", sources, err)
		}
		var got []string
		for _, c := range config.Consumers {
			got = append(got, strings.Join([]string{c.Tenant, c.Tier, c.Source}, " "))
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("%s:\n%s, want\n%s", sources, all, want)
		}
	}
}

func TestAConfigReadsTheConsumersOfItsFileByItsOwnSources(t *testing.T) {
	const text = `
plugins:
- {name: tenant-rate-limiting, config: {tenant_from: [consumer.username]}}
- name: tenant-rate-limiting
  route: search
  config: {tenant_from: [consumer.custom_id], tier_from: [consumer.tag.plan]}
routes:
- {name: search, paths: [/search]}
- {name: other, paths: [/]}
consumers:
- {username: acme-web, custom_id: acme, tags: ["tier:gold", "plan:free"]}
`
	for route, want := range map[string]ConsumerTier{
		"search": {Tenant: "acme", Tier: "free", Source: "consumer.tag.plan"},
		"other":  {Tenant: "acme-web", Tier: "gold", Source: "consumer.tag.tier"},
	} {
		config, _, err := Load([]byte(text), "kong.yml", route)
		if err != nil || !slices.Equal(config.Consumers, []ConsumerTier{want}) {
			t.Errorf("route %s: %+v (%v), want %+v", route, config, err, want)
		}
	}
}
