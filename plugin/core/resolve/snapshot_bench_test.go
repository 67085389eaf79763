package resolve_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// crowd is rows of so many tenants, each with a row of its own, four policies and five overrides.
func crowd(tenants int) policy.Rows {
	var rows policy.Rows
	id := int64(0)
	for n := range tenants {
		name := fmt.Sprintf("tenant-%06d", n)
		rows.Tenants = append(rows.Tenants, schema.Tenant{ID: name, Tier: "silver"})
		for i := range 4 {
			id++
			row := policy.PolicyRow{ID: id, Policy: schema.Policy{Namespace: "default", Tenant: name, Limit: schema.Limit{
				Name: fmt.Sprintf("limit-%d", i), Scope: "tenant", Limit: 1000 + id, WindowSize: 3600, Algorithm: "token_bucket",
			}}}
			if i > 1 {
				row.Limit.Scope, row.Limit.Endpoint = "tenant+endpoint", endpoints[i-2]
			}
			rows.Policies = append(rows.Policies, row)
		}
		about := fmt.Sprintf("contract %d", n)
		add := func(o schema.Override) {
			row := policytest.Override(id*10+int64(len(rows.Overrides)%10), o)
			row.Reason, row.Author = about, "ann@example.com"
			rows.Overrides = append(rows.Overrides, row)
		}
		add(times(2000, schema.Override{Tenant: name}))
		add(custom("limit-0", int64(500+n), schema.Override{Tenant: name}))
		add(penalty(900, schema.Override{Tenant: name, User: fmt.Sprintf("user-%d", n)}))
		add(times(500, schema.Override{Tenant: name, User: fmt.Sprintf("user-%d-b", n), Endpoint: endpoints[1]}))
		add(times(500, schema.Override{Credential: fmt.Sprintf("credential-%d", n)}))
	}
	return rows
}

// heap is how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestARowOfAMillionTakesLessThan400Bytes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a hundred thousand rows")
	}
	const tenants = 10_000
	before := heap()
	snapshot := build(t, crowd(tenants))
	after := heap()
	perRow := float64(after-before) / float64(snapshot.Len())
	t.Logf("%d rows take %.0f bytes each", snapshot.Len(), perRow)
	if perRow > 400 {
		t.Errorf("a row takes %.0f bytes, want at most 400", perRow)
	}
	runtime.KeepAlive(snapshot)
}
