package resolve_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// few of everything, so that rows meet each other and the requests.
var (
	someTenant = rapid.SampledFrom([]string{"acme", "beta"})
	someUser   = rapid.SampledFrom([]string{"u1", "u2"})
	someTier   = rapid.SampledFrom([]string{"bronze", "silver", "gold", "nickel"})
	someName   = rapid.SampledFrom([]string{"daily", "user", "all", "extra"})
	somewhere  = rapid.SampledFrom(endpoints)
)

func somebody(t *rapid.T) identity.Identity {
	requests := []string{"POST /records/bulk", "POST /records/7", "GET /records/7", "GET /"}
	request := rapid.SampledFrom(requests).Draw(t, "request")
	id := identity.Identity{
		Tenant: tenant(someTenant.Draw(t, "tenant")), User: identity.Name{Kind: identity.User, ID: someUser.Draw(t, "user")},
		Tier:       rapid.OneOf(rapid.Just(""), someTier).Draw(t, "claimed tier"),
		Credential: "key", IP: "192.0.2.1", Route: "route",
		Tags: rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 2).Draw(t, "tags"),
	}
	id.Method, id.Path = cut(request)
	return id
}

func cut(request string) (method, path string) {
	i := slices.Index([]byte(request), ' ')
	return request[:i], request[i+1:]
}

func somePolicy(t *rapid.T, id int64) policy.PolicyRow {
	row := policy.PolicyRow{ID: id}
	row.Namespace = rapid.SampledFrom([]string{"", "default", "other"}).Draw(t, "namespace")
	row.Limit = schema.Limit{
		Name:       someName.Draw(t, "name"),
		Scope:      rapid.SampledFrom([]string{"tenant", "user", "global"}).Draw(t, "scope"),
		Endpoint:   somewhere.Draw(t, "endpoint"),
		Limit:      rapid.Int64Range(1, 1000).Draw(t, "limit"),
		WindowSize: rapid.Int64Range(1, 100).Draw(t, "window"),
		Algorithm:  rapid.SampledFrom([]string{"", "fixed_window"}).Draw(t, "algorithm"),
	}
	switch rapid.SampledFrom([]string{"tier", "tenant", "user", "credential", "ip", "anonymous", "all"}).Draw(t, "for") {
	case "tenant":
		row.Tenant = someTenant.Draw(t, "tenant")
	case "user":
		row.Tenant, row.User, row.Scope = someTenant.Draw(t, "tenant"), someUser.Draw(t, "user"), "user"
	case "credential":
		row.Credential, row.Scope = rapid.SampledFrom([]string{"key", "other"}).Draw(t, "credential"), "credential"
	case "ip":
		networks := []string{"192.0.2.0/31", "192.0.2.0/24", "192.0.0.0/8", "198.51.100.0/24"}
		row.IP = rapid.SampledFrom(networks).Draw(t, "network")
		row.Scope = rapid.SampledFrom([]string{"ip", "global"}).Draw(t, "scope")
	case "anonymous":
		row.For, row.Scope = schema.ForAnonymous, "ip"
	case "all":
		row.For, row.Scope = schema.ForAll, rapid.SampledFrom([]string{"ip", "global", "endpoint"}).Draw(t, "scope")
	default:
		row.Tier = someTier.Draw(t, "tier")
	}
	return row
}

func someOverride(t *rapid.T, id int64) policy.Override {
	var o schema.Override
	if end := limit.Micros(rapid.Int64Range(0, 5).Draw(t, "end")); end > 0 {
		o.ExpiresAt = instant(end)
	}
	start := limit.Micros(rapid.Int64Range(0, 4).Draw(t, "start"))
	if start > 0 && (o.ExpiresAt.IsZero() || instant(start).Before(o.ExpiresAt)) {
		o.StartsAt = instant(start)
	}
	targets := []string{"tenant", "user", "endpoint", "credential", "ip", "tag", "endpoint of all tenants"}
	switch rapid.SampledFrom(targets).Draw(t, "target") {
	case "tenant":
		o.Tenant = someTenant.Draw(t, "tenant")
	case "user":
		o.Tenant, o.User, o.Endpoint = someTenant.Draw(t, "tenant"), someUser.Draw(t, "user"), somewhere.Draw(t, "endpoint")
	case "endpoint":
		o.Tenant, o.Endpoint = someTenant.Draw(t, "tenant"), somewhere.Draw(t, "endpoint")
	case "credential":
		o.Credential = rapid.SampledFrom([]string{"key", "other"}).Draw(t, "credential")
		o.Tenant = rapid.OneOf(rapid.Just(""), someTenant).Draw(t, "tenant")
	case "ip":
		o.IP = rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}).Draw(t, "ip")
		o.Tenant = rapid.OneOf(rapid.Just(""), someTenant).Draw(t, "tenant")
	}
	if someExempt(t, &o) {
		return policytest.Override(id, o)
	}
	// Bans and exemptions are rarer than the overrides that they hide.
	kinds := []string{"ban", "exempt", "custom", "custom", "custom", "factor", "factor", "factor", "penalty", "penalty"}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "ban":
		o.Kind = schema.KindBan
	case "exempt":
		o.Kind = schema.KindExempt
	case "custom":
		o.Kind, o.Policy, o.Limit = "custom_limit", someName.Draw(t, "policy"), rapid.Int64Range(1, 1000).Draw(t, "limit")
		o.WindowSize, o.Burst = rapid.Int64Range(0, 9).Draw(t, "window"), rapid.Int64Range(0, 9).Draw(t, "burst")
	case "factor":
		o.Kind, o.Factor = schema.KindMultiplier, schema.Factor(rapid.Int64Range(1, 5000).Draw(t, "factor"))
		o.Policy = rapid.OneOf(rapid.Just(""), someName).Draw(t, "policy")
	case "penalty":
		o.StartsAt = time.Time{}
		o.Kind, o.Source = schema.KindMultiplier, schema.SourceDetector
		o.Factor = schema.Factor(rapid.Int64Range(1, 999).Draw(t, "factor"))
	}
	return policytest.Override(id, o)
}

