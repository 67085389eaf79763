// Package policytest has policies for the tests of all ways to write and read one: Faulty ones, of which each way must
// report the same field in the same words, and Full ones, of which each must keep every field.
package policytest

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Case is a policy with a fault.
type Case struct {
	Field  string         // that is at fault
	Policy map[string]any // by the names of its fields

	Message string // of the plugin's config, where the policy is a limit of a tier
}

// JSON returns the policy as JSON.
func (c Case) JSON(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(c.Policy)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Faulty returns policies that are wrong in one field; file is the list of them, schema/testdata/faulty_policies.json.
func Faulty(t *testing.T, file string) []Case {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []Case
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if err := decoder.Decode(&cases); err != nil || len(cases) < 15 {
		t.Fatalf("%d cases in %s (%v)", len(cases), file, err)
	}
	for i := range cases {
		good := map[string]any{"name": "daily", "tier": "gold", "scope": "tenant", "limit": 10, "window_size": 60}
		maps.Copy(good, cases[i].Policy)
		maps.DeleteFunc(good, func(_ string, value any) bool { return value == nil })
		cases[i].Policy = good
		cases[i].Message = ofConfig(t, cases[i])
	}
	return cases
}

// ofConfig returns what a config says of the policy as a limit of a tier.
func ofConfig(t *testing.T, c Case) string {
	t.Helper()
	limit := maps.Clone(c.Policy)
	delete(limit, "tier")
	raw, err := json.Marshal(map[string]any{"tiers": []any{map[string]any{"name": "gold", "limits": []any{limit}}}})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = schema.Parse(raw, func(config schema.Config) error {
		_, err := policy.FromConfig(config)
		return err
	})
	var faults schema.Faults
	if errors.As(err, &faults) {
		for _, f := range faults {
			if f.Path == "tiers[0].limits[0]."+c.Field {
				return f.Message
			}
		}
	}
	t.Fatalf("a config with %s has no fault at %s: %v", c.JSON(t), c.Field, err)
	return ""
}

// Full returns policies of a tenant that have every field of the declaration but the tier between them, so that a way
// that does not carry a new field is noticed.
func Full(t *testing.T) []schema.Policy {
	t.Helper()
	hard, soft := full(t), full(t)
	hard.SoftOnly, soft.HardThresholdPct = false, 0 // these two exclude each other
	soft.Name += "-soft"
	for _, p := range []schema.Policy{hard, soft} {
		if faults := policy.Faults(p); len(faults) > 0 {
			t.Fatalf("a full policy is faulty: %v", faults)
		}
	}
	return []schema.Policy{hard, soft}
}

func full(t *testing.T) (p schema.Policy) {
	t.Helper()
	for _, f := range schema.PolicyFields() {
		switch to := f.In(&p).(type) {
		case *string:
			if *to = cmp.Or(f.Example, "a-"+f.Name); len(f.OneOf) > 0 {
				*to = f.OneOf[0]
			}
		case *bool:
			*to = true
		case *int64:
			*to = max(f.Min, 100)
		case **int64:
			*to = new(int64(100))
		default:
			t.Fatalf("%s is a %T, of which no test has a value", f.Name, to)
		}
	}
	p.Tier = ""
	return p
}
