// Package policytest has policies and overrides for the tests of all interfaces that write or read them. Each interface
// must report the same fault for the faulty ones, and keep every field of the full ones.
package policytest

import (
	"embed"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Case is a policy with a fault.
type Case struct {
	Field  string         // with the fault
	Policy map[string]any // by the names of its fields
	Target bool           // it is not for a tier
	List   string         // of a config: global or anonymous; empty: that of a tier

	Message string // of a config with the policy as a limit; of its declaration, where a config cannot have it
}

// JSON returns the policy as JSON.
func (c Case) JSON(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(c.Policy)
	require.NoError(t, err)
	return string(text)
}

// Faulty returns policies with one faulty field. file is the path of schema/testdata/faulty_policies.json.
func Faulty(t *testing.T, file string) []Case {
	t.Helper()
	cases := readCases[Case](t, file)
	for i := range cases {
		c := &cases[i]
		good := map[string]any{"name": "daily", "scope": "tenant", "limit": 10, "window_size": 60}
		if !c.Target {
			good["tier"] = "gold"
		}
		c.Policy = changed(good, c.Policy)
		if c.Message = declaredMessage(t, *c); c.List != "" || !c.Target {
			c.Message = configMessage(t, *c)
		}
	}
	return cases
}

// readCases reads a file of cases. Numbers stay as they are spelled. LONG stands for a text of 129 bytes.
func readCases[T any](t *testing.T, file string) (cases []T) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	decoder := json.NewDecoder(strings.NewReader(strings.ReplaceAll(string(text), "LONG", strings.Repeat("x", 129))))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&cases), file)
	require.Greater(t, len(cases), 15, file)
	return cases
}

// changed returns the fields of a row after a change of some. A null removes a field.
func changed(row, change map[string]any) map[string]any {
	maps.Copy(row, change)
	maps.DeleteFunc(row, func(_ string, value any) bool { return value == nil })
	return row
}

// declaredMessage returns what the declaration says of the policy, or "" if it says nothing of the field.
func declaredMessage(t *testing.T, c Case) string {
	t.Helper()
	var p schema.Policy
	if json.Unmarshal([]byte(c.JSON(t)), &p) != nil {
		return "" // a record that only its parser reads
	}
	message := messageAt(policy.Faults(p), c.Field)
	require.True(t, message != "" || !c.Target, "%s has no fault at %s", c.JSON(t), c.Field)
	return message
}

// messageAt returns the message of the first fault at a path, or "".
func messageAt(faults []schema.Fault, path string) string {
	for _, f := range faults {
		if f.Path == path {
			return f.Message
		}
	}
	return ""
}

func configMessage(t *testing.T, c Case) string {
	t.Helper()
	limit := maps.Clone(c.Policy)
	delete(limit, "tier")
	delete(limit, "for")
	list, path := map[string]any{"limits": []any{limit}}, c.List+".limits[0]."+c.Field
	config := map[string]any{c.List: list}
	if c.List == "" {
		list["name"], path = "gold", "tiers[0].limits[0]."+c.Field
		config = map[string]any{"tiers": []any{list}}
	}
	raw, err := json.Marshal(config)
	require.NoError(t, err)
	_, _, err = schema.Parse(raw, func(config schema.Config) error {
		_, err := resolve.FromConfig(config)
		return err
	})
	var faults schema.Faults
	errors.As(err, &faults)
	message := messageAt(faults, path)
	require.NotEmpty(t, message, "a config with %s has no fault at %s: %v", c.JSON(t), c.Field, err)
	return message
}

//go:embed full_policies.json full_overrides.json
var fullRows embed.FS

// Full returns policies of each target but a tier and a whole tenant that together have every other declared field. So
// a test fails for an interface that drops a new field.
func Full(t *testing.T) []schema.Policy {
	t.Helper()
	return full(t, "full_policies.json", policy.Faults, "tier")
}

// FullOverrides returns commercial overrides that have every field of the declaration between them, so that a way that
// does not carry a new field is noticed. All but the exempt one, which is for a tag, are of tenant acme.
func FullOverrides(t *testing.T) []schema.Override {
	t.Helper()
	return full(t, "full_overrides.json", policy.OverrideFaults)
}

