package api_test

import (
	"fmt"
	"net/url"
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
		"exempt": everywhereRows(policy.Exempt), "ban": everywhereRows(policy.Ban),
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