// someExempt makes an override without a subject one that exempts a tag or an endpoint, and reports whether it has.
func someExempt(t *rapid.T, o *schema.Override) bool {
	if o.Tenant+o.Credential+o.IP != "" {
		return false
	}
	o.Kind = schema.KindExempt
	o.Tag = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "tag")
	if o.Endpoint = somewhere.Draw(t, "endpoint"); o.Tag == "" && o.Endpoint == "" {
		o.Endpoint = endpoints[0]
	}
	return true
}

func someRows(t *rapid.T) policy.Rows {
	var rows policy.Rows
	if rapid.Bool().Draw(t, "gold exists") {
		rows.Tiers = append(rows.Tiers, policy.TierRow{Name: "gold"})
	}
	for _, id := range []string{"acme", "beta"} {
		if rapid.Bool().Draw(t, "has a row") {
			rows.Tenants = append(rows.Tenants,
				schema.Tenant{ID: id, Tier: rapid.OneOf(rapid.Just(""), someTier).Draw(t, "tier")})
		}
	}
	for id := range rapid.Int64Range(0, 8).Draw(t, "policies") {
		rows.Policies = append(rows.Policies, somePolicy(t, id+1))
	}
	for id := range rapid.Int64Range(0, 8).Draw(t, "overrides") {
		rows.Overrides = append(rows.Overrides, someOverride(t, id+1))
	}
	return rows
}

// merge returns rows after changes.
func merge(rows policy.Rows, changes policy.Changes) policy.Rows {
	removed := changes.Removed
	tier := func(r policy.TierRow) string { return r.Name }
	tenant := func(r schema.Tenant) string { return r.ID }
	row := func(r policy.PolicyRow) int64 { return r.ID }
	override := func(o policy.Override) int64 { return o.ID }
	return policy.Rows{
		Version:   changes.Version,
		Tiers:     mergeTable(rows.Tiers, changes.Tiers, removed.Tiers, tier),
		Tenants:   mergeTable(rows.Tenants, changes.Tenants, removed.Tenants, tenant),
		Policies:  mergeTable(rows.Policies, changes.Policies, removed.Policies, row),
		Overrides: mergeTable(rows.Overrides, changes.Overrides, removed.Overrides, override),
	}
}

// mergeTable returns the changed rows, and the rows that were neither changed nor removed.
func mergeTable[R any, K comparable](rows, changed []R, removed []K, key func(R) K) []R {
	out := slices.Clone(changed)
	for _, row := range rows {
		replaced := slices.ContainsFunc(changed, func(r R) bool { return key(r) == key(row) })
		if !replaced && !slices.Contains(removed, key(row)) {
			out = append(out, row)
		}
	}
	return out
}

func TestApplyingChangesIsRebuildingFromAllRowsAndLeavesTheOldSnapshotAlone(t *testing.T) {
	plan := compile(t, modelConfig)
	rapid.Check(t, func(t *rapid.T) {
		rows := someRows(t)
		snapshot, _ := policy.NewSnapshot(rows, nil)
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			changes := policy.Changes{Rows: someRows(t), Removed: policy.RowKeys{
				Tiers:     rapid.SliceOfN(rapid.Just("gold"), 0, 1).Draw(t, "removed tiers"),
				Tenants:   rapid.SliceOfN(someTenant, 0, 2).Draw(t, "removed tenants"),
				Policies:  rapid.SliceOf(rapid.Int64Range(1, 9)).Draw(t, "removed policies"),
				Overrides: rapid.SliceOf(rapid.Int64Range(1, 9)).Draw(t, "removed overrides"),
			}}
			changes.Version = snapshot.Version() + 1
			id, now := somebody(t), limit.Micros(2)
			before := got(plan.With(snapshot), &id, now)
			next, faults := snapshot.Apply(changes)
			require.Empty(t, faults, "changes have faults: %v", faults)
			compareWanted(t, "the old snapshot after Apply", got(plan.With(snapshot), &id, now), before)
			rows = merge(rows, changes)
			rebuilt, _ := policy.NewSnapshot(rows, nil)
			compareSnapshots(t, plan, next, rebuilt)
			compareWanted(t, "the new snapshot", got(plan.With(next), &id, now), got(plan.With(rebuilt), &id, now))
			snapshot = next
		}
	})
}

func compareSnapshots(t *rapid.T, plan *resolve.Plan, got, want *policy.Snapshot) {
	a, b := contents(got), contents(want)
	require.Equal(t, b, a, "the snapshot has\n%q, want\n%q", a, b)
	if got.Version() != want.Version() || got.Len() != want.Len() || got.Needs("default") != want.Needs("default") ||
		got.Needs("other") != want.Needs("other") {
		t.Fatalf("version %d, %d rows, needs %+v and %+v, want %d, %d, %+v and %+v",
			got.Version(), got.Len(), got.Needs("default"), got.Needs("other"),
			want.Version(), want.Len(), want.Needs("default"), want.Needs("other"))
	}
	x, y := plan.With(got).Faults(), plan.With(want).Faults()
	require.True(t, len(x) == len(y), "unknown tiers %v, want %v", x, y)
}
