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

func TestTheListsOfTheLimitsInForceAreBounded(t *testing.T) {
	t.Parallel()
	config := plan()
	for i := range 1100 {
		config.Exempt = append(config.Exempt, schema.Exemption{Endpoint: fmt.Sprintf("GET /exempt-%d", i)})
	}
	rows := enterprise()
	for i := range 1200 {
		rows.Overrides = append(rows.Overrides, policytest.Override(int64(i+1), schema.Override{
			Kind: policy.CustomLimit, Policy: fmt.Sprint("policy-", i), Limit: 5, Tenant: "acme",
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
