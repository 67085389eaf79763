package policytest

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Override returns the row of an override. It is permanent unless it has an end; its reason and author are these.
func Override(id int64, o schema.Override) policy.Override {
	o.Reason, o.Author, o.Permanent = "ticket 7", "ann", o.ExpiresAt.IsZero()
	return policy.Override{ID: id, Override: o}
}

// OverrideCase is an override with a fault.
type OverrideCase struct {
	Field    string         // that is at fault
	All      bool           // it is of all tenants; otherwise it is of tenant acme
	Override map[string]any // by the names of its fields

	Row     schema.Override // the same
	Message string          // of its declaration
}

// FaultyOverrides returns overrides that are wrong in one field; file is the path of
// schema/testdata/faulty_overrides.json, which lists them.
func FaultyOverrides(t *testing.T, file string) []OverrideCase {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var cases []OverrideCase
	decoder := json.NewDecoder(strings.NewReader(strings.ReplaceAll(string(text), "LONG", strings.Repeat("x", 129))))
	decoder.UseNumber()
	if err := decoder.Decode(&cases); err != nil || len(cases) < 25 {
		t.Fatalf("%d cases in %s (%v)", len(cases), file, err)
	}
	for i := range cases {
		c := &cases[i]
		good := map[string]any{
			"kind": "multiplier", "factor": 0.5, "reason": "a test", "expires_at": "2100-01-01T00:00:00Z",
		}
		maps.Copy(good, c.Override)
		maps.DeleteFunc(good, func(_ string, value any) bool { return value == nil })
		c.Override = good
		raw, err := json.Marshal(good)
		if err == nil {
			err = json.Unmarshal(raw, &c.Row)
		}
		require.NoError(t, err)
		if c.Row.Author = "ann"; !c.All {
			c.Row.Tenant = "acme"
		}
		c.Message = c.declared(t)
	}
	return cases
}

// IsAbsent reports whether the faulty value is 0 or empty, which a row of Go has as absent.
func (c OverrideCase) IsAbsent() bool { return c.isZero() || c.Override[c.Field] == "" }

func (c OverrideCase) isZero() bool { return c.Override[c.Field] == json.Number("0") }

func (c OverrideCase) declared(t *testing.T) string {
	t.Helper()
	if c.Override[c.Field] == "" {
		return schema.FieldNamed[schema.Override](c.Field).Problem("")
	}
	if c.isZero() {
		return schema.FieldNamed[schema.Override](c.Field).Problem(int64(0))
	}
	faults := policy.OverrideFaults(c.Row)
	for _, f := range faults {
		if f.Path == c.Field {
			return f.Message
		}
	}
	t.Fatalf("%v has no fault at %s: %v", c.Override, c.Field, faults)
	return ""
}

// FullOverrides returns commercial overrides that have every field of the declaration between them, so that a way that
// does not carry a new field is noticed. All but the exempt one, which is for a tag, are of tenant acme.
func FullOverrides(t *testing.T) []schema.Override {
	t.Helper()
	var all schema.Override
	for _, f := range schema.Fields[schema.Override]() {
		switch to := f.In(&all).(type) {
		case *string:
			*to = cmp.Or(f.Example, "a-"+f.Name)
		case *int64:
			*to = max(f.Min, 100)
		case *schema.Factor:
			*to = 100
		case *time.Time:
			*to = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
		case *bool:
			*to = true
		default:
			t.Fatalf("%s is a %T, of which no test has a value", f.Name, to)
		}
	}
	start := all.StartsAt.AddDate(-1, 0, 0)
	all.Tenant, all.Source, all.StartsAt = "acme", schema.SourceCommercial, time.Time{}
	tag := all.Tag
	all.Tag = ""
	custom := all
	custom.Source, custom.StartsAt = schema.SourceScheduled, start
	custom.Kind, custom.Factor, custom.Credential, custom.IP, custom.Permanent = schema.KindCustomLimit, 0, "", "", false
	scaled := all
	scaled.Kind, scaled.Limit, scaled.WindowSize, scaled.Burst = schema.KindMultiplier, 0, 0, 0
	scaled.User, scaled.Endpoint, scaled.IP, scaled.ExpiresAt = "", "", "", time.Time{}
	banned := scaled
	banned.Kind, banned.Factor, banned.Policy, banned.Credential, banned.IP = schema.KindBan, 0, "", "", all.IP
	exempt := banned
	exempt.Kind, exempt.Tenant, exempt.IP, exempt.Tag = schema.KindExempt, "", "", tag
	list := []schema.Override{custom, scaled, banned, exempt}
	for _, o := range list {
		if faults := policy.OverrideFaults(o); len(faults) > 0 {
			t.Fatalf("a full override is faulty: %v", faults)
		}
	}
	wantEveryField(t, list)
	return list
}

// wantEveryField fails a test if no override has a field.
func wantEveryField(t *testing.T, list []schema.Override) {
	t.Helper()
	for _, f := range schema.Fields[schema.Override]() {
		given := 0
		for i := range list {
			switch value := f.In(&list[i]).(type) {
			case *string:
				given += len(*value)
			case *int64:
				given += int(*value)
			case *schema.Factor:
				given += int(*value)
			case *time.Time:
				given += max(value.Year()-1, 0)
			case *bool:
				if *value {
					given++
				}
			}
		}
		if given == 0 {
			t.Fatalf("no full override has %s", f.Name)
		}
	}
}

// TenantCase is a tenant with a fault.
type TenantCase struct {
	Name   string
	Field  string // that is at fault
	Tenant schema.Tenant
}

// Message returns what the declaration says of the field.
func (c TenantCase) Message() string { return schema.FieldNamed[schema.Tenant](c.Field).Must() }

// FaultyTenants lists tenants that are wrong in one field.
var FaultyTenants = []TenantCase{
	{"a long id", "id", schema.Tenant{ID: strings.Repeat("x", 129)}},
	{"a long tier", "tier", schema.Tenant{ID: "acme", Tier: strings.Repeat("x", 65)}},
	{"a long time zone", "time_zone", schema.Tenant{ID: "acme", TimeZone: strings.Repeat("x", 65)}},
	{"an unknown time zone", "time_zone", schema.Tenant{ID: "acme", TimeZone: "Europe/Atlantis"}},
	{"the time zone of one machine", "time_zone", schema.Tenant{ID: "acme", TimeZone: "Local"}},
}
