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

func TestACostIsSetChangedFoundByAnySpellingAndDeleted(t *testing.T) {
	s, _ := open(t)
	made, version, err := s.PutCost(t.Context(), ann, costOf("POST /exports/{id}", 50, rows.Absent))
	if err != nil || version != 1 || made.Revision != 1 || made.Namespace != "default" || *made.Cost.Cost != 50 {
		t.Fatalf("made %+v in version %d (%v)", made, version, err)
	}
	_, _, err = s.PutCost(t.Context(), ann, costOf("POST /exports/{key}", 60, rows.Absent))
	wantConflict(t, "another spelling", err)
	changed, _, err := s.PutCost(t.Context(), ann, costOf("POST /exports/{key}", 0, 1))
	if err != nil || changed.ID != made.ID || *changed.Cost.Cost != 0 || changed.Revision != 2 {
		t.Errorf("changed to %+v (%v), want 0 tokens in the same row", changed, err)
	}
	if found, err := s.Cost(t.Context(), "", "POST /exports/{any}"); err != nil || found.ID != made.ID {
		t.Errorf("found %+v (%v)", found, err)
	}
	_, err = s.DeleteCost(t.Context(), ann, made.ID, 1)
	assert.Error(t, err, "it was deleted from a revision that it no longer has")
	_, err = s.DeleteCost(t.Context(), ann, made.ID, 2)
	assert.NoError(t, err)
	_, err = s.CostByID(t.Context(), made.ID)
	wantMissing(t, "read after the delete", err)
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "cost"})
	if err != nil || len(entries) != 3 || entries[0].Operation != "delete" || entries[0].Actor != ann.Actor {
		t.Errorf("the audit has %+v (%v), want an insert, an update and a delete by ann", entries, err)
	}
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
