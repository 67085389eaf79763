package resolve_test

import (
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
			if len(faults) > 0 {
				t.Fatalf("rows have faults: %v", faults)
			}
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
				if alone := only(loser); !decides(&alone, loser) {
					t.Fatalf("override %d: %q, but alone it does not apply either", loser, o.Why)
				}
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
	ban := schema.Override{Kind: policy.Ban, Tenant: "acme"}
	exempt := schema.Override{Kind: policy.Exempt, Tenant: "acme"}
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
			{Kind: policy.Exempt, IP: "2001:db8::/32"}, {Kind: policy.Exempt, IP: "2001:db8::/64"},
		},
	} {
		rows := policy.Rows{Overrides: []policy.Override{
			policytest.Override(1, overrides[0]), policytest.Override(2, overrides[1]),
		}}
		id := identity.Identity{Tenant: tenant("acme"), IP: "2001:db8::/64", Method: "POST", Path: "/records/7"}
		for _, x := range compile(t, modelConfig).With(build(t, rows)).Explain(&id, 1000).Overrides {
			if want := "override 2 goes before it: " + why; x.Override.ID == 1 && x.Why != want {
				t.Errorf("why is %q, want %q", x.Why, want)
			}
			if x.Override.ID == 2 && !x.Applied {
				t.Errorf("%s: the winner does not apply: %s", why, x.Why)
			}
		}
	}
}
