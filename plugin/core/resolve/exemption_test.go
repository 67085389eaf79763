package resolve_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// exempting is a config with limits of all kinds of buckets; entries go into its list exempt.
const exempting = `
user_from: [consumer.id]
tiers: [{name: a, limits: [
  {name: t, scope: tenant, limit: 10, window_size: 60}, {name: u, scope: user, limit: 10, window_size: 60},
  {name: te, scope: tenant+endpoint, endpoint: "* /exports/{id}", limit: 10, window_size: 60},
  {name: c, scope: credential, limit: 10, window_size: 60}, {name: i, scope: ip, limit: 10, window_size: 60}]}]
global: {limits: [{name: all, scope: global, limit: 10, window_size: 60},
  {name: shared, scope: endpoint, endpoint: "* /exports/*", limit: 10, window_size: 60}]}
exempt: [%s]
`

// caller is a request of acme that has all that an entry can name.
func caller() identity.Identity {
	return identity.Identity{
		Tenant: tenant("acme"), User: identity.Name{Kind: identity.User, ID: "u_42"}, Credential: "k-1",
		IP: "192.0.2.7", Address: netip.MustParseAddr("192.0.2.7"), Tags: []string{"tier:gold", "partner"},
		Method: "GET", Path: "/exports/7", Route: "exports",
	}
}

// resolved returns the resolution of a request by the config alone.
func resolved(plan *resolve.Plan, id identity.Identity) resolve.Resolution {
	var r resolve.Resolution
	plan.ResolveAt(&id, 0, &r)
	return r
}

func TestAnEntryExemptsTheRequestsThatMatchAllItsFields(t *testing.T) {
	for entry, test := range map[string]struct {
		by      string
		another func(*identity.Identity) // makes the request that of another
	}{
		`tenant: acme`:             {"tenant", func(id *identity.Identity) { id.Tenant.ID = "acme2" }},
		`tenant: acme, user: u_42`: {"user", func(id *identity.Identity) { id.Tenant.ID = "globex" }},
		`user: u_42, tenant: acme`: {"user", func(id *identity.Identity) { id.User.ID = "u_43" }},
		`tag: partner`:             {"tag", func(id *identity.Identity) { id.Tags = []string{"partners", "PARTNER"} }},
		`tag: "tier:gold"`:         {"tag", func(id *identity.Identity) { id.Tags = nil }},
		`cidr: 192.0.2.0/24`: {
			"cidr", func(id *identity.Identity) { id.Address = netip.MustParseAddr("192.0.3.0") },
		},
		`cidr: 192.0.2.7/32`:          {"cidr", func(id *identity.Identity) { id.Address = netip.Addr{} }},
		`endpoint: "GET /exports/*"`:  {"endpoint", func(id *identity.Identity) { id.Method = "POST" }},
		`endpoint: "* /exports/{id}"`: {"endpoint", func(id *identity.Identity) { id.Path = "/exports/7/8" }},
		`tenant: acme, user: u_42, tag: partner, cidr: 192.0.0.0/16, endpoint: "GET /*"`: {
			"user+tag+cidr+endpoint", func(id *identity.Identity) { id.Tags = id.Tags[:1] },
		},
		`tenant: acme, endpoint: "GET /*"`: {
			"tenant+endpoint", func(id *identity.Identity) { id.Tenant = address("acme") },
		},
		`tag: partner, cidr: 192.0.2.0/25`: {
			"tag+cidr", func(id *identity.Identity) { id.Address = netip.MustParseAddr("192.0.2.128") },
		},
	} {
		plan := compile(t, fmt.Sprintf(exempting, "{"+entry+"}"))
		id := caller()
		want := resolve.Exemption{By: test.by}
		if r := resolved(plan, id); !r.Exempt || r.Exemption != want || len(r.Bounds) > 0 || r.Tier != "a" {
			t.Errorf("%s: exempt %v by %+v with %d bounds, want it exempt by %+v", entry, r.Exempt, r.Exemption,
				len(r.Bounds), want)
		}
		test.another(&id)
		if r := resolved(plan, id); r.Exempt || r.Exemption.By != "" || len(r.Bounds) == 0 {
			t.Errorf("%s: a request of another is exempt by %+v", entry, r.Exemption)
		}
	}
}

func TestOfSeveralEntriesThatMatchTheFirstCounts(t *testing.T) {
	plan := compile(t, fmt.Sprintf(exempting, `{tenant: globex}, {cidr: 192.0.2.0/24}, {tenant: acme},
		{endpoint: "GET /exports/7"}, {cidr: 192.0.0.0/8, tag: partner}, {tenant: acme}`))
	id := caller()
	for _, want := range []string{"exempt[1]", "exempt[2]", "exempt[3]"} {
		if r := resolved(plan, id); r.Exemption.Source() != want {
			t.Errorf("exempt by %s, want %s", r.Exemption.Source(), want)
		}
		if id.Address.IsValid() {
			id.Address = netip.Addr{}
		} else {
			id.Tenant.ID = "initech"
		}
	}
}

