package schema_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestDumpIsUnchanged(t *testing.T) {
	dump := schema.Dump("0.1.0", "/usr/local/kong/tenant-rate-limiting.socket")
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
	want := schema.Faults{
		{Path: "tenant_from[0]", Message: "reads header X-Org, which a client can set as it likes: list it in " +
			"trusted_headers if something in front of Kong sets it"},
		{Path: "default_tier", Message: `names no tier: "u"`},
		{Path: "tiers[0].limits[0].scope", Message: `must be one of tenant, user, credential, ip, endpoint, global, ` +
			`tenant+endpoint, user+endpoint, got "org"`},
		{Path: "tiers[0].limits[0].window_size", Message: "must be > 0, got -5"},
		{Path: "tiers[1].name", Message: `is the name of tiers[0] too: "t"`},
		{Path: "anonymous.limits[0].name", Message: `must be 1 to 64 letters, digits, dots, dashes or underscores, ` +
			`got "a:b"`},
		{Path: "global.limits[0].algorithm", Message: `must be token_bucket or leaky_bucket, because only these have ` +
			`a burst, got "fixed_window"`},
		{Path: "error_code", Message: "must be >= 400, got 200"},
	}
	err := c.Validate()
	var faults schema.Faults
	if !errors.As(err, &faults) || !reflect.DeepEqual(faults, want) {
		t.Errorf("got\n%v\nwant\n%v", err, want)
	}
	if got, want := strings.Count(err.Error(), "\n"), len(want)-1; got != want {
		t.Errorf("the error has %d line breaks, want %d", got, want)
	}
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

func TestKongSchemaCannotBeChangedByItsReader(t *testing.T) {
	first := schema.KongSchema()
	first[0] = 'x'
	if second := schema.KongSchema(); second[0] != '{' {
		t.Error("a reader changed the schema for the next")
	}
}

// Kong requires a record unless its schema says otherwise, fills it with defaults, and reports its required fields as
// missing. It would then deny a config without anonymous and global.
func TestRecordsOfTheKongSchemaDeclareWhetherTheyAreRequired(t *testing.T) {
	var document map[string]any
	require.NoError(t, json.Unmarshal(schema.KongSchema(), &document))
	document["type"], document["required"] = "record", true
	seen := 0
	var walk func(path string, definition map[string]any)
	walk = func(path string, definition map[string]any) {
		fields, _ := definition["fields"].([]any)
		for _, entry := range fields {
			for name, value := range entry.(map[string]any) {
				field := value.(map[string]any)
				if _, says := field["required"].(bool); field["type"] == "record" && !says {
					t.Errorf("%s.%s is a record that does not say whether it is required", path, name)
				}
				seen++
				walk(path+"."+name, field)
			}
		}
		for _, inner := range []string{"elements", "values"} {
			if field, ok := definition[inner].(map[string]any); ok {
				walk(path+"."+inner, field)
			}
		}
	}
	walk("schema", document)
	if seen == 0 {
		t.Error("found no field")
	}
}
