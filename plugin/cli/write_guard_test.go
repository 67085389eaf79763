package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// guardCase is what is written beside rows and, if there is one, the plugin's config.
type guardCase struct {
	name    string
	config  bool // testdata/ratelimit/kong.yml, of route records
	rows    []rows.Policy
	costs   []rows.Cost
	writes  rows.Policy
	denied  string // words of why it needs force; "": it does not
	warning string // words of the only warning; "": no warning
}

// perDay is a limit per day of a policy for a tier.
func perDay(name, tier, scope string, limit int64) rows.Policy {
	return rows.Policy{Policy: schema.Policy{
		Tier:  tier,
		Limit: schema.Limit{Name: name, Scope: scope, Limit: limit, WindowSize: 86400},
	}}
}

// edited returns a policy after an edit.
func edited(p rows.Policy, edit func(*rows.Policy)) rows.Policy {
	edit(&p)
	return p
}

// ofTenant makes a policy one of a tenant.
func ofTenant(p *rows.Policy) { p.Tier, p.Tenant = "", "acme" }

// ofNetwork is a limit per day of the addresses of a network.
func ofNetwork(ip string) rows.Policy {
	return edited(perDay("net", "", "ip", 5), func(p *rows.Policy) { p.IP = ip })
}

// at gives a policy an endpoint.
func at(endpoint string) func(*rows.Policy) {
	return func(p *rows.Policy) { p.Endpoint = endpoint }
}

// guardedWrites are the same by a command, which runs the REST API, and by a file.
var guardedWrites = []guardCase{
	{
		name:   "a shared limit below a tenant's own",
		rows:   []rows.Policy{perDay("daily", "gold", "tenant", 1000)},
		writes: perDay("all", "gold", "global", 999), denied: "policy daily of tier gold alone allows one tenant 1000",
	},
	{
		name: "a shared limit below the own one of a tenant of any tier",
		rows: []rows.Policy{
			perDay("user", "gold", "user", 1), edited(perDay("daily", "", "tenant", 1000), ofTenant),
		},
		writes: perDay("all", "gold", "endpoint", 999),
		denied: "policy daily of tenant acme alone allows one tenant 1000",
	},
	{
		name: "a shared limit beside a tenant's own that a row of the tenant replaces",
		rows: []rows.Policy{
			perDay("user", "gold", "user", 1),
			edited(perDay("daily", "", "tenant", 1000), ofTenant), edited(perDay("all", "", "global", 2000), ofTenant),
		},
		writes: perDay("all", "gold", "global", 10),
	},
	{
		name: "a shared limit of other requests than a tenant's own",
		rows: []rows.Policy{
			edited(perDay("reads", "gold", "tenant", 1000), at("GET /records/{id}")),
		},
		writes: edited(perDay("all", "gold", "endpoint", 10), at("POST /records")),
	},
	{
		name: "a shared limit below a tenant's own in the config", config: true,
		writes: perDay("all", "gold", "global", 99_999),
		denied: "policy daily of tier gold in the plugin's config alone allows one tenant 100000",
	},
	{
		name: "a shared limit above a tenant's own that replaces that of the config", config: true,
		rows:   []rows.Policy{perDay("daily", "gold", "tenant", 1000)},
		writes: perDay("all", "gold", "global", 2000),
	},
	{
		name:   "a tenant's own limit up to a shared one",
		rows:   []rows.Policy{perDay("all", "gold", "global", 100)},
		writes: perDay("daily", "gold", "tenant", 100),
	},
	{
		name: "a tenant's own limit above a shared one that denies nothing",
		rows: []rows.Policy{
			edited(perDay("all", "gold", "global", 100), func(p *rows.Policy) { p.Mode = "shadow" }),
		},
		writes: perDay("daily", "gold", "tenant", 1000),
	},
	{
		name: "a tenant's own limit above a shared one of the config", config: true,
		writes:  edited(perDay("bulk", "", "tenant", 1_000_000_000), ofTenant),
		warning: "than policy heavy for POST /records/bulk in the plugin's config allows all of them: 5000 per 60 s",
	},
	{
		name: "a policy of a tier that the config and the database lack", config: true,
		writes: perDay("daily", "glod", "tenant", 1000),
		warning: `no tier is named "glod", in the plugin's config or in the database: ` +
			`policy daily of tier glod is the first of it`,
	},
	{
		name: "a policy of a tier that the config has", config: true,
		writes: perDay("daily", "essentials", "tenant", 1000),
	},
	{
		name:    "a policy of a part of what counts together",
		writes:  ofNetwork("2001:db8:0:1:8000::/65"),
		warning: "ip: unless the plugin's config has another ipv6_prefix_length, all addresses of 2001:db8:0:1::/64 count",
	},
	{
		name: "a policy of a part of what counts together in the config", config: true,
		writes:  ofNetwork("2001:db8:0:1:8000::/65"),
		warning: "ip: all addresses of 2001:db8:0:1::/64 count together, so no request has a limit for a part of it",
	},
	{
		name:   "a policy of one address, which stands for what counts together",
		writes: ofNetwork("2001:db8:0:1::7"),
	},
	{
		name: "a policy of another namespace than the config", config: true,
		rows:   []rows.Policy{perDay("hourly", "gold", "tenant", 1000)},
		writes: edited(perDay("all", "gold", "global", 1), func(p *rows.Policy) { p.Namespace = "eu" }),
		warning: `policy all of tier gold in namespace eu applies to no request of the plugin's config: ` +
			`its namespace is "eu", and the config's "default"`,
	},
	{
		name:    "a policy that cannot hold the cost of a request",
		rows:    []rows.Policy{perDay("hourly", "gold", "tenant", 1000)},
		costs:   []rows.Cost{costing("POST /exports", 101)},
		writes:  perDay("daily", "gold", "tenant", 100),
		warning: "cost of POST /exports: costs 101 tokens, more than some limits can ever hold, so they always deny it",
	},
	{
		name:   "a policy that holds the cost of a request, and one of another endpoint",
		rows:   []rows.Policy{perDay("hourly", "gold", "tenant", 100)},
		costs:  []rows.Cost{costing("POST /exports", 101), costing("GET /records", 1000)},
		writes: edited(perDay("daily", "gold", "tenant", 101), at("POST /exports")),
	},
}

