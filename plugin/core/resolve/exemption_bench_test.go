package resolve_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// crowds makes the endpoint of entry i in lists of entries that do not exempt the request, which is GET /exports/7.
var crowds = []struct {
	name     string
	endpoint func(i int) string
}{
	{"other-prefixes", func(i int) string { return fmt.Sprintf("GET /prefix-%d/{id}", i) }},
	{"other-methods", func(i int) string {
		return [...]string{"POST", "PUT", "PATCH", "DELETE"}[i%4] + fmt.Sprintf(" /exports/{id%d}", i)
	}},
	{"other-last-segments", func(i int) string { return fmt.Sprintf("* /exports/item-%d", i+10) }},
	{"crossing", func(i int) string { return fmt.Sprintf(crossing[i%len(crossing)], i) }},
}

// crossing has patterns that all match the request.
var crossing = [...]string{
	"GET /{a%d}/{b}", "* /{a%d}/{b}", "GET /{a%d}/7", "* /{a%d}/7",
	"GET /exports/{b%d}", "* /exports/{b%d}", "GET /{a%d}/*", "* /{a%d}/*",
}

// crowded returns a plan with n entries, which name a tag that the request does not have.
func crowded(tb testing.TB, n int, endpoint func(i int) string) *resolve.Plan {
	tb.Helper()
	config := parsedExempting()
	for i := range n {
		config.Exempt = append(config.Exempt, schema.Exemption{Tag: "another", Endpoint: endpoint(i)})
	}
	plan, err := resolve.FromConfig(config)
	require.NoError(tb, err)
	return plan
}

func TestManyPatternsCostARequestNoAllocation(t *testing.T) {
	for _, crowd := range crowds {
		plan := crowded(t, 10_000, crowd.endpoint)
		id := caller()
		var r resolve.Resolution
		plan.ResolveAt(&id, 0, &r)
		if r.Exempt || len(r.Bounds) == 0 {
			t.Errorf("%s: the request is exempt by %+v", crowd.name, r.Exemption)
		}
		if got := testing.AllocsPerRun(100, func() { plan.ResolveAt(&id, 0, &r) }); got != 0 {
			t.Errorf("%s: %v allocations of a request", crowd.name, got)
		}
	}
}

func TestTheKindsOfRequestsDoNotGrowWithTheExemptions(t *testing.T) {
	var visits [2]int
	for i, n := range []int{10, 10_000} {
		crowded(t, n, crowds[0].endpoint).VisitRequestKinds(caller(), nil, 0,
			func(*identity.Identity, *resolve.Resolution) { visits[i]++ })
	}
	if visits[0] != visits[1] {
		t.Errorf("%d visits with 10 exemptions, and %d with 10,000", visits[0], visits[1])
	}
}

func TestEachExemptionOfATenantIsVisitedWhereItExempts(t *testing.T) {
	config := parsedExempting()
	for i := range 3 {
		config.Exempt = append(config.Exempt,
			schema.Exemption{Endpoint: fmt.Sprintf("GET /a/%d", i)},
			schema.Exemption{Tenant: "acme", Endpoint: fmt.Sprintf("* /b/%d/*", i)},
			schema.Exemption{Tenant: "globex", Endpoint: fmt.Sprintf("* /c/%d", i)},
			schema.Exemption{Tag: "another", Endpoint: fmt.Sprintf("* /d/%d", i)},
		)
	}
	config.Exempt = append(config.Exempt, schema.Exemption{Endpoint: "* /a/*"}) // its own path is that of no other entry
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	seen := map[string]bool{}
	plan.VisitExemptions(caller(), 0, func(r *resolve.Resolution) {
		if r.Exempt {
			seen[plan.ExemptEntry(r.Exemption).Endpoint] = true
		}
	})
	want := map[string]bool{"* /a/*": true}
	for i := range 3 {
		want[fmt.Sprintf("GET /a/%d", i)], want[fmt.Sprintf("* /b/%d/*", i)] = true, true
	}
	if !maps.Equal(seen, want) {
		t.Errorf("the exemptions at %v are visited, want %v", seen, want)
	}
}
