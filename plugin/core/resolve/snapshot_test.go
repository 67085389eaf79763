package resolve_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// contents are all rows of a snapshot as text, sorted.
func contents(snapshot *policy.Snapshot) []string {
	var all []string
	add := func(row any) {
		text, err := json.Marshal(row)
		if err != nil {
			panic(err)
		}
		all = append(all, string(text))
	}
	for _, row := range snapshot.Tiers() {
		add(row)
	}
	for row := range snapshot.Tenants() {
		add(row)
	}
	for row := range snapshot.Policies() {
		add(row)
	}
	for row := range snapshot.Overrides() {
		add(row)
	}
	slices.Sort(all)
	return all
}

func build(t testing.TB, rows policy.Rows) *policy.Snapshot {
	t.Helper()
	snapshot, faults := policy.NewSnapshot(rows, nil)
	require.Empty(t, faults, "build: %v", faults)
	return snapshot
}

func apply(t testing.TB, snapshot *policy.Snapshot, changes policy.Changes) *policy.Snapshot {
	t.Helper()
	next, faults := snapshot.Apply(changes)
	require.Empty(t, faults, "apply: %v", faults)
	return next
}

// perTenant is a valid row: a limit of one tenant.
func perTenant(id int64, tenant string, quantity int64) policy.PolicyRow {
	return policy.PolicyRow{
		ID: id,
		Policy: schema.Policy{
			Tenant: tenant, Limit: schema.Limit{Name: "daily", Scope: "tenant", Limit: quantity, WindowSize: 60},
		},
	}
}

// banned is a valid row: a tenant that is banned for good.
func banned(id int64, tenant string) policy.Override {
	return policytest.Override(id, schema.Override{Kind: schema.KindBan, Tenant: tenant})
}