// costing is the cost of an endpoint.
func costing(endpoint string, tokens int64) rows.Cost {
	return rows.Cost{Cost: schema.Cost{Endpoint: endpoint, Cost: &tokens}}
}

func TestEveryWayToWriteAPolicyGuardsItAlike(t *testing.T) {
	server := pgtest.Shared(t)
	for door, write := range map[string]func(x *terminal, g guardCase, force bool) (text string, written bool){
		"policy put": putPolicy, "apply": applyPolicy, "candidate promote": promotePolicy,
	} {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			dsn := server.Database(t)
			for _, g := range guardedWrites {
				t.Run(g.name, func(t *testing.T) {
					x := g.open(t, dsn)
					text, written := write(x, g, false)
					if written != (g.denied == "") || !strings.Contains(text, g.denied) {
						t.Fatalf("written: %t, and it shows %q; want the denial %q", written, text, g.denied)
					}
					if !written {
						text, written = write(x, g, true)
					}
					g.wantsWarning(t, text, written)
					_, err := x.store.Policy(t.Context(), g.writes.Key())
					require.NoError(t, err)
				})
			}
		})
	}
}

// open returns a terminal on a database that has the rows and no others.
func (g guardCase) open(t *testing.T, dsn string) *terminal {
	t.Helper()
	pool := pgtest.Pool(t, dsn)
	empty(t, pool)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}, store: rows.New(pool)}
	before := rows.Set{Policies: g.rows, Costs: g.costs}
	_, _, err := x.store.Apply(t.Context(), rows.Change{Actor: "ann", Reason: "before"}, before)
	require.NoError(t, err)
	return x
}

