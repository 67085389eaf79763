// Package policytest has policies and overrides for the tests of all interfaces that write or read them. Each interface
// must report the same fault for the faulty ones, and keep every field of the full ones.
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
	Field  string         // with the fault
	Policy map[string]any // by the names of its fields

	Message string // of a config with the policy as a limit of a tier
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

// Faulty returns policies with one faulty field. file is the path of schema/testdata/faulty_policies.json.
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
		cases[i].Message = configMessage(t, cases[i])
	}
	return cases
}

// configMessage returns the message of a config with the policy as a limit of a tier.
func configMessage(t *testing.T, c Case) string {
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

// Full returns policies of a tenant that together have every declared field except the tier. So a test fails for an
// interface that drops a new field.
func Full(t *testing.T) []schema.Policy {
	t.Helper()
	hard, soft, fair := full(t), full(t), full(t)
	hard.SoftOnly, soft.HardThresholdPct, soft.Settle = false, 0, nil // soft_only excludes the other two
	hard.Fair, soft.Fair, fair.SoftOnly = nil, nil, false
	fair.Scope, fair.Limit.Limit = schema.ScopeGlobal, schema.LeastFairRate*fair.WindowSize
	soft.Name, fair.Name = soft.Name+"-soft", fair.Name+"-fair"
	all := []schema.Policy{hard, soft, fair}
	for _, p := range all {
		if faults := policy.Faults(p); len(faults) > 0 {
			t.Fatalf("a full policy is faulty: %v", faults)
		}
	}
	return all
}

// full returns a policy with a value in every field.
func full(t *testing.T) (p schema.Policy) {
	t.Helper()
	for _, f := range schema.PolicyFields() {
		switch field := f.In(&p).(type) {
		case *string:
			if *field = cmp.Or(f.Example, "a-"+f.Name); len(f.OneOf) > 0 {
				*field = f.OneOf[0]
			}
		case *bool:
			*field = true
		case *int64:
			*field = max(f.Min, 100)
		case **int64:
			*field = new(int64(100))
		case **schema.Settle:
			*field = &schema.Settle{
				Sources: []schema.SettleSource{{From: "log.ai.*.usage.prompt_tokens", Weight: 1}, {From: "shared.n", Weight: 4}},
				Reserve: 10, ReserveHeader: "X-Max-Tokens", ReserveMax: 50, RefundOn: []int64{502, 503}, Timeout: 60,
			}
		case **schema.Fair:
			*field = &schema.Fair{Weights: map[string]int64{"gold": 10, "a b": 2}, Default: 3}
		default:
			t.Fatalf("%s is a %T, for which there is no value", f.Name, field)
		}
	}
	p.Tier = ""
	return p
}
