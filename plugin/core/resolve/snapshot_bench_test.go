package resolve_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
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

func BenchmarkSnapshot(b *testing.B) {
	rows := crowd(100_000)
	snapshot := build(b, rows)
	b.Run("build a million rows", func(b *testing.B) {
		for b.Loop() {
			build(b, rows)
		}
		b.ReportMetric(float64(snapshot.Len()), "rows")
	})
	b.Run("apply one change", func(b *testing.B) {
		n := 0
		var slowest time.Duration
		for b.Loop() {
			n++
			began := time.Now()
			apply(b, snapshot,
				policy.Changes{Rows: policy.Rows{Policies: []policy.PolicyRow{
					perTenant(int64(n%1000+1), "tenant-000001", int64(n)),
				}}})
			slowest = max(slowest, time.Since(began))
		}
		b.ReportMetric(float64(slowest.Microseconds()), "slowest-µs")
	})
	plan := compile(b, modelConfig).With(snapshot)
	ids := make([]identity.Identity, 8192)
	for i := range ids {
		n := i * 11
		ids[i] = identity.Identity{
			Tenant: tenant(fmt.Sprintf("tenant-%06d", n)), User: identity.Name{Kind: identity.User, ID: "u"}, Credential: "key",
			IP:     "192.0.2.1",
			Method: "GET", Path: "/", Route: "route",
		}
	}
	resolve := func(plan *resolve.Plan, ids []identity.Identity) func(*testing.B) {
		return func(b *testing.B) {
			var r resolve.Resolution
			for i := range ids { // what overrides make of policies is made with the first request
				plan.ResolveAt(&ids[i], 1, &r)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				plan.ResolveAt(&ids[i%len(ids)], 1, &r)
			}
		}
	}
	b.Run("resolve, a few busy tenants", resolve(plan, ids[:16]))
	b.Run("resolve, thousands of tenants", resolve(plan, ids))
	b.Run("resolve, a tenant without rows", resolve(plan, []identity.Identity{visitor}))
	b.Run("resolve, without a snapshot", resolve(compile(b, modelConfig), ids))
	b.Run("With", func(b *testing.B) {
		for b.Loop() {
			plan.With(snapshot)
		}
	})
	runtime.KeepAlive(rows)
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
