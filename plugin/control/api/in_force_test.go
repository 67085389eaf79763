package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// crowdedConfig returns a config in which an org has limits of every scope, some for narrower endpoints than others.
func crowdedConfig(onMissingUser string) schema.Config {
	config := plan()
	config.OnMissingUser = onMissingUser
	enterprise := &config.Tiers[1]
	for _, l := range []schema.Limit{
		{Name: "per-address", Scope: "ip"},
		{Name: "per-credential", Scope: "credential"},
		{Name: "per-user-and-endpoint", Scope: "user+endpoint"},
		{Name: "per-endpoint", Scope: "tenant+endpoint"},
		{Name: "of-all-at-an-endpoint", Scope: "endpoint", Endpoint: "POST /bulk"},
		{Name: "writes", Scope: "tenant", Endpoint: "POST /records/*"},
		{Name: "writes", Scope: "tenant", Endpoint: "POST /records/{a}/{b}/*"},
		{Name: "addresses-here", Scope: "ip", Endpoint: "GET /free"},
		{Name: "users-here", Scope: "user", Endpoint: "GET /free"},
	} {
		l.Limit, l.WindowSize = 40, 60
		enterprise.Limits = append(enterprise.Limits, l)
	}
	return config.WithDefaults()
}

// everywhereRows returns rows about all paths, which go before what the config has for all requests.
func everywhereRows(kind string) policy.Rows {
	rows := enterprise()
	own := schema.Policy{Tenant: "acme", Limit: limitOf("daily", "* /*", 2000)}
	rows.Policies = []policy.PolicyRow{{ID: 9, Policy: own}}
	if kind != "" {
		rows.Overrides = []policy.Override{
			policytest.Override(3, schema.Override{Kind: kind, Tenant: "acme", Endpoint: "* /*"}),
		}
	}
	return rows
}

// placesOf returns the policies of an answer, each with its place, and why it is there.
func placesOf(t *testing.T, got answers.InForce) map[string]string {
	t.Helper()
	places := map[string]string{}
	add := func(name, endpoint, match string, row int64, place string) {
		key := fmt.Sprint(name, " at ", endpoint, " of ", match, " ", row)
		if other, ok := places[key]; ok && other != place {
			t.Errorf("%s is %s and %s", key, other, place)
		}
		places[key] = place
	}
	for _, l := range got.Limits {
		add(l.Policy, l.Endpoint, l.Match, l.Row, "in force")
	}
	for _, x := range got.NotInForce {
		add(x.Policy, x.Endpoint, x.Match, x.Row, "not in force: "+x.Why)
	}
	return places
}

func TestNoPolicyIsListedAsNotInForceThatRequestsMeet(t *testing.T) {
	t.Parallel()
	const certain = "the most specific of its name"
	endpoints := []string{
		"", "GET /free", "POST /bulk", "POST /records/7", "POST /records/7/8", "POST /records/7/8/9", "search",
	}
	for name, rows := range map[string]policy.Rows{
		"none": enterprise(), "eventful": eventful(), "everywhere": everywhereRows(""),
		"exempt": everywhereRows(schema.KindExempt), "ban": everywhereRows(schema.KindBan),
	} {
		for _, missing := range []string{"skip", "ip", "credential"} {
			p := planning(t, crowdedConfig(missing), rows)
			for _, who := range []string{"user=u_42", "ip=192.0.2.1", "credential=c1&ip=2001:db8::1", ""} {
				inAll := placesOf(t, p.inForce(viewer, "?"+who))
				for _, endpoint := range endpoints {
					query := "?" + who + "&endpoint=" + url.QueryEscape(endpoint)
					all := placesOf(t, p.inForce(viewer, query))
					for key, place := range all {
						if place == "not in force: "+certain {
							t.Errorf("%s, %s, %s: %s is %s", name, missing, query, key, place)
						}
						if place == "in force" && inAll[key] != place {
							t.Errorf("%s, %s: %s is in force at %s, and without an endpoint %s", name, missing, key, endpoint, inAll[key])
						}
					}
					for key, place := range placesOf(t, p.inForce(ofAcme, query)) {
						if all[key] != place {
							t.Errorf("%s, %s, %s: to the org %s is %s, and to an operator %s", name, missing, query, key, place, all[key])
						}
					}
					agreesWithExplain(t, p, query, all)
				}
			}
		}
	}
}

