package resolve_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var update = flag.Bool("update", false, "rewrite golden files")

// explained is a plan in which one request meets most of what can be explained.
func explained(t *testing.T) *resolve.Plan {
	t.Helper()
	row := func(id int64, name, endpoint string, quantity int64) policy.PolicyRow {
		return policy.PolicyRow{
			ID: id,
			Policy: schema.Policy{
				Limit: schema.Limit{Name: name, Scope: "tenant", Endpoint: endpoint, Limit: quantity, WindowSize: 60},
			},
		}
	}
	rowOf := func(tenant, tier string, p policy.PolicyRow) policy.PolicyRow {
		p.Tenant, p.Tier = tenant, tier
		return p
	}
	return compile(t, modelConfig).With(build(t, policy.Rows{
		Version: 42,
		Tenants: []schema.Tenant{{ID: "acme", Tier: "silver"}, {ID: "lost", Tier: "nickel"}},
		Policies: []policy.PolicyRow{
			rowOf("acme", "", row(1, "daily", "", 300)), rowOf("acme", "", row(2, "daily", "POST /records/{id}", 30)),
			rowOf("acme", "", row(3, "daily", "POST /records/bulk", 3)),
			rowOf("", "silver", row(4, "daily", "", 500)), rowOf("", "silver", row(5, "extra", "", 50)),
		},
		Overrides: []policy.Override{
			policytest.Override(1, times(2000, acme)),
			policytest.Override(2, custom("daily", 40, schema.Override{Tenant: "acme", Endpoint: "POST /records/{id}"})),
			policytest.Override(3, times(500, schema.Override{Tenant: "acme", ExpiresAt: instant(1000)})),
			policytest.Override(4, penalty(100, acme)),
			policytest.Override(5, penalty(900, acme)),
			policytest.Override(6, times(10, schema.Override{Tenant: "acme", Endpoint: "POST /records/bulk"})),
			policytest.Override(7, times(2000, schema.Override{Tenant: "beta", IP: "192.0.2.1"})),
			policytest.Override(8, times(2000, schema.Override{Credential: "key"})),
			policytest.Override(9, schema.Override{Kind: schema.KindExempt, Tenant: "acme", User: "root"}),
			policytest.Override(10, schema.Override{
				Kind: schema.KindBan, Tenant: "acme", User: "eve", ExpiresAt: instant(5_000_000),
			}),
		},
	}))
}

