package policy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// differing is how many shards and parts two snapshots do not share.
func differing(a, b *Snapshot) (shards, policies, overrides int) {
	for i := range shardCount {
		if a.shards[i] != b.shards[i] {
			shards++
		}
		if !sameSlice(a.policies.parts[i], b.policies.parts[i]) {
			policies++
		}
		if !sameSlice(a.overrides.parts[i], b.overrides.parts[i]) {
			overrides++
		}
	}
	return shards, policies, overrides
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func TestAChangeCopiesOnlyTheShardThatItTouches(t *testing.T) {
	var rows Rows
	row := func(id int64, tenant string) PolicyRow {
		return PolicyRow{
			ID: id,
			Policy: schema.Policy{
				Tenant: tenant, Limit: schema.Limit{Name: "a", Scope: "tenant", Endpoint: "GET /x", Limit: 9, WindowSize: 1},
			},
		}
	}
	ban := func(id int64, tenant, user string) Override {
		return Override{ID: id, Override: schema.Override{
			Permanent: true, Kind: schema.KindBan, Tenant: tenant, User: user, Reason: "r", Author: "a",
		}}
	}
	for i := range int64(5000) {
		rows.Policies = append(rows.Policies, row(i, fmt.Sprint("tenant-", i)))
		rows.Overrides = append(rows.Overrides, ban(i, "one", fmt.Sprint("user-", i)))
	}
	snapshot, faults := NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	tests := []struct {
		name                        string
		changes                     Changes
		shards, policies, overrides int
	}{
		{"nothing", Changes{}, 0, 0, 0},
		{"a new policy", Changes{Rows: Rows{Policies: []PolicyRow{row(9999, "tenant-7")}}}, 1, 1, 0},
		{"another value of a policy", Changes{Rows: Rows{Policies: []PolicyRow{row(7, "tenant-7")}}}, 1, 1, 0},
		{"a removed policy", Changes{Removed: RowKeys{Policies: []int64{7}}}, 1, 1, 0},
		{"one of many users of one tenant", Changes{Rows: Rows{Overrides: []Override{ban(7, "one", "user-7")}}}, 1, 0, 1},
		{"a tenant", Changes{Rows: Rows{Tenants: []schema.Tenant{{ID: "tenant-7", Tier: "gold"}}}}, 1, 0, 0},
		{
			"a policy of a tier",
			Changes{Rows: Rows{Policies: []PolicyRow{{ID: 9999, Policy: schema.Policy{Tier: "gold", Limit: row(0, "").Limit}}}}},
			0, 1,
			0,
		},
		{
			"a policy that does not compile",
			Changes{Rows: Rows{Policies: []PolicyRow{{ID: 7, Policy: schema.Policy{Tenant: "tenant-7"}}}}},
			1, 1, 0,
		},
	}
	for _, test := range tests {
		next, _ := snapshot.Apply(test.changes)
		if shards, policies, overrides := differing(snapshot, next); shards != test.shards || policies != test.policies ||
			overrides != test.overrides {
			t.Errorf("%s: copies %d shards, %d parts of policies and %d of overrides, want %d, %d and %d",
				test.name, shards, policies, overrides, test.shards, test.policies, test.overrides)
		}
		assert.True(t, next.endpoints.patterns == snapshot.endpoints.patterns, "%s: compiles the patterns again", test.name)
	}
}

func TestTheNumberOfPatternsIsBounded(t *testing.T) {
	e := newEndpoints()
	for i := range maxPatterns {
		require.NoError(t, e.acquire(fmt.Sprint("GET /", i)))
	}
	err := e.acquire("GET /one-more")
	assert.True(t, err != nil, "%d patterns are accepted", maxPatterns+1)
	assert.NoError(t, e.acquire("GET /0"), "one that is in use already")
}

func TestAnOverrideRemembersABoundedNumberOfPolicies(t *testing.T) {
	o := &CompiledOverride{kind: multiplier, quantity: 500}
	base := func() *Policy {
		p, err := compileLimit(schema.Limit{Name: "a", Scope: "tenant", Limit: 100, WindowSize: 1})
		require.NoError(t, err)
		return &p
	}
	for range 10 * maxDerived {
		if p := o.apply(base()); p.Limit.Spec().Quantity != 50 {
			t.Fatalf("limit is %d, want 50", p.Limit.Spec().Quantity)
		}
		n := len(*o.derived.Load())
		require.True(t, n <= maxDerived, "%d policies are remembered, want at most %d", n, maxDerived)
	}
}

// A fraction that is too fine for exact arithmetic must not make a penalty do nothing.
func TestAScaledLimitThatCannotBeCountedExactlyIsRoundedDownUntilItCan(t *testing.T) {
	const year = 31_622_399
	p, err := compileLimit(schema.Limit{
		Name: "a", Scope: "tenant", Limit: 1001 * year, WindowSize: year, Burst: 1_000_000_000_000,
	})
	require.NoError(t, err)
	o := &CompiledOverride{kind: multiplier, quantity: 500}
	got := o.apply(&p).Limit.Spec().Quantity
	assert.True(t, got == 500*year, "half of 1001 a second is %d a year, want %d", got, 500*year)
}
