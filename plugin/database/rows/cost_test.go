package rows_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func costOf(endpoint string, tokens, revision int64) rows.Cost {
	return rows.Cost{Cost: schema.Cost{Endpoint: endpoint, Cost: &tokens}, Revision: revision}
}

func TestASetOfCostsIsAppliedInItsNamespaceAlone(t *testing.T) {
	s, _ := open(t)
	other := costOf("GET /a", 9, 0)
	other.Namespace = "other"
	for _, c := range []rows.Cost{costOf("GET /a", 1, 0), costOf("GET /b", 2, 0), other} {
		_, _, err := s.PutCost(t.Context(), ann, c)
		require.NoError(t, err)
	}
	set := rows.Set{KeepPolicies: true, Costs: []rows.Cost{costOf("GET /b", 3, 0), costOf("GET /{c}", 4, 0)}}
	done, version, err := s.Apply(t.Context(), ann, set)
	if err != nil || version != 4 || len(done.Costs.Create) != 1 || len(done.Costs.Update) != 1 ||
		len(done.Costs.Delete) != 1 {
		t.Fatalf("applied %+v in version %d (%v)", done.Costs, version, err)
	}
	if again, err := s.Diff(t.Context(), set); err != nil || !again.Empty() || again.Costs.Unchanged != 2 {
		t.Errorf("applied again it would change %+v (%v)", again.Costs, err)
	}
	got := map[string]int64{}
	all, err := s.Costs(t.Context(), rows.CostFilter{})
	require.NoError(t, err)
	for _, c := range all {
		got[c.Namespace+" "+c.Endpoint] = *c.Cost.Cost
	}
	if len(got) != 3 || got["default GET /b"] != 3 || got["default GET /{c}"] != 4 || got["other GET /a"] != 9 {
		t.Errorf("the costs are %v", got)
	}
	set.Costs = append(set.Costs, costOf("GET /{d}", 1, 0))
	_, _, err = s.Apply(t.Context(), ann, set)
	assert.Error(t, err, "an endpoint was given twice, and the set was applied")
}