func TestNoSpellingOfAPathMakesItThatOfAnExemptEndpoint(t *testing.T) {
	const entries = `{endpoint: "GET /healthz"}, {endpoint: "* /public/*"}`
	for target, exempt := range map[string]bool{
		"/healthz": true, "/healthz/": true, "//healthz": true, "/%68ealthz": true, "/x/../healthz?full": true,
		"/public/a/b": true, "/public/%C3%A9": true,
		"/healthz/../exports/7": false, "/healthz/%2e%2e/exports/7": false, "/healthz%2f..%2fexports": false,
		"/public/..%2fexports": false, "/public/%2e%2e%2fexports": false, "/public/..%5cexports": false,
		"/public/..\\exports": false, "/public/..;/exports": false, "/public/..;a=b/exports": false,
		"/public/%252e%252e%252fexports": false, "/public/..%c0%af": false, "/public/a%00": false, "/public/..%20": false,
		"/public/..#": false, "/public/%23": false, "/public": false, "/public/": false, "/public/../exports": false,
		"/exports%2F..%2Fpublic%2Fx": false, "/public%2F..%3F/x": false, "/a%3F%2F..%2F..%2Fpublic%2Fx": false,
		"/HEALTHZ": false, "/healthz.json": false, "/healthz;x": false,
	} {
		for _, decode := range []bool{false, true} {
			plan := compile(t, fmt.Sprintf("decode_path: %v\n%s", decode, fmt.Sprintf(exempting, entries)))
			id := caller()
			normal := identity.NormalizePath(target)
			id.Path = plan.Rules.EndpointPath(normal)
			id.PathDecoded = id.Path != normal
			if r := resolved(plan, id); r.Exempt != exempt {
				t.Errorf("%s (decode_path %v) as %q: exempt %v, want %v", target, decode, id.Path, r.Exempt, exempt)
			}
		}
	}
}

func TestAPreflightIsFreeOfTheLimitsOfTenantsAlone(t *testing.T) {
	plan := compile(t, "exempt_preflights: true\n"+fmt.Sprintf(exempting, ""))
	id := caller()
	id.Method = "OPTIONS"
	if r := resolved(plan, id); r.Preflight || len(r.Bounds) != 7 {
		t.Errorf("an OPTIONS request that is no preflight has %d bounds, want 7", len(r.Bounds))
	}
	id.Preflight = true
	r := resolved(plan, id)
	var names []string
	for _, b := range r.Bounds {
		names = append(names, b.Policy.Name)
	}
	slices.Sort(names)
	if want := []string{"all", "i", "shared"}; !slices.Equal(names, want) || r.Exempt || !r.Preflight {
		t.Errorf("a preflight has the bounds %q, want %q", names, want)
	}
	assert.Equal(t, "exempt_preflights", r.Exemption.Source(), "it is exempt by")
	id.Tenant, id.User = address("192.0.2.7"), identity.Name{}
	if r := resolved(plan, id); len(r.Bounds) != 6 { // not u, which it has no name for
		t.Errorf("a preflight whose address stands in for a tenant has %d bounds, want all 6", len(r.Bounds))
	}
	off := compile(t, fmt.Sprintf(exempting, ""))
	if r := resolved(off, id); r.Preflight {
		t.Error("a preflight is exempt although the config does not say so")
	}
}

func TestABanGoesBeforeEveryExemptionAndARowBeforeTheConfig(t *testing.T) {
	plan := compile(t, "exempt_preflights: true\n"+fmt.Sprintf(exempting, `{tenant: acme}, {cidr: 192.0.2.0/24}`))
	for name, test := range map[string]struct {
		row    schema.Override
		banned bool
		source string
	}{
		"a ban of the tenant":     {schema.Override{Kind: schema.KindBan, Tenant: "acme"}, true, ""},
		"a ban of the address":    {schema.Override{Kind: schema.KindBan, IP: "192.0.2.7"}, true, ""},
		"a detector's ban":        {schema.Override{Kind: schema.KindBan, Tenant: "acme", Source: "detector"}, true, ""},
		"an exemption by a row":   {schema.Override{Kind: schema.KindExempt, Tenant: "acme"}, false, "override 1"},
		"a penalty":               {penalty(100, schema.Override{Tenant: "acme"}), false, "exempt[0]"},
		"a custom limit":          {custom("t", 1, schema.Override{Tenant: "acme"}), false, "exempt[0]"},
		"an exemption of another": {schema.Override{Kind: schema.KindExempt, Tenant: "globex"}, false, "exempt[0]"},
		"a ban that has come to an end": {
			schema.Override{Kind: schema.KindBan, Tenant: "acme", ExpiresAt: instant(5)}, false, "exempt[0]",
		},
	} {
		with := plan.With(build(t, policy.Rows{Overrides: numbered(test.row)}))
		id := caller()
		id.Preflight = true
		var r resolve.Resolution
		with.ResolveAt(&id, 1000, &r)
		if r.Banned != test.banned || r.Exempt == test.banned || r.Exemption.Source() != test.source {
			t.Errorf("%s: banned %v, exempt %v by %q, want %v and %q", name, r.Banned, r.Exempt, r.Exemption.Source(),
				test.banned, test.source)
		}
		if want := 7; test.banned && len(r.Bounds) != want {
			t.Errorf("%s: %d bounds, want %d: a config in shadow still counts them", name, len(r.Bounds), want)
		}
	}
}