// empty deletes all limits, costs, overrides, tenants and candidates of an earlier case. A new database takes longer.
func empty(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	text := "SET LOCAL session_replication_role = replica;" // no triggers
	for _, table := range []string{
		"policies", "costs", "overrides", "tenants", "tiers", "candidates", "candidate_policies", "candidate_tenants",
	} {
		text += "DELETE FROM rate_limiter." + table + ";"
	}
	text += "SELECT setval(pg_get_serial_sequence('rate_limiter.overrides', 'id'), 1, false)" // messages name it
	pgtest.Exec(t, pool, text)
}

// wantsWarning wants a write that shows the warning alone.
func (g guardCase) wantsWarning(t *testing.T, text string, written bool) {
	t.Helper()
	n := strings.Count(text, "ratelimit ")
	if !written || n > 1 || (n == 1) != (g.warning != "") || !strings.Contains(text, g.warning) {
		t.Errorf("written: %t, and it shows %q; want the warning %q alone", written, text, g.warning)
	}
}

// writes calls the program with more flags, and reports whether it succeeded.
func (x *terminal) writes(g guardCase, force bool, args ...string) (string, bool) {
	if g.config {
		args = append(args, "--config", "testdata/ratelimit/kong.yml", "--plugin-route", "records")
	}
	if force {
		args = append(args, "--force")
	}
	x.output.Reset()
	written := x.call(append(args, "--reason", "a test")...) == 0
	return x.output.String(), written
}

func putPolicy(x *terminal, g guardCase, force bool) (string, bool) {
	p := g.writes
	args := []string{"policy", "put", p.Name, "--scope", p.Scope, "--limit", fmt.Sprint(p.Limit.Limit), "--window", "1d"}
	for flag, value := range keyQuery(p.Key()) {
		if flag != "name" {
			args = append(args, "--"+flag, value[0])
		}
	}
	return x.writes(g, force, args...)
}

func applyPolicy(x *terminal, g guardCase, force bool) (string, bool) {
	p, namespace := g.writes, g.writes.Key().Namespace
	p.Namespace = ""
	document, err := json.Marshal(map[string]any{"namespace": namespace, "policies": []rows.Policy{p}})
	require.NoError(x.t, err)
	x.stdin = string(document)
	return x.writes(g, force, "apply", "--partial", "-f", "-")
}

// inCandidate puts the policy into an open candidate, without a review.
func (g guardCase) inCandidate(x *terminal) {
	x.t.Helper()
	by := rows.Change{Actor: "ann", Reason: "before"}
	if _, err := x.store.Candidate(x.t.Context(), "july"); err == nil {
		return
	}
	_, _, err := x.store.CreateCandidate(x.t.Context(), by, "july")
	require.NoError(x.t, err)
	_, _, err = x.store.PutCandidatePolicies(x.t.Context(), by, "july", g.writes)
	require.NoError(x.t, err)
}

func promotePolicy(x *terminal, g guardCase, force bool) (string, bool) {
	g.inCandidate(x)
	return x.writes(g, force, "candidate", "promote", "july")
}

// A candidate is reviewed as a whole, and only if it may be enforced for more tenants.
func TestAnAssignmentIsGuardedAsAPromotionIs(t *testing.T) {
	g := guardCase{
		rows:   []rows.Policy{perDay("daily", "gold", "tenant", 1000)},
		writes: perDay("all", "gold", "global", 999),
	}
	x := g.open(t, pgtest.Shared(t).Database(t))
	g.inCandidate(x)
	const denied = "policy all of tier gold: policy daily of tier gold alone allows one tenant 1000 per 86400 s"
	for _, args := range [][]string{{"--percent", "5"}, {"--tenant", "acme"}} {
		args = append([]string{"candidate", "assign", "july"}, args...)
		if text, written := x.writes(g, false, args...); written || !strings.Contains(text, denied) {
			t.Errorf("%q without force: written %t, %s", args, written, text)
		}
		if text, written := x.writes(g, true, args...); !written {
			t.Errorf("%q by force: %s", args, text)
		}
	}
	if text, written := x.writes(g, false, "candidate", "assign", "july", "--percent", "4", "--remove", "acme"); !written {
		t.Errorf("for fewer tenants: %s", text)
	}
}
