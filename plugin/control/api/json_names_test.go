package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Scripts join answers and records by these fields: policy is a name,
// policy_id the id of a row, and policy_version the version of all rows.
func TestALimitIsNamedAlikeInEveryAnswer(t *testing.T) {
	t.Parallel()
	rows := enterprise()
	rows.Policies = []policy.PolicyRow{{ID: 41, Policy: schema.Policy{Tenant: "acme", Limit: schema.Limit{
		Name: "rowed", Scope: "tenant", Limit: 1, WindowSize: 86400,
	}}}}
	p := planning(t, platform(), rows)
	for _, c := range []call{
		{admin, "POST", "/v1/ratelimit/check", `{"org_id":"acme"}`, nil},
		{admin, "POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":"acme"}]}`, nil},
		{admin, "GET", "/v1/orgs/acme/ratelimit/policies", "", nil},
		{admin, "GET", "/v1/orgs/acme/ratelimit/usage", "", nil},
	} {
		body := p.want(p.do(c), http.StatusOK).Body.String()
		for _, want := range []string{`"policy":"rowed"`, `"policy":"daily"`, `"policy_id":41`, `"policy_version":7`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s %s has no %s: %s", c.method, c.path, want, body)
			}
		}
		for _, not := range []string{`"policy_id":"`, `"policy_id":0`, `"row":`, `"policy_row"`} {
			if strings.Contains(body, not) {
				t.Errorf("%s %s has %s: %s", c.method, c.path, not, body)
			}
		}
	}
}