func TestABookGivesItsRowsBackAsTheyWere(t *testing.T) {
	cost := int64(0)
	rows := policy.Rows{
		Version: 7,
		Tiers:   []policy.TierRow{{Name: "gold"}},
		Tenants: []schema.Tenant{{ID: "acme", Tier: "gold", TimeZone: "Europe/Berlin"}},
		Policies: []policy.PolicyRow{
			{ID: 1, Policy: schema.Policy{Namespace: "eu", Tier: "gold", Limit: schema.Limit{
				Name: "a", Scope: "user+endpoint", Endpoint: "GET /x", Limit: 5, WindowSize: 60,
				Algorithm: "token_bucket", Burst: 9, SoftThresholdPct: 80, HardThresholdPct: 120, Mode: "shadow",
				FailMode: "closed", Accuracy: "leased", Cost: &cost,
			}}},
			{
				ID: 2,
				Policy: schema.Policy{
					Namespace: "default", Tenant: "acme",
					Limit: schema.Limit{
						Name: "b", Scope: "ip", Limit: 5, WindowSize: 60, Algorithm: "sliding_log", SoftOnly: true, Accuracy: "exact",
					},
				},
			},
		},
		Overrides: []policy.Override{
			{ID: 1, Override: schema.Override{
				Kind: schema.KindCustomLimit, Tenant: "acme", User: "u", Endpoint: "GET /x", Policy: "a", Limit: 1,
				WindowSize: 2, Burst: 3, Reason: "why", Author: "ann", ExpiresAt: instant(9), Source: schema.SourceCommercial,
			}},
			{ID: 2, Override: schema.Override{
				Kind: schema.KindMultiplier, Tenant: "acme", Credential: "key", Factor: 500, Reason: "why", Author: "bot",
				Permanent: true, Source: schema.SourceDetector,
			}},
			{ID: 3, Override: schema.Override{
				Kind: schema.KindBan, IP: "2001:db8::/64", Reason: "why", Author: "ann", Permanent: true, Source: "commercial",
			}},
			{ID: 4, Override: schema.Override{
				Kind: schema.KindExempt, Tenant: "beta", Reason: "why", Author: "ann", Permanent: true, Source: "commercial",
			}},
		},
	}
	snapshot := build(t, rows)
	var want []string
	for _, row := range []any{
		rows.Tiers[0], rows.Tenants[0], rows.Policies[0], rows.Policies[1], rows.Overrides[0], rows.Overrides[1],
		rows.Overrides[2], rows.Overrides[3],
	} {
		text, err := json.Marshal(row)
		require.NoError(t, err)
		want = append(want, string(text))
	}
	slices.Sort(want)
	if got := contents(snapshot); !slices.Equal(got, want) {
		t.Errorf("the snapshot has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if snapshot.Version() != 7 || snapshot.Len() != 7 {
		t.Errorf("version %d with %d rows, want 7 with 7", snapshot.Version(), snapshot.Len())
	}
}

func TestEveryFaultOfARowIsReportedWithItsField(t *testing.T) {
	policyRow := func(edit func(*policy.PolicyRow)) policy.Rows {
		row := perTenant(5, "acme", 10)
		edit(&row)
		return policy.Rows{Policies: []policy.PolicyRow{row}}
	}
	type overrideRow = policy.Override
	const custom = schema.KindCustomLimit
	override := func(edit func(*overrideRow)) policy.Rows {
		row := policytest.Override(5, times(500, acme))
		edit(&row)
		return policy.Rows{Overrides: []policy.Override{row}}
	}
	long, costly := strings.Repeat("x", 200), int64(99)
	tests := map[string]policy.Rows{
		"tiers 5: name: ":                      {Tiers: []policy.TierRow{{Name: ""}}},
		"tenants : id: ":                       {Tenants: []schema.Tenant{{ID: ""}}},
		"tenants acme: tier: ":                 {Tenants: []schema.Tenant{{ID: "acme", Tier: long}}},
		"policies 5: namespace: ":              policyRow(func(p *policy.PolicyRow) { p.Namespace = "a b" }),
		"policies 5: name: ":                   policyRow(func(p *policy.PolicyRow) { p.Limit.Name = `a"b` }),
		"policies 5: tenant: must be left out": policyRow(func(p *policy.PolicyRow) { p.Tier = "gold" }),
		"policies 5: tenant: ":                 policyRow(func(p *policy.PolicyRow) { p.Tenant = long }),
		"policies 5: tier: ":                   policyRow(func(p *policy.PolicyRow) { p.Tenant, p.Tier = "", long }),
		"policies 5: scope: ":                  policyRow(func(p *policy.PolicyRow) { p.Limit.Scope = "galaxy" }),
		"policies 5: algorithm: ":              policyRow(func(p *policy.PolicyRow) { p.Limit.Algorithm = "dice" }),
		"policies 5: limit: ":                  policyRow(func(p *policy.PolicyRow) { p.Limit.Limit = 0 }),
		"policies 5: window_size: ":            policyRow(func(p *policy.PolicyRow) { p.Limit.WindowSize = 1 << 60 }),
		"policies 5: mode: ":                   policyRow(func(p *policy.PolicyRow) { p.Limit.Mode = "dream" }),
		"policies 5: fail_mode: ":              policyRow(func(p *policy.PolicyRow) { p.Limit.FailMode = "ajar" }),
		"policies 5: public_note: ":            policyRow(func(p *policy.PolicyRow) { p.PublicNote = "two\nlines" }),
		"policies 5: accuracy: ":               policyRow(func(p *policy.PolicyRow) { p.Limit.Accuracy = "excat" }),
		"policies 5: cost: ":                   policyRow(func(p *policy.PolicyRow) { p.Limit.Cost = &costly }),
		"policies 5: endpoint: ":               policyRow(func(p *policy.PolicyRow) { p.Limit.Endpoint = "GET records" }),
		"overrides 5: kind: ":                  override(func(o *overrideRow) { o.Kind, o.Factor = "bless", 0 }),
		"overrides 5: source: ":                override(func(o *overrideRow) { o.Source, o.Factor = "detector", 1000 }),
		"overrides 5: user: must be left out":  override(func(o *overrideRow) { o.User, o.IP = "u", "192.0.2.1" }),
		"overrides 5: tenant: ":                override(func(o *overrideRow) { o.Tenant, o.User = "", "u" }),
		"overrides 5: ip: ":                    override(func(o *overrideRow) { o.IP = "192.0.2" }),
		"overrides 5: policy: ":                override(func(o *overrideRow) { o.Kind, o.Limit, o.Factor = custom, 5, 0 }),
		"overrides 5: limit: ": override(func(o *overrideRow) {
			o.Kind, o.Policy, o.Factor = custom, "daily", 0
		}),
		"overrides 5: factor: ":     override(func(o *overrideRow) { o.Factor = 0 }),
		"overrides 5: reason: ":     override(func(o *overrideRow) { o.Reason = " " }),
		"overrides 5: author: ":     override(func(o *overrideRow) { o.Author = "" }),
		"overrides 5: expires_at: ": override(func(o *overrideRow) { o.Permanent = false }),
		"overrides 5: endpoint: ":   override(func(o *overrideRow) { o.Endpoint = "GET /%72ecords" }),
		"overrides 5: credential: ": override(func(o *overrideRow) { o.Credential = long }),
		"overrides 5: user: ":       override(func(o *overrideRow) { o.User = long }),
		"overrides 5: burst: must be": override(func(o *overrideRow) {
			o.Kind, o.Factor, o.Policy, o.Limit, o.Burst = custom, 0, "daily", 5, -1
		}),
	}
	tests["tiers : name: "] = tests["tiers 5: name: "]
	delete(tests, "tiers 5: name: ")
	for want, rows := range tests {
		snapshot, faults := policy.NewSnapshot(rows, nil)
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), want) || snapshot.Len() != 0 {
			t.Errorf("faults are %v with %d rows in the snapshot, want one that begins %q and none",
				faults, snapshot.Len(), want)
		}
	}
}