func TestAnExplanationTellsWhatMatchedWhatWonAndWhy(t *testing.T) {
	plan := explained(t)
	request := func(tenantID, userID string) identity.Identity {
		id := visitor
		id.Tenant, id.User, id.Tier, id.Method, id.Path = tenant(tenantID), identity.Name{
			Kind: identity.User, ID: userID,
		}, "bronze", "POST", "/records/7"
		return id
	}
	all := map[string]resolve.Explanation{}
	for name, id := range map[string]identity.Identity{
		"limited": request("acme", "u"), "banned": request("acme", "eve"), "exempt": request("acme", "root"),
		"unknown tier": request("lost", "u"),
		"claimed tier": request("new", "u"),
		"anonymous":    {Tenant: address("192.0.2.1"), IP: "192.0.2.1", Anonymous: true, Method: "GET", Path: "/"},
	} {
		all[name] = plan.Explain(&id, 1000)
		if from := plan.TierFrom(&id); id.Tenant.Kind == identity.Tenant && from != all[name].TierFrom {
			t.Errorf("%s: the tier is from %q, and explained as from %q", name, from, all[name].TierFrom)
		}
	}
	got, err := json.MarshalIndent(all, "", "  ")
	require.NoError(t, err)
	const file = "testdata/explain.json"
	if *update {
		require.NoError(t, os.WriteFile(file, append(got, '\n'), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if string(want) != string(got)+"\n" {
		t.Errorf("the explanations are\n%s\nwant those of %s (go test -update writes them)", got, file)
	}
}

func TestAnExplanationSaysLeasedOnlyWhereItCanComeToThat(t *testing.T) {
	const config = `
strategy: %s
redis: {host: redis}
tiers: [{name: one, limits: [
  {name: bucket, scope: tenant, limit: 500, window_size: 60},
  {name: window, scope: tenant, limit: 500, window_size: 60, algorithm: fixed_window},
  {name: small, scope: tenant, limit: 499, window_size: 60},
  {name: shallow, scope: tenant, limit: 500, window_size: 60, burst: 100},
  {name: sliding, scope: tenant, limit: 500, window_size: 60, algorithm: sliding_window},
  {name: costly, scope: tenant, limit: 500, window_size: 60, cost: 476},
  {name: exact, scope: tenant, limit: 500, window_size: 60, accuracy: exact}]}]`
	for strategy, want := range map[string][]string{
		"redis": {"leased", "leased", "exact", "exact", "exact", "exact", "exact"},
		"local": {"exact", "exact", "exact", "exact", "exact", "exact", "exact"},
	} {
		id := visitor
		e := compile(t, fmt.Sprintf(config, strategy)).Explain(&id, 1)
		require.Equal(t, len(want), len(e.Bounds), "strategy %s: bounds", strategy)
		for i, b := range e.Bounds {
			assert.Equal(t, want[i], b.Accuracy, "strategy %s, policy %s: it", strategy, b.Policy)
		}
	}
}

func TestWhyAnOverrideHoldsOrDoesNotIsWhatTheResolutionDid(t *testing.T) {
	acme := schema.Override{Tenant: "acme"}
	const uncountable = "its numbers cannot be counted exactly by the algorithm of the limit, which stays as it was"
	for what, test := range map[string]struct {
		overrides []schema.Override
		want      []string
	}{
		"an expired one": {
			[]schema.Override{times(500, schema.Override{Tenant: "acme", ExpiresAt: instant(1000)})}, []string{"it has expired"},
		},
		"one that has not begun": {
			[]schema.Override{times(500, schema.Override{Tenant: "acme", StartsAt: instant(2_000_000)})},
			[]string{"it starts at 1970-01-01T00:00:02Z"},
		},
		"one that began later": {
			[]schema.Override{
				custom("t", 7, schema.Override{Tenant: "acme", StartsAt: instant(900)}),
				custom("t", 8, schema.Override{Tenant: "acme", StartsAt: instant(800)}), custom("t", 9, acme),
			},
			[]string{
				"it changes t", "override 1 goes before it: it starts later", "override 1 goes before it: it starts later",
			},
		},
		"one of several limits": {[]schema.Override{times(500, acme)}, []string{"it changes t, te, u, ue, c"}},
		"a younger one": {
			[]schema.Override{custom("t", 7, acme), custom("t", 8, acme)},
			[]string{"override 2 goes before it: it is younger", "it changes t"},
		},
		"too much for a log": {[]schema.Override{custom("u", 20_000, acme)}, []string{uncountable}},
		"behind too much for a log": {
			[]schema.Override{custom("u", 50, acme), custom("u", 20_000, acme)},
			[]string{"override 2 goes before it: it is younger", uncountable},
		},
		"superseded and uncountable": {
			[]schema.Override{times(500, acme), custom("t", 8, acme), custom("u", 20_000, acme)},
			[]string{
				"it changes te, ue, c; on t override 2 goes before it: a custom limit goes before a multiplier; " +
					"on u override 3 goes before it: a custom limit goes before a multiplier",
				"it changes t", uncountable,
			},
		},
		"of a limit that is not there": {
			[]schema.Override{custom("other", 7, acme)}, []string{"no limit of the request is one that it changes"},
		},
	} {
		rows := policy.Rows{Overrides: numbered(test.overrides...)}
		e := compile(t, overridden).With(build(t, rows)).Explain(&visitor, 1000)
		for _, x := range e.Overrides {
			if want := test.want[x.Override.ID-1]; x.Why != want || x.Applied != strings.HasPrefix(want, "it changes") {
				t.Errorf("%s: override %d is applied: %t, because %q, want %q", what, x.Override.ID, x.Applied, x.Why, want)
			}
		}
	}
}

var namesWinner = regexp.MustCompile(`^override (\d+) (goes before it: |bans|exempts)`)

func TestTheExplainedWinnerIsTheOneThatTheResolutionApplies(t *testing.T) {
	plan := compile(t, modelConfig)
	rapid.Check(t, func(t *rapid.T) {
		rows := someRows(t)
		id, now := somebody(t), limit.Micros(rapid.Int64Range(1, 4).Draw(t, "now"))
		in := func(overrides []policy.Override) (*resolve.Plan, resolve.Resolution) {
			rows := rows
			rows.Overrides = overrides
			snapshot, faults := policy.NewSnapshot(rows, nil)
			require.Empty(t, faults, "rows have faults: %v", faults)
			with := plan.With(snapshot)
			var r resolve.Resolution
			with.ResolveAt(&id, now, &r)
			return with, r
		}
		with, all := in(rows.Overrides)
		only := func(ids ...int64) resolve.Resolution {
			_, r := in(slices.DeleteFunc(slices.Clone(rows.Overrides), func(o policy.Override) bool {
				return !slices.Contains(ids, o.ID)
			}))
			return r
		}
		explained := with.Explain(&id, now).Overrides
		for _, x := range explained {
			loser := x.Override.ID
			if x.Applied != decides(&all, loser) {
				t.Fatalf("override %d is explained as applied: %t (%s), and resolved otherwise", loser, x.Applied, x.Why)
			}
			for _, o := range x.Outcomes {
				match := namesWinner.FindStringSubmatch(o.Why)
				if match == nil {
					continue
				}
				winner, err := strconv.ParseInt(match[1], 10, 64)
				require.NoError(t, err)
				both := only(winner, loser)
				if !decidesOn(&both, winner, o.Limit) || (o.Limit != "" && decidesOn(&both, loser, o.Limit)) {
					t.Fatalf("override %d: %q, but of these two the winner is another", loser, o.Why)
				}
				alone := only(loser)
				require.True(t, decides(&alone, loser), "override %d: %q, but alone it does not apply either", loser, o.Why)
			}
		}
	})
}

// decides reports whether an override bans or exempts a request, or changes one of its limits.
func decides(r *resolve.Resolution, id int64) bool {
	return (r.Banned || r.Exempt) && r.Override == id ||
		slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool { return b.Override == id || b.Penalty == id })
}

// decidesOn is decides for one limit, or for the request as a whole if name is empty.
func decidesOn(r *resolve.Resolution, id int64, name string) bool {
	if name == "" {
		return (r.Banned || r.Exempt) && r.Override == id
	}
	return slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool {
		return b.Policy.Name == name && (b.Override == id || b.Penalty == id)
	})
}

func TestWhyAnOverrideGoesBeforeAnotherNamesWhatDecided(t *testing.T) {
	acme := schema.Override{Tenant: "acme"}
	write := func(o schema.Override, endpoint string) schema.Override {
		o.Endpoint = endpoint
		return o
	}
	ban := schema.Override{Kind: schema.KindBan, Tenant: "acme"}
	exempt := schema.Override{Kind: schema.KindExempt, Tenant: "acme"}
	short := ban
	short.ExpiresAt = instant(5_000_000)
	for why, overrides := range map[string][2]schema.Override{ // the first loses
		"a ban goes before an exemption": {exempt, write(ban, "POST /records/{id}")},
		"its ban lasts longer":           {write(short, "POST /records/{id}"), ban},
		"its factor is smaller": {
			penalty(900, schema.Override{Tenant: "acme", Policy: "daily"}), penalty(100, acme),
		},
		"endpoint is more specific than tenant": {exempt, write(exempt, "POST /records/{id}")},
		"its endpoint is narrower": {
			write(exempt, "* /records/*"), write(exempt, "POST /records/{id}"),
		},
		"a custom limit goes before a multiplier": {times(500, acme), custom("daily", 7, acme)},
		"it is younger": {custom("daily", 6, acme), custom("daily", 7, acme)},
		"it names its policy": {
			times(500, acme), times(600, schema.Override{Tenant: "acme", Policy: "daily"}),
		},
		"its network is narrower": {
			{Kind: schema.KindExempt, IP: "2001:db8::/32"}, {Kind: schema.KindExempt, IP: "2001:db8::/64"},
		},
	} {
		rows := policy.Rows{Overrides: []policy.Override{
			policytest.Override(1, overrides[0]), policytest.Override(2, overrides[1]),
		}}
		id := identity.Identity{Tenant: tenant("acme"), IP: "2001:db8::/64", Method: "POST", Path: "/records/7"}
		for _, x := range compile(t, modelConfig).With(build(t, rows)).Explain(&id, 1000).Overrides {
			want := "override 2 goes before it: " + why
			assert.True(t, x.Override.ID != 1 || x.Why == want, "why is %q, want %q", x.Why, want)
			assert.True(t, x.Override.ID != 2 || x.Applied, "%s: the winner does not apply: %s", why, x.Why)
		}
	}
}
