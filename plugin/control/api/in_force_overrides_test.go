package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestOverridesInForceNameWhatDecidesAtEachEndpoint(t *testing.T) {
	t.Parallel()
	const writes = "POST /records/{id}"
	for name, test := range map[string]struct {
		overrides []schema.Override
		want      []string
	}{
		"an exemption and a ban of one endpoint": {
			[]schema.Override{
				{Kind: policy.Exempt, Tenant: "acme"},
				{Kind: policy.Ban, Tenant: "acme", Endpoint: writes},
			},
			[]string{
				"true it exempts the request; at " + writes + " override 2 goes before it: a ban goes before an exemption",
				"true it bans the request",
			},
		},
		"two on the limit of one endpoint": {
			[]schema.Override{
				{Kind: policy.CustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"},
				{Kind: policy.Multiplier, Factor: 2000, Policy: "writes", Tenant: "acme", Endpoint: writes},
			},
			[]string{
				"false override 2 goes before it: endpoint is more specific than tenant",
				"true it changes writes",
			},
		},
		"one on all limits, and one on that of one endpoint": {
			[]schema.Override{
				{Kind: policy.Multiplier, Factor: 2000, Tenant: "acme"},
				{Kind: policy.CustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"},
			},
			[]string{
				"true it changes daily; on writes at " + writes +
					" override 2 goes before it: a custom limit goes before a multiplier",
				"true it changes writes",
			},
		},
		"an exemption of the one endpoint with the limit": {
			[]schema.Override{
				{Kind: policy.CustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"},
				{Kind: policy.Exempt, Tenant: "acme", Endpoint: writes},
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
		policytest.Override(1, schema.Override{Kind: policy.Ban, IP: "192.0.2.7"}),
		policytest.Override(2, schema.Override{Kind: policy.Multiplier, Factor: 2000, Tenant: "acme"}),
	}
	p := planning(t, plan(), rows)
	found := read[answers.InForce](p.world, p.want(p.as("GET", "/v1/orgs/acme/ratelimit/policies?ip=192.0.2.7", ""),
		http.StatusOK))
	general := map[int64]bool{}
	for _, o := range found.Overrides {
		general[o.ID] = o.General
	}
	if len(general) != 2 || !general[1] || general[2] {
		t.Errorf("marked as of all orgs: %v, want 1 and not 2", general)
	}
}