func TestARowThatNoLongerCompilesKeepsItsLastGoodValue(t *testing.T) {
	good := policy.Rows{
		Tenants:   []schema.Tenant{{ID: "acme", Tier: "gold"}},
		Policies:  []policy.PolicyRow{perTenant(1, "acme", 10), perTenant(2, "beta", 20)},
		Overrides: []policy.Override{banned(1, "acme"), banned(2, "beta")},
	}
	bad := policy.Rows{
		Version:   2,
		Tenants:   []schema.Tenant{{ID: "acme", Tier: strings.Repeat("x", 99)}},
		Policies:  []policy.PolicyRow{perTenant(1, "acme", -1), perTenant(3, "new", -1)},
		Overrides: numbered(schema.Override{Kind: "bless"}),
	}
	snapshot := build(t, good)
	applied, faults := snapshot.Apply(policy.Changes{Rows: bad})
	if got := contents(applied); !slices.Equal(got, contents(snapshot)) || len(faults) == 0 || applied.Version() != 2 {
		t.Errorf("after bad changes version %d has\n%q, want 2 and\n%q; faults are %v",
			applied.Version(), got, contents(snapshot), faults)
	}
	// A full reload drops what is not there any longer (2), and takes from the snapshot before what is there and bad (1).
	reloaded, again := policy.NewSnapshot(bad, snapshot)
	want := contents(build(t, policy.Rows{
		Tenants: good.Tenants, Policies: good.Policies[:1], Overrides: good.Overrides[:1],
	}))
	if got := contents(reloaded); !slices.Equal(got, want) || len(again) != len(faults) {
		t.Errorf("after a reload the snapshot has\n%q, want\n%q; faults are %v", got, want, again)
	}
}

func TestAnEndpointThatIsAmbiguousWithAnotherIsAFaultUntilTheOtherIsGone(t *testing.T) {
	at := func(id int64, endpoint string) policy.PolicyRow {
		row := perTenant(id, "acme", 10)
		row.Limit.Endpoint = endpoint
		return row
	}
	snapshot := build(t, policy.Rows{Policies: []policy.PolicyRow{at(1, "GET /a/{x}"), at(2, "GET /z")}})
	for _, endpoint := range []string{"GET /{y}/b", "* /a/b"} {
		next, faults := snapshot.Apply(policy.Changes{Rows: policy.Rows{Policies: []policy.PolicyRow{at(2, endpoint)}}})
		if len(faults) != 1 || faults[0].Field != "endpoint" || faults[0].Key != "2" ||
			!slices.Equal(contents(next), contents(snapshot)) {
			t.Errorf("%s: faults are %v, and the snapshot has %q, want one about the endpoint of 2 and %q",
				endpoint, faults, contents(next), contents(snapshot))
		}
		apply(t, snapshot, policy.Changes{
			Rows: policy.Rows{Policies: []policy.PolicyRow{at(2, endpoint)}}, Removed: policy.RowKeys{Policies: []int64{1}},
		})
	}
	// the same requests, by another name
	apply(t, snapshot, policy.Changes{Rows: policy.Rows{Policies: []policy.PolicyRow{at(2, "GET /a/{other}")}}})
}

func TestAnUnknownTierIsReportedOnceWithOneOfItsTenants(t *testing.T) {
	plan := compile(t, modelConfig).With(build(t, policy.Rows{
		Tiers:    []policy.TierRow{{Name: "gold"}},
		Policies: []policy.PolicyRow{{ID: 1, Policy: schema.Policy{Tier: "tin", Limit: perTenant(1, "", 1).Limit}}},
		Tenants: []schema.Tenant{
			{ID: "a", Tier: "nickel"},
			{ID: "b", Tier: "nickel"},
			{ID: "c", Tier: "gold"},
			{ID: "d", Tier: "tin"},
			{ID: "e", Tier: "bronze"},
			{ID: "f"},
		},
	}))
	faults := plan.Faults()
	if len(faults) != 1 || faults[0].Field != "tier" || !strings.Contains("ab", faults[0].Key) ||
		!strings.Contains(faults[0].Problem, `"nickel"`) || !strings.Contains(faults[0].Problem, `tier "bronze" applies`) {
		t.Fatalf("faults are %v, want one about nickel", faults)
	}
	another := policy.Changes{Rows: policy.Rows{Tenants: []schema.Tenant{{ID: "g", Tier: "nickel"}}}}
	more := plan.With(apply(t, plan.Snapshot(), another)).Faults()
	if len(more) != 1 || more[0].Problem != faults[0].Problem {
		t.Errorf("with another tenant of the tier the faults are %v, want the same problem: %v", more, faults)
	}
}