// agreesWithExplain checks a list against the explanation of a request to one path.
func agreesWithExplain(t *testing.T, p *planned, query string, all map[string]string) {
	t.Helper()
	values, err := url.ParseQuery(strings.TrimPrefix(query, "?"))
	require.NoError(t, err)
	method, path, ok := strings.Cut(values.Get("endpoint"), " ")
	if !ok || values.Get("user") == "" {
		return // without a user the config decides who it is
	}
	id := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, User: identity.Name{
			Kind: identity.User, ID: values.Get("user"),
		},
		Method: method, Path: path,
	}
	e := p.decider.Policies.Load().Explain(&id, tomorrow-1)
	for _, x := range e.Policies {
		key := fmt.Sprint(x.Name, " at ", x.Endpoint, " of ", x.Match, " ", x.ID)
		want := "not in force: " + x.Why
		if x.Won && x.Why == "the most specific of its name" {
			want = "in force"
		}
		if all[key] != want {
			t.Errorf("%s: %s is %s, and is explained as %s", query, key, all[key], want)
		}
	}
}

func TestTheListsOfTheLimitsInForceAreBounded(t *testing.T) {
	t.Parallel()
	config := plan()
	for i := range 1100 {
		config.Exempt = append(config.Exempt, schema.Exemption{Endpoint: fmt.Sprintf("GET /exempt-%d", i)})
	}
	rows := enterprise()
	for i := range 1200 {
		rows.Overrides = append(rows.Overrides, policytest.Override(int64(i+1), schema.Override{
			Kind: schema.KindCustomLimit, Policy: fmt.Sprint("policy-", i), Limit: 5, Tenant: "acme",
		}))
	}
	p := planning(t, config, rows)
	for query, want := range map[string][2]int{"": {1000, 1000}, "?limit=7": {7, 7}} {
		got := p.inForce(viewer, query)
		if len(got.Exceptions) != want[0] || len(got.Overrides) != want[1] {
			t.Errorf("%q: %d exceptions and %d overrides", query, len(got.Exceptions), len(got.Overrides))
		}
		leftOff := answers.Truncated{Exceptions: 1100 - want[0], Overrides: 1200 - want[1]}
		if got.Truncated == nil || *got.Truncated != leftOff {
			t.Errorf("%q: truncated is %+v, want %+v", query, got.Truncated, leftOff)
		}
		for _, o := range got.Overrides {
			if o.Why == "" {
				t.Fatalf("%q: override %d has no explanation", query, o.ID)
			}
		}
	}
	if got := p.inForce(viewer, "?limit=1&endpoint=GET+/exempt-1099"); len(got.Exceptions) != 1 ||
		got.Exceptions[0].Endpoint != "GET /exempt-1099" || got.Truncated.Exceptions != 0 {
		t.Errorf("at one endpoint the exceptions are %+v, truncated %+v", got.Exceptions, got.Truncated)
	}
	for _, limit := range []string{"0", "1001"} {
		p.want(p.as("GET", "/v1/orgs/acme/ratelimit/policies?limit="+limit, ""), http.StatusUnprocessableEntity)
	}
}

func TestShortListsOfTheLimitsInForceAreWhole(t *testing.T) {
	t.Parallel()
	p := planning(t, exempting(), enterprise())
	whole := p.inForce(viewer, "")
	if whole.Truncated != nil || len(whole.Limits) < 3 {
		t.Fatalf("truncated is %+v, with %d limits", whole.Truncated, len(whole.Limits))
	}
	cut := p.inForce(viewer, "?limit=2")
	if len(cut.Limits) != 2 || cut.Truncated == nil || cut.Truncated.Limits != len(whole.Limits)-2 {
		t.Errorf("%d limits, truncated %+v, want 2 of %d", len(cut.Limits), cut.Truncated, len(whole.Limits))
	}
}

