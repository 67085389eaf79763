package resolve_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const planned = `
user_from: [header.X-User]
trusted_headers: [X-User]
on_missing_tenant: limit_by_ip
tiers:
- name: one
  limits:
  - {name: monthly, scope: tenant, limit: 1000, algorithm: fixed_window, period: month, time_zone: Europe/Berlin}
  - {name: users, scope: user, limit: 1000, algorithm: fixed_window, period: day}
  - {name: rolling, scope: tenant, limit: 1000, algorithm: fixed_window, window_size: 60}
  - {name: addresses, scope: ip, limit: 1000, algorithm: fixed_window, period: month}
global:
  limits: [{name: all, scope: global, limit: 1000, algorithm: fixed_window, period: month, time_zone: Asia/Tokyo}]
`

// nextMonth is when the next month begins where now is an instant of November 2026.
func nextMonth(t testing.TB, zone string) limit.Micros {
	t.Helper()
	in, err := time.LoadLocation(zone)
	require.NoError(t, err)
	return limit.Micros(time.Date(2026, 12, 1, 0, 0, 0, 0, in).UnixMicro())
}

var inNovember = limit.Micros(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC).UnixMicro())

func of(name string) *identity.Identity {
	id := visitor
	id.Tenant = tenant(name)
	return &id
}

func zonedTenants() policy.Rows {
	return policy.Rows{Tenants: []schema.Tenant{
		{ID: "acme", TimeZone: "Asia/Kathmandu"},
		{ID: "tonga", TimeZone: "Pacific/Tongatapu"},
		{ID: "beta", Tier: "one"},
		{ID: "lost", Tier: "one", TimeZone: "Europe/Atlantis"},
	}}
}

func TestACalendarLimitIsInTheZoneOfItsTenant(t *testing.T) {
	snapshot, faults := policy.NewSnapshot(zonedTenants(), nil)
	require.Len(t, faults, 1)
	assert.Equal(t, "tenants lost: time_zone: "+schema.FieldNamed[schema.Tenant]("time_zone").Must(), faults[0].Error())
	plan := compile(t, planned).With(snapshot)
	const berlin, utc = "Europe/Berlin policy", "UTC default"
	for name, want := range map[string][2]string{
		"acme":  {"Asia/Kathmandu row", "Asia/Kathmandu row"},
		"tonga": {"Pacific/Tongatapu row", "Pacific/Tongatapu row"},
		"beta":  {berlin, utc},
		"none":  {berlin, utc},
		"lost":  {berlin, utc},
	} {
		zones := map[string]string{}
		for _, b := range plan.Explain(of(name), inNovember).Bounds {
			zones[b.Policy] = b.Zone + " " + b.ZoneFrom
		}
		assert.Equal(t, map[string]string{
			"monthly": want[0], "users": want[1], "rolling": " ", "addresses": utc, "all": "Asia/Tokyo policy",
		}, zones, name)
	}
	anonymous := visitor
	anonymous.Tenant = identity.Name{Kind: identity.IP, ID: "192.0.2.1"}
	assert.Equal(t, "default", plan.Explain(&anonymous, inNovember).Bounds[1].ZoneFrom, "an address is no tenant")
}

func TestTheZoneOfATenantCostsNoAllocation(t *testing.T) {
	rows := zonedTenants()
	rows.Overrides = numbered(toppedUp("monthly", 5, nextMonth(t, "Asia/Kathmandu"), schema.Override{Tenant: "acme"}))
	snapshot, _ := policy.NewSnapshot(rows, nil)
	plan := compile(t, planned).With(snapshot)
	var r resolve.Resolution
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for _, id := range []*identity.Identity{of("acme"), of("tonga"), of("beta")} {
			plan.ResolveAt(id, inNovember, &r)
		}
	}))
}

func toppedUp(name string, amount int64, end limit.Micros, o schema.Override) schema.Override {
	o.Kind, o.Policy, o.Amount, o.ExpiresAt = schema.KindTopUp, name, amount, instant(end)
	return o
}