// full reads rows. It fails the test if one is faulty, or if none has a declared field that is not one of without.
func full[T any](t *testing.T, file string, faultsOf func(T) []schema.Fault, without ...string) (rows []T) {
	t.Helper()
	text, err := fullRows.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &rows), file)
	for _, row := range rows {
		require.Empty(t, faultsOf(row), file)
	}
	for _, f := range schema.FieldsWithout[T](without...) {
		isGiven := func(row T) bool { return !reflect.ValueOf(f.In(&row)).Elem().IsZero() }
		require.True(t, slices.ContainsFunc(rows, isGiven), "no row of %s has %s", file, f.Name)
	}
	return rows
}

// WantShown fails the test unless changes of each declared field of a policy change what show returns. hidden has the
// fields that show leaves out, with the reason. So a test fails for a new field that is not shown. where is the code to
// change for it.
func WantShown(t *testing.T, where string, hidden map[string]string, show func(schema.Policy) string) {
	t.Helper()
	bases := append(Full(t), schema.Policy{Namespace: "a-namespace", Tier: "gold", Limit: schema.Limit{
		Name: "daily", Scope: schema.ScopeTenant, Limit: 10 * schema.LeastLeased, WindowSize: 60,
	}})
	for _, f := range schema.Fields[schema.Policy]() {
		if len(f.OneOf) == 1 {
			continue // it has the same value in all policies
		}
		shown := slices.ContainsFunc(bases, func(p schema.Policy) bool { return isShown(&f, p, show) })
		switch reason := hidden[f.Name]; {
		case !shown && reason == "":
			t.Errorf("%s is not shown: show it in %s, or list it in this test with the reason. No valid change of it changes\n%s",
				f.Name, where, show(bases[0]))
		case shown && reason != "":
			t.Errorf("%s is shown, though it is hidden because %s", f.Name, reason)
		}
	}
}

func isShown(f *schema.Field[schema.Policy], p schema.Policy, show func(schema.Policy) string) bool {
	for choice := 0; ; choice++ {
		after := p
		if !change(f, &after, choice) {
			return false
		}
		if len(policy.Faults(after)) == 0 && show(after) != show(p) {
			return true
		}
	}
}

// change gives a field of p another value, if there is one of that number.
func change(f *schema.Field[schema.Policy], p *schema.Policy, choice int) bool {
	switch field := f.In(p).(type) {
	case *string:
		texts := append([]string{*field + "x", "198.51.100.7", ""}, f.OneOf...)
		texts = slices.DeleteFunc(texts, func(text string) bool { return text == *field })
		if choice < len(texts) {
			*field = texts[choice]
		}
		return choice < len(texts)
	case *int64:
		*field = []int64{*field / 2, *field + 1, *field + 60}[min(choice, 2)]
		return choice < 3 && *field != 0
	case *bool:
		*field = !*field
	case **int64:
		*field = new(int64(7))
	case **schema.Settle:
		*field = nil
	case **schema.Match:
		*field = nil
	case **schema.Fair:
		*field = nil
	case **schema.Anchor:
		*field = nil
	}
	return choice == 0
}

// Resolve returns a plan whose only limit is p, and a request that policies of WantShown are for: its tenant, user,
// credential, address and tier.
func Resolve(t *testing.T, p schema.Policy) (plan *resolve.Plan, id identity.Identity) {
	t.Helper()
	snapshot, faults := policy.NewSnapshot(policy.Rows{
		Tiers: []policy.TierRow{{Name: "gold"}}, Policies: []policy.PolicyRow{{ID: 7, Policy: p}},
	}, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	plan, err := resolve.FromConfig(schema.Config{Namespace: "a-namespace", Strategy: schema.StrategyRedis}.WithDefaults())
	require.NoError(t, err)
	return plan.With(snapshot), identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, User: identity.Name{Kind: identity.User, ID: "u_42"},
		Credential: "a-credential", IP: "203.0.113.1", Tier: "gold", Method: "POST", Path: "/records", Route: "r",
	}
}