func TestOverridesInForceNameWhatDecidesAtEachEndpoint(t *testing.T) {
	t.Parallel()
	const writes = "POST /records/{id}"
	for name, test := range map[string]struct {
		overrides []schema.Override
		want      []string
	}{
		"an exemption and a ban of one endpoint": {
			[]schema.Override{
				{Kind: schema.KindExempt, Tenant: "acme"},
				{Kind: schema.KindBan, Tenant: "acme", Endpoint: writes},
			},
			[]string{
				"true it exempts the request; at " + writes + " override 2 goes before it: a ban goes before an exemption",
				"true it bans the request",
			},
		},
		"two on the limit of one endpoint": {
			[]schema.Override{
				{Kind: schema.KindCustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"},
				{Kind: schema.KindMultiplier, Factor: 2000, Policy: "writes", Tenant: "acme", Endpoint: writes},
			},
			[]string{
				"false override 2 goes before it: endpoint is more specific than tenant",
				"true it changes writes",
			},
		},
		"one on all limits, and one on that of one endpoint": {
			[]schema.Override{
				{Kind: schema.KindMultiplier, Factor: 2000, Tenant: "acme"},
				{Kind: schema.KindCustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"},
			},
			[]string{
				"true it changes daily; on writes at " + writes +
					" override 2 goes before it: a custom limit goes before a multiplier",
				"true it changes writes",
			},
		},
		"an exemption of the one endpoint with the limit": {
			[]schema.Override{
				{Kind: schema.KindCustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"},
				{Kind: schema.KindExempt, Tenant: "acme", Endpoint: writes},
			},
			[]string{"false override 2 exempts the request", "true it exempts the request"},
		},
	} {
		rows := enterprise()
		for i, o := range test.overrides {
			rows.Overrides = append(rows.Overrides, policytest.Override(int64(i+1), o))
		}
		p := planning(t, plan(), rows)
		for _, x := range p.inForce(viewer, "").Overrides {
			if got := fmt.Sprint(x.Applied, " ", x.Why); got != test.want[x.ID-1] {
				t.Errorf("%s: override %d: %s, want %s", name, x.ID, got, test.want[x.ID-1])
			}
		}
	}
}

func TestOverridesOfAllOrgsAreMarkedAmongThoseInForce(t *testing.T) {
	t.Parallel()
	rows := enterprise()
	rows.Overrides = []policy.Override{
		policytest.Override(1, schema.Override{Kind: schema.KindBan, IP: "192.0.2.7"}),
		policytest.Override(2, schema.Override{Kind: schema.KindMultiplier, Factor: 2000, Tenant: "acme"}),
	}
	p := planning(t, plan(), rows)
	found := read[answers.InForce](p.world, p.want(p.as("GET", "/v1/orgs/acme/ratelimit/policies?ip=192.0.2.7", ""),
		http.StatusOK))
	general := map[int64]bool{}
	for _, o := range found.Overrides {
		general[o.ID] = o.General
		if !o.General && o.Factor != 2 {
			t.Errorf("the multiplier has the factor %v", o.Factor)
		}
	}
	if len(general) != 2 || !general[1] || general[2] {
		t.Errorf("marked as of all orgs: %v, want 1 and not 2", general)
	}
}

// exempting is the plan with exemptions in the plugin's config.
func exempting() schema.Config {
	config := plan()
	config.Exempt = []schema.Exemption{
		{Tenant: "globex"},
		{Endpoint: "GET /healthz"},
		{Tenant: "acme", Endpoint: "POST /bulk"},
		{CIDR: "192.0.2.0/24"},
		{Tag: "monitoring"},
	}
	return config
}

func TestTheLimitsInForceListTheExemptionsOfTheConfigThatCanMatch(t *testing.T) {
	t.Parallel()
	p := planning(t, exempting(), enterprise())
	var got []string
	for _, e := range p.inForce(viewer, "").Exceptions {
		if e.Verdict != "exempt" || e.Override != 0 {
			t.Errorf("%+v, want an exemption of the config", e)
		}
		got = append(got, e.Summary)
	}
	slices.Sort(got)
	want := []string{
		"No limit applies at GET /healthz, by exempt[1] of the plugin's config.",
		"No limit applies at POST /bulk, by exempt[2] of the plugin's config.",
	}
	if !slices.Equal(got, want) {
		t.Errorf("exceptions are %q, want %q", got, want)
	}
	from := p.inForce(viewer, "?ip=192.0.2.7").Exceptions
	if len(from) == 0 || from[0].Summary != "No limit applies, by exempt[3] of the plugin's config." {
		t.Errorf("exceptions of an exempt address are %+v", from)
	}
}

func TestACheckOfAnExemptRequestSpendsNothingAndNamesTheEntry(t *testing.T) {
	t.Parallel()
	p := planning(t, exempting(), enterprise())
	for body, by := range map[string]string{
		`{"org_id":"acme","endpoint":"GET /healthz"}`:                        "exempt[1]",
		`{"org_id":"acme","endpoint":"POST /bulk","cost":100000}`:            "exempt[2]",
		`{"org_id":"acme","endpoint":"POST /records/7","ip":"192.0.2.7"}`:    "exempt[3]",
		`{"org_id":"acme","endpoint":"POST /records/7","ip":"198.51.100.7"}`: "",
	} {
		got := p.checks(admin, body)
		if exempt := by != ""; !got.Allowed || got.ExemptBy != by || (got.Reason == "exempt") != exempt ||
			(len(got.Statuses) == 0) != exempt {
			t.Errorf("%s: %+v, want it exempt by %q", body, got, by)
		}
	}
	if used := p.has("acme", ""); used["daily of the org"] != 1 {
		t.Errorf("used is %v, want 1 by the request that is not exempt", used)
	}
}