func TestATopUpAddsToTheCalendarLimitsOfItsTargetAlone(t *testing.T) {
	end := nextMonth(t, "UTC")
	acme, user := schema.Override{Tenant: "acme"}, schema.Override{Tenant: "acme", User: "u"}
	atX := schema.Override{Tenant: "acme", Endpoint: "GET /x"}
	for _, c := range []struct {
		name    string
		topUp   schema.Override
		changed string // the limit that it changes; "": none
	}{
		{"the tenant's", toppedUp("monthly", 5, end, acme), "monthly"},
		{"each user's", toppedUp("users", 5, end, acme), "users"},
		{"the user's", toppedUp("users", 5, end, user), "users"},
		{"another user's", toppedUp("users", 5, end, schema.Override{Tenant: "acme", User: "v"}), ""},
		{"another tenant's", toppedUp("monthly", 5, end, schema.Override{Tenant: "beta"}), ""},
		{"a user's, of a limit per tenant", toppedUp("monthly", 5, end, user), ""},
		{"an endpoint's, of a limit per tenant", toppedUp("monthly", 5, end, atX), ""},
		{"a rolling limit", toppedUp("rolling", 5, end, acme), ""},
		{"a limit per address", toppedUp("addresses", 5, end, acme), ""},
		{"a limit in total", toppedUp("all", 5, end, acme), ""},
	} {
		plan := compile(t, planned).With(build(t, policy.Rows{Overrides: numbered(c.topUp)}))
		for _, b := range plan.Explain(of("acme"), inNovember).Bounds {
			want := int64(0)
			if b.Policy == c.changed {
				want = 5
			}
			assert.Equal(t, want, b.TopUp, "%s: %s", c.name, b.Policy)
		}
		for _, o := range plan.Explain(of("acme"), inNovember).Overrides {
			assert.Equal(t, c.changed != "", o.Applied, "%s: %s", c.name, o.Why)
		}
	}
}

func TestATopUpIsGoneAtTheFirstInstantOfTheNextPeriod(t *testing.T) {
	end := nextMonth(t, "Asia/Kathmandu")
	rows := zonedTenants()
	rows.Overrides = numbered(toppedUp("monthly", 500, end, schema.Override{Tenant: "acme"}))
	snapshot, _ := policy.NewSnapshot(rows, nil)
	plan := compile(t, planned).With(snapshot)
	var state limit.State
	for _, at := range []struct {
		now               limit.Micros
		limit, used, wait int64 // wait: until there is room for all of the limit, in µs
	}{
		{inNovember, 1500, 0, 0},
		{inNovember + 1, 1500, 1500, int64(end - inNovember - 1)},
		{end - 1, 1500, 1500, 1},
		{end, 1000, 0, 0},
		{end + 1, 1000, 1000, int64(time.Hour/time.Microsecond)*24*31 - 1},
	} {
		var r resolve.Resolution
		plan.ResolveAt(of("acme"), at.now, &r)
		l := r.Bounds[0].Policy.Limit
		quantity := l.Spec().Quantity
		l.Advance(&state, at.now)
		got := []int64{quantity, l.Status(&state, at.now).Used, int64(l.Wait(&state, at.now, quantity))}
		assert.Equal(t, []int64{at.limit, at.used, at.wait}, got, "%d", at.now-end)
		if at.used == 0 {
			l.Spend(&state, at.now, quantity)
		}
	}
}

// The limit is the commercial one plus all top-ups in force, up to the largest that there can be, and a penalty applies
// to the sum.
func TestTopUpsAddUpOnWhateverAppliesOtherwise(t *testing.T) {
	config := compile(t, planned)
	rapid.Check(t, func(t *rapid.T) {
		acme := schema.Override{Tenant: "acme"}
		want, list := int64(1000), []schema.Override(nil)
		switch rapid.SampledFrom([]string{"", "custom", "factor"}).Draw(t, "commercial") {
		case "custom":
			want = rapid.Int64Range(1, 5000).Draw(t, "limit")
			list = append(list, custom("monthly", want, acme))
		case "factor":
			factor := rapid.Int64Range(1, 5000).Draw(t, "factor")
			want = max(want*factor/1000, 1)
			list = append(list, times(schema.Factor(factor), acme))
		}
		added := int64(0)
		for range rapid.IntRange(0, 5).Draw(t, "top-ups") {
			amount := rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Just(int64(limit.MaxQuantity))).Draw(t, "amount")
			begun := rapid.Bool().Draw(t, "in force")
			end := inNovember
			if begun {
				end += limit.Second
				added = min(added+amount, limit.MaxQuantity)
			}
			list = append(list, toppedUp("monthly", amount, end, acme))
		}
		want = min(want+added, limit.MaxQuantity)
		if rapid.Bool().Draw(t, "penalty") {
			want = max(want/2, 1)
			list = append(list, penalty(500, acme))
		}
		list = rapid.Permutation(list).Draw(t, "order")
		snapshot, faults := policy.NewSnapshot(policy.Rows{Overrides: numbered(list...)}, nil)
		require.Empty(t, faults)
		var r resolve.Resolution
		for range 2 { // the second from the caches
			config.With(snapshot).ResolveAt(of("acme"), inNovember, &r)
			require.Equal(t, want, r.Bounds[0].Policy.Limit.Spec().Quantity, "%+v", list)
		}
	})
}