func TestExemptionsReadOnlyTheFactsThatTheyName(t *testing.T) {
	const limits = `observe_endpoint: false
tenant_from: [header.X-Org]
user_from: [jwt.sub]
trusted_headers: [X-Org]
global: {limits: [{name: g, scope: global, limit: 1, window_size: 1}]}
`
	for entry, want := range map[string]identity.Facts{
		``:                                     0,
		`{tenant: acme}`:                       identity.HeaderFacts,
		`{tenant: acme, user: u}`:              identity.HeaderFacts | identity.TokenFact,
		`{tag: x}`:                             identity.ConsumerFact,
		`{cidr: 10.0.0.0/8}`:                   identity.IPFact,
		`{endpoint: "GET /x"}`:                 identity.TargetFact,
		`{endpoint: "GET /x", tag: x}`:         identity.TargetFact | identity.ConsumerFact,
		`{tag: x}, {cidr: 10.0.0.0/8, tag: y}`: identity.ConsumerFact | identity.IPFact,
	} {
		rules := compile(t, limits+"exempt: ["+entry+"]").Rules
		if rules.Required != want || rules.NeedTenant || rules.NeedUser {
			t.Errorf("entries %s read the facts %b, want %b", entry, rules.Required, want)
		}
	}
	rules := compile(t, limits+"exempt_preflights: true").Rules
	if rules.Required != identity.TargetFact || !rules.NeedPreflight {
		t.Errorf("preflights read the facts %b of every request, want method and path alone", rules.Required)
	}
}

func TestEntriesThatCannotBeCompiledAreFaultsOfTheirFields(t *testing.T) {
	config := parsedExempting()
	config.Exempt = []schema.Exemption{
		{Tag: "x"}, {Endpoint: "GET /a/*/b"}, {CIDR: "10.0.0.1/8"}, {Endpoint: "* /a%2Fb"}, {Endpoint: "* /a;b"},
	}
	_, err := resolve.FromConfig(config)
	var faults schema.Faults
	require.True(t, errors.As(err, &faults), "%v", err)
	var paths []string
	for _, f := range faults {
		paths = append(paths, f.Path)
	}
	slices.Sort(paths)
	want := []string{"exempt[1].endpoint", "exempt[2].cidr", "exempt[3].endpoint", "exempt[4].endpoint"}
	assert.Equal(t, want, paths, "faults are %v, want those of %q", faults, want)
}

