package routeconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scattered has configs of the plugin on every kind of entity.
const scattered = `
plugins:
- {name: tenant-rate-limiting, config: {namespace: everything}}
- {name: tenant-rate-limiting, route: search, config: {namespace: by-reference}}
services:
- name: echo
  routes:
  - {name: records}
  - name: search
- name: shop
  plugins:
  - {name: tenant-rate-limiting, config: {namespace: shop}}
  routes:
  - name: cart
    plugins:
    - {name: tenant-rate-limiting, config: {namespace: cart}}
  - name: goods
routes:
- {name: late, service: {name: shop}}
consumers:
- username: acme
  plugins:
  - {name: tenant-rate-limiting, config: {namespace: acme}}
`

func TestTheConsumersOfAFileAreKnownByAllTheirNames(t *testing.T) {
	const text = `
plugins:
- {name: tenant-rate-limiting, config: {namespace: a}}
consumers:
- {username: ann, custom_id: acme, id: 4f1a6c1e-0000-4000-8000-000000000000}
- {username: bob}
`
	config, _, err := Load([]byte(text), "kong.yml", "")
	require.NoError(t, err)
	for name, want := range map[string]bool{
		"ann": true, "acme": true, "4f1a6c1e-0000-4000-8000-000000000000": true, "bob": true, "eve": false, "": false,
	} {
		assert.Equal(t, want, config.ConsumerNames[name], "%q is a consumer", name)
	}
}

func TestAConfigThatShowsUsageIsNotOneToChooseFrom(t *testing.T) {
	const text = `
plugins:
- {name: tenant-rate-limiting, config: {namespace: deciding}}
- {name: tenant-rate-limiting, route: usage, config: {namespace: deciding, usage_only: true}}
routes:
- {name: usage, paths: [/usage]}
`
	chosen, _, err := Load([]byte(text), "kong.yml", "")
	assert.True(t, err == nil && !chosen.UsageOnly, "without a route: %+v (%v), want the config that decides", chosen, err)
	chosen, _, err = Load([]byte(text), "kong.yml", "usage")
	assert.True(t, err == nil && chosen.UsageOnly, "for the route: %+v (%v), want its config", chosen, err)
}

func TestTheConfigOfARouteIsTheOneThatKongRuns(t *testing.T) {
	f, err := Read([]byte(scattered), "kong.yml")
	require.NoError(t, err)
	for route, want := range map[string]string{
		"records": "everything", "search": "by-reference", "cart": "cart", "goods": "shop", "late": "shop",
	} {
		chosen, err := f.choose("kong.yml", route)
		if err != nil || chosen.Namespace != want {
			t.Errorf("route %s: %v (%v), want the config of namespace %s", route, chosen, err, want)
		}
	}
	_, err = f.choose("kong.yml", "")
	const all = "everything; route search of service echo; service shop; route cart of service shop; consumer acme"
	if err == nil || !strings.Contains(err.Error(), all) {
		t.Errorf("without a route: %v, want it to list the configs: %s", err, all)
	}
}

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
		require.NoError(t, err, "%s", sources)
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
