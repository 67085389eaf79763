package simulate_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestValuesThatMakeNoSenseAreFaultsWithTheirPath(t *testing.T) {
	for line, want := range map[string]string{
		"nodes: 0":       "nodes: must be from 1 to 1000, got 0",
		"nodes: [1]":     "nodes: must be a whole number, got a list",
		"nodes: many":    `nodes: must be a whole number, got "many"`,
		"seed: -1":       `seed: must be a whole number, not below 0, got "-1"`,
		"lease_share: 6": "lease_share: must be from 0 to 5, got 6",
		"noodles: 3": "noodles: unknown field: remove it; the fields here are about, seed, nodes, lease_share, redis, " +
			"tenants, load, faults, config",
		"redis: {masters: 0}":                          "redis.masters: must be from 1 to 1000, got 0",
		"redis: {latency: {p50: 3}}":                   `redis.latency.p50: must be a duration with its unit, such as 10s or 500ms, got "3"`,
		"redis: {latency: {p50: 3ms, p99: 1ms}}":       "redis.latency.p99: must be p50 (3ms) or more, got 1ms",
		"redis: {latency: {p50: 3ns}}":                 "redis.latency.p50: must be 1µs or more, got 3ns",
		"redis: 3":                                     `redis: must be a mapping with the fields masters, latency, got "3"`,
		"tenants: []":                                  "tenants: must have an entry, such as {tier: gold, count: 100}",
		"tenants: [{tier: gold}]":                      `tenants[0].tier: "gold" is no tier of config.tiers: add it there, or write one of a`,
		"tenants: [{count: -3}]":                       "tenants[0].count: must be from 1 to 1000000, got -3",
		"tenants: [{zipf: .nan}]":                      "tenants[0].zipf: must be from 0 (all tenants alike) to 5, got NaN",
		"tenants: [{zipf: -1}]":                        "tenants[0].zipf: must be from 0 (all tenants alike) to 5, got -1",
		"tenants: [{share_pct: 60}]":                   "tenants: the sum of share_pct must be 100, got 60: leave one out, and it gets what the others leave",
		"tenants: [{share_pct: 100}, {share_pct: 20}]": "tenants: the sum of share_pct must be 100 at most, got 120",
		"tenants: [{share_pct: 100}, {count: 1}]":      "tenants: share_pct leaves nothing for the entries without one: lower a share, or remove these entries",
		"load: []":                                                 "load: must have a phase, such as {for: 10s, rate: 1000}",
		"load: [{rate: 3}]":                                        "load[0].for: must be above 0, such as 10s, got 0s",
		"load: [{for: 1s, rate: -3}]":                              "load[0].rate: must be from 0 to 1000000000 requests a second, got -3",
		"load: [{for: 1s, rate: x}]":                               `load[0].rate: must be a number, got "x"`,
		"load: [{for: 30h}]":                                       "load: must last 24h0m0s at most, together it is 30h0m0s: shorten a phase",
		"load: [{for: 9h, rate: 1e5}]":                             "load: must have 200000000 requests at most, got 3240000000: shorten a phase or lower its rate",
		"faults: [{kind: fire}]":                                   `faults[0].kind: must be one of redis_away, redis_hangs, redis_slow, node_dies, clock_step, got "fire"`,
		"faults: [{at: 9s, kind: redis_away, for: 1s}]":            "faults[0].at: must be from 0s to the end of the load (5s), got 9s",
		"faults: [{kind: redis_away}]":                             "faults[0].for: is required: how long it lasts, such as 5s",
		"faults: [{kind: redis_away, for: 1s, node: 1}]":           "faults[0].node: must be left out: redis_away is a fault of Redis, for all nodes",
		"faults: [{kind: redis_away, for: 1s, master: 2}]":         "faults[0].master: must be from 0 to 1, got 2",
		"faults: [{kind: redis_slow, for: 1s}]":                    "faults[0].by: is required: by how much, such as 20ms",
		"faults: [{kind: redis_slow, for: 1s, by: -1s}]":           "faults[0].by: must be above 0, got -1s",
		"faults: [{kind: redis_hangs, for: 1s, loses_data: true}]": "faults[0].loses_data: must be left out: it belongs to redis_away",
		"faults: [{kind: node_dies}]":                              "faults[0].node: is required: the number of the node, from 1",
		"faults: [{kind: node_dies, node: 3}]":                     "faults[0].node: must be from 0 to 2, got 3",
		"faults: [{kind: node_dies, node: 1, by: 1s}]":             "faults[0].by: must be left out: it belongs to redis_slow and clock_step",
		"faults: [{kind: clock_step, by: 1s}]":                     "faults[0]: needs either node or master: whose clock steps",
		"faults: [{kind: clock_step, node: 1, by: 1s, for: 1s}]":   "faults[0].for: must be left out: to set the clock back again, add another clock_step",
		"config: 3": `config: must be a mapping with the fields of the plugin's config, got "3"`,
		"config: {default_tier: a, tiers: [{name: a}], strategy: local}":                                              "config.strategy: must be redis: with local no node shares anything",
		"config: {default_tier: a, tiers: [{name: a, limits: [{name: x, scope: tenant, limit: 0, window_size: 1}]}]}": "config.tiers[0].limits[0].limit: must be > 0, got 0",
	} {
		name, _, _ := strings.Cut(line, ":")
		lines := []string{line}
		for _, other := range []string{
			"nodes: 2", "tenants: [{count: 2}]", "load: [{for: 5s, rate: 10}]", "config: {default_tier: a, tiers: [{name: a}]}",
		} {
			if !strings.HasPrefix(other, name+":") {
				lines = append(lines, other)
			}
		}
		_, err := simulate.Parse([]byte(strings.Join(lines, "\n")))
		if !errors.As(err, new(schema.Faults)) || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", line, err, want)
		}
	}
}

func TestAllFaultsOfAScenarioAreReported(t *testing.T) {
	_, err := simulate.Parse([]byte("nodes: 0\nredis: {masters: -1}"))
	const want = "config: is required: the plugin's config, as under config: in a decK file, such as {tiers: [...]}\n" +
		"nodes: must be from 1 to 1000, got 0\nredis.masters: must be from 1 to 1000, got -1\n" +
		"tenants: must have an entry, such as {tier: gold, count: 100}\n" +
		"load: must have a phase, such as {for: 10s, rate: 1000}"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestATextThatIsNoScenarioIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "the scenario is empty: ratelimit simulate --list shows those that are shipped",
		"nodes: [":            "the scenario is not YAML: ",
		"nodes: 1\n---\nx: 1": "the scenario must be a single YAML document: remove everything after ---",
		"3":                   "config: must be a mapping with the fields about, ",
		"nodes: 1\nnodes: 2":  "nodes: appears twice: remove one",
	} {
		if _, err := simulate.Parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