func TestTenThousandEntriesDoNotSlowARequestAndCostNoAllocation(t *testing.T) {
	plan, id := crowdedExemptions(t), caller()
	var r resolve.Resolution
	plan.ResolveAt(&id, 0, &r)
	if r.Exempt {
		t.Fatalf("exempt by %s", r.Exemption.Source())
	}
	if got := testing.AllocsPerRun(100, func() { plan.ResolveAt(&id, 0, &r) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
	id.Tags = []string{"partner-9"}
	if plan.ResolveAt(&id, 0, &r); r.Exemption.By != "tag+cidr" {
		t.Errorf("exempt by %q", r.Exemption.By)
	}
	if got := testing.AllocsPerRun(100, func() { plan.ResolveAt(&id, 0, &r) }); got != 0 {
		t.Errorf("%v allocations of an exempt request", got)
	}
}

// crowdedExemptions returns a plan with 10,000 entries of several shapes.
func crowdedExemptions(t testing.TB) *resolve.Plan {
	t.Helper()
	config := parsedExempting()
	for i := range 2000 {
		config.Exempt = append(config.Exempt,
			schema.Exemption{Tenant: fmt.Sprint("tenant-", i)},
			schema.Exemption{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24).String()},
			schema.Exemption{Tenant: "acme", User: fmt.Sprint("user-", i)},
			schema.Exemption{Tag: fmt.Sprint("partner-", i), CIDR: "192.0.2.0/24"},
			schema.Exemption{Endpoint: fmt.Sprintf("GET /exempt-%d/{id}", i), Tag: "partner"},
		)
	}
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	return plan
}

func TestTheExplanationNamesTheEntryAndWhatItLifts(t *testing.T) {
	plan := compile(t, "exempt_preflights: true\n"+fmt.Sprintf(exempting, `{tag: x}, {tenant: acme, cidr: 192.0.2.0/24}`))
	id := caller()
	e := plan.Explain(&id, 1)
	if e.Verdict != "exempt" || e.ExemptBy != "exempt[1]: tenant acme, cidr 192.0.2.0/24" {
		t.Errorf("the verdict is %s by %q", e.Verdict, e.ExemptBy)
	}
	for _, p := range e.Policies {
		if p.Won || p.Name == "t" && p.Why != "exempt[1] exempts the request" {
			t.Errorf("policy %s: won %v, because %s", p.Name, p.Won, p.Why)
		}
	}
	id.Address, id.Preflight, id.Method = netip.Addr{}, true, "OPTIONS"
	e = plan.Explain(&id, 1)
	why := map[string]string{}
	for _, p := range e.Policies {
		why[p.Name] = cmp.Or(map[bool]string{true: "won"}[p.Won], p.Why)
	}
	const lifted = "exempt_preflights lifts it from CORS preflights"
	want := map[string]string{
		"t": lifted, "u": lifted, "te": lifted, "c": lifted, "i": "won", "all": "won", "shared": "won",
	}
	if e.Verdict != "limited" || e.ExemptBy != "exempt_preflights" || !reflect.DeepEqual(why, want) {
		t.Errorf("the verdict is %s by %q, with\n%v, want\n%v", e.Verdict, e.ExemptBy, why, want)
	}
}

func TestOverridesOfAnExemptRequestAreExplainedWithTheEntry(t *testing.T) {
	plan := compile(t, fmt.Sprintf(exempting, `{tenant: acme}`)).
		With(build(t, policy.Rows{Overrides: numbered(times(2000, schema.Override{Tenant: "acme"}))}))
	id := caller()
	for _, o := range plan.Explain(&id, limit.Micros(1)).Overrides {
		if o.Applied || o.Why != "exempt[0] exempts the request" {
			t.Errorf("override %d applies: %v, because %s", o.Override.ID, o.Applied, o.Why)
		}
	}
}

func TestARowExemptsATagAnEndpointOfAllTenantsOrANetwork(t *testing.T) {
	plan := compile(t, fmt.Sprintf(exempting, ""))
	for name, test := range map[string]struct {
		row     schema.Override
		by      string
		another func(*identity.Identity)
	}{
		"a tag": {
			schema.Override{Tag: "partner"}, "tag", func(id *identity.Identity) { id.Tags = []string{"partners"} },
		},
		"a tag at an endpoint": {
			schema.Override{Tag: "partner", Endpoint: "* /exports/*"},
			"tag",
			func(id *identity.Identity) { id.Path = "/records" },
		},
		"an endpoint of all tenants": {
			schema.Override{Endpoint: "GET /exports/{id}"},
			"endpoint of all tenants",
			func(id *identity.Identity) { id.Path = "/exports/7%2F.." },
		},
		"a tenant's endpoint": {
			schema.Override{Tenant: "acme", Endpoint: "GET /exports/{id}"},
			"endpoint",
			func(id *identity.Identity) { id.Path = "/exports/..;" },
		},
		"a network": {
			schema.Override{IP: "192.0.2.0/28"}, "ip", func(id *identity.Identity) { id.IP = "192.0.2.16" },
		},
		"a network at an endpoint": {
			schema.Override{IP: "192.0.2.0/28", Endpoint: "GET /exports/*"},
			"ip",
			func(id *identity.Identity) { id.Method = "POST" },
		},
	} {
		test.row.Kind = schema.KindExempt
		with := plan.With(build(t, policy.Rows{Overrides: numbered(test.row)}))
		id := caller()
		var r resolve.Resolution
		with.ResolveAt(&id, 1, &r)
		if want := (resolve.Exemption{By: test.by, Override: 1}); !r.Exempt || r.Exemption != want {
			t.Errorf("%s: exempt %v by %+v, want %+v", name, r.Exempt, r.Exemption, want)
		}
		if got := testing.AllocsPerRun(10, func() { with.ResolveAt(&id, 1, &r) }); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
		test.another(&id)
		if with.ResolveAt(&id, 1, &r); r.Exempt {
			t.Errorf("%s: another request is exempt", name)
		}
	}
}
