package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestDumpIsUnchanged(t *testing.T) {
	dump := schema.Limiting("0.1.0").Dump("/usr/local/kong/tenant-rate-limiting.socket")
	var indented bytes.Buffer
	require.NoError(t, json.Indent(&indented, dump, "", " "))
	golden.Check(t, "testdata/dump.golden.json", indented.String())
}

// full returns a Config built in Go with every kind of list, without defaults.
func full() schema.Config {
	limit := schema.Limit{Name: "a", Scope: schema.ScopeTenant, Limit: 10, WindowSize: 1}
	perIP := schema.Limit{Name: "b", Scope: schema.ScopeIP, Limit: 10, WindowSize: 1}
	all := schema.Limit{Name: "c", Scope: schema.ScopeGlobal, Limit: 10, WindowSize: 1}
	return schema.Config{
		Tiers:     []schema.Tier{{Name: "t", Limits: []schema.Limit{limit}}},
		Anonymous: schema.Anonymous{Limits: []schema.Limit{perIP}},
		Global:    schema.Global{Limits: []schema.Limit{all}},
	}
}

func TestConfigBuiltInGoNeedsNoDefaults(t *testing.T) {
	if err := full().Validate(); err != nil {
		t.Error(err)
	}
	if err := (schema.Config{}).Validate(); err != nil {
		t.Errorf("zero value: %v", err)
	}
	if warnings := full().Warnings(); len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestConfigBuiltInGoIsCheckedAsStrictlyAsJSON(t *testing.T) {
	c := full()
	c.Tiers[0].Limits[0].WindowSize = -5
	c.Tiers[0].Limits[0].Scope = "org"
	c.Tiers = append(c.Tiers, schema.Tier{Name: "t"})
	c.Anonymous.Limits[0].Name = "a:b"
	c.Global.Limits[0].Algorithm = schema.AlgorithmFixedWindow
	c.Global.Limits[0].Burst = 5
	c.ErrorCode = 200
	c.TenantFrom = []string{"header.X-Org"}
	c.DefaultTier = "u"
	encoded, err := json.Marshal(c)
	require.NoError(t, err)
	_, _, want := schema.Parse(encoded)
	require.Error(t, want)
	require.Equal(t, want, c.Validate())
	require.Len(t, want, 8)
}

func TestValidateAndWithDefaultsDoNotChangeTheConfig(t *testing.T) {
	c := full()
	filled := c.WithDefaults()
	if filled.Tiers[0].Limits[0].Algorithm != schema.AlgorithmTokenBucket || filled.ErrorCode != 429 {
		t.Errorf("no defaults in %+v", filled)
	}
	require.NoError(t, c.Validate())
	if !reflect.DeepEqual(c, full()) {
		t.Errorf("changed to %+v", c)
	}
}

func TestAnExplicitlyEmptyListIsNotTheDefault(t *testing.T) {
	c := schema.Config{AnonymousConsumers: []string{}, TierFrom: []string{}}.WithDefaults()
	if len(c.AnonymousConsumers) != 0 || len(c.TierFrom) != 0 {
		t.Errorf("got %q, %q", c.AnonymousConsumers, c.TierFrom)
	}
}

func TestCapacityOfALimit(t *testing.T) {
	for _, test := range []struct {
		limit schema.Limit
		want  int64
	}{
		{schema.Limit{Limit: 50}, 50},
		{schema.Limit{Limit: 50, Algorithm: schema.AlgorithmTokenBucket, Burst: 100}, 100},
		{schema.Limit{Limit: 50, Algorithm: schema.AlgorithmLeakyBucket}, 1},
		{schema.Limit{Limit: 50, Algorithm: schema.AlgorithmLeakyBucket, Burst: 3}, 3},
		{schema.Limit{Limit: 50, Algorithm: schema.AlgorithmFixedWindow}, 50},
		{schema.Limit{Limit: 50, Algorithm: schema.AlgorithmSlidingLog}, 50},
	} {
		if got := test.limit.Capacity(); got != test.want {
			t.Errorf("%+v: %d, want %d", test.limit, got, test.want)
		}
	}
}

func TestAConfigThatShowsUsageHasNoWarningsAboutDecisions(t *testing.T) {
	config := schema.Config{Tiers: []schema.Tier{{Name: "a", Limits: []schema.Limit{
		{Name: "daily", Scope: "tenant", Limit: 9, WindowSize: 86400},
	}}}}.WithDefaults()
	deciding := len(config.Warnings())
	config.UsageOnly = true
	config.Redis.ServerName = "redis.internal"
	if showing := config.Warnings(); deciding == 0 || len(showing) != 1 || showing[0].Path != "redis.server_name" {
		t.Errorf("%d warnings where it decides; where it shows usage %v, want that of Redis", deciding, showing)
	}
}

func TestPrintingAConfigShowsOnlyWhetherSecretsAreSet(t *testing.T) {
	c := schema.Config{Redis: schema.Redis{
		Host: "redis.internal", Username: "kong", Password: "hunter2", SentinelPassword: "swordfish",
	}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for _, value := range []any{c, &c, c.Redis, &c.Redis, []schema.Redis{c.Redis}} {
			text := fmt.Sprintf(verb, value)
			if strings.Contains(text, "hunter2") || strings.Contains(text, "swordfish") {
				t.Errorf("%s of a %T shows a secret: %s", verb, value, text)
			}
			if !strings.Contains(text, "redis.internal") || strings.Count(text, "(set)") != 2 {
				t.Errorf("%s of a %T hides other values, or that secrets are set: %s", verb, value, text)
			}
		}
	}
	require.NotContains(t, fmt.Sprintf("%+v", schema.Redis{}), "(set)")
}
