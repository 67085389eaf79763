package cli

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// dumped returns what dump writes.
func (x *terminal) dumped() string {
	x.t.Helper()
	x.output.Reset()
	if code := x.call("dump"); code != 0 {
		x.t.Fatalf("dump exits with %d: %s", code, &x.output)
	}
	return x.output.String()
}

// applies applies a document, and fails unless the output ends with what is expected.
func (x *terminal) applies(document, want string) {
	x.t.Helper()
	x.output.Reset()
	x.stdin = document
	if code := x.call("apply", "-f", "-", "--yes", "--reason", "a test"); code != 0 ||
		!strings.Contains(x.output.String(), want) {
		x.t.Fatalf("%s\nexits with %d: %s\nwant %s", document, code, &x.output, want)
	}
}

func TestADumpAppliedChangesNothingAndRestoresAnEmptyDatabase(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	store := rows.New(pgtest.Pool(t, dsn))
	by := rows.Change{Actor: "ann", Reason: "a test"}
	for _, o := range policytest.FullOverrides(t) {
		if _, _, err := store.AddOverride(t.Context(), by, rows.Override{Override: o}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range policytest.Full(t) {
		p.Namespace = "default"
		if _, _, err := store.PutPolicy(t.Context(), by, rows.Policy{Policy: p}); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range soak.Count(5, 100) {
		if _, _, err := store.Apply(t.Context(), by, rapid.Custom(someRows).Example(seed)); err != nil {
			t.Fatal(err)
		}
		document := x.dumped()
		x.applies(document, "(no changes)")
		x.applies("tenants: []\noverrides: []\n", "0 to create")
		x.applies(document, "applied")
		if again := x.dumped(); again != document {
			t.Fatalf("restored it is\n%s\nwant\n%s", again, document)
		}
	}
}

// someRows draws tenants and overrides, beside the policies that there are.
func someRows(t *rapid.T) rows.Set {
	text := rapid.StringMatching(`[a-zA-Z0-9 :"'\\{}#é-]{0,12}[a-z]`)
	set := rows.Set{KeepPolicies: true, Tenants: []rows.Tenant{}, Overrides: []rows.Override{}}
	for _, id := range rapid.SliceOfNDistinct(text, 0, 4, rapid.ID[string]).Draw(t, "tenants") {
		zone := rapid.SampledFrom([]string{"", "UTC", "Europe/Berlin"}).Draw(t, "zone")
		set.Tenants = append(set.Tenants, rows.Tenant{Tenant: schema.Tenant{
			ID: id, Tier: rapid.SampledFrom([]string{"", "gold", "no"}).Draw(t, "tier"), TimeZone: zone,
		}})
	}
	for _, id := range rapid.SliceOfNDistinct(text, 0, 4, rapid.ID[string]).Draw(t, "overridden") {
		o := schema.Override{
			Kind: "multiplier", Tenant: id, Factor: schema.Factor(rapid.Int64Range(1, 1_000_000).Draw(t, "factor")),
			Reason: text.Draw(t, "reason"), PublicNote: rapid.OneOf(rapid.Just(""), text).Draw(t, "note"),
		}
		if start := rapid.Int64Range(0, 1e15).Draw(t, "start"); start%2 == 1 {
			o.StartsAt = time.UnixMicro(start)
		}
		if o.Permanent = rapid.Bool().Draw(t, "permanent"); !o.Permanent {
			o.ExpiresAt = time.UnixMicro(rapid.Int64Range(4e15, 5e15).Draw(t, "end"))
		}
		set.Overrides = append(set.Overrides, rows.Override{Override: o})
	}
	return set
}
