package api_test

import (
	"slices"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
