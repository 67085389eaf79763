package rows_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAuditListsEachChangeNewestFirst(t *testing.T) {
	s, _ := open(t)
	p, _ := put(t, s, daily())
	p.Limit.Limit = 2000
	put(t, s, p)
	bob := rows.Change{Actor: "bob", Reason: "no longer sold"}
	_, err := s.DeletePolicy(t.Context(), bob, p.Key(), 0)
	require.NoError(t, err)
	entries, next, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "policy"})
	if err != nil || len(entries) != 3 || next != 0 {
		t.Fatalf("the audit is %v, then %d (%v), want 3 entries", entries, next, err)
	}
	for i, want := range []struct{ operation, actor, reason string }{
		{"delete", bob.Actor, bob.Reason}, {"update", ann.Actor, ann.Reason}, {"insert", ann.Actor, ann.Reason},
	} {
		e := entries[i]
		if e.Operation != want.operation || e.Actor != want.actor || e.Reason != want.reason ||
			e.Version != int64(3-i) || e.At.IsZero() {
			t.Errorf("entry %d is %+v, want %+v in version %d", i, e, want, 3-i)
		}
	}
	var before, after struct{ Limit int64 }
	require.NoError(t, json.Unmarshal(entries[1].Before, &before))
	require.NoError(t, json.Unmarshal(entries[1].After, &after))
	if before.Limit != 1000 || after.Limit != 2000 || entries[0].After != nil || entries[2].Before != nil {
		t.Errorf("limit %d became %d; after the delete there is %s, before the insert %s",
			before.Limit, after.Limit, entries[0].After, entries[2].Before)
	}
}

func TestTheAuditHasFactorsAsDecimals(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	doubled := permanent(schema.Override{Kind: "multiplier", Tenant: "acme", Factor: 2000})
	_, _, err := s.AddOverride(t.Context(), ann, doubled)
	require.NoError(t, err)
	_, _, err = s.AddOverride(t.Context(), ann, ban())
	require.NoError(t, err)
	pgtest.Exec(t, pool, `SET rate_limiter.reason = 'less'; UPDATE rate_limiter.overrides SET factor = 1500
		WHERE kind = 'multiplier';
		UPDATE rate_limiter.overrides SET factor = 1 WHERE kind = 'multiplier'; RESET rate_limiter.reason`)
	entries, _, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "override"})
	require.NoError(t, err)
	var factors []string
	for _, e := range entries {
		factors = append(factors, factorOf(t, e.Before)+" to "+factorOf(t, e.After))
	}
	got, want := strings.Join(factors, ", "), "1.5 to 0.001, 2 to 1.5, no row to null, no row to 2"
	assert.Equal(t, want, got, "the factors")
}

// factorOf returns the JSON of the factor of a row in the audit.
func factorOf(t *testing.T, row json.RawMessage) string {
	t.Helper()
	if row == nil {
		return "no row"
	}
	var columns struct{ Factor json.RawMessage }
	require.NoError(t, json.Unmarshal(row, &columns))
	return string(columns.Factor)
}

func TestAuditIsReadInPagesAndByFilter(t *testing.T) {
	s, _ := open(t)
	for i := range 5 {
		numbered := rows.Tenant{Tenant: schema.Tenant{ID: fmt.Sprint("t", i)}}
		_, _, err := s.SetTenant(t.Context(), ann, numbered)
		require.NoError(t, err)
	}
	var keys []string
	filter := rows.AuditFilter{Max: 2}
	for {
		page, next, err := s.Audit(t.Context(), filter)
		require.NoError(t, err)
		for _, e := range page {
			keys = append(keys, e.Key)
		}
		if next == 0 {
			break
		}
		filter.Before = next
	}
	assert.Equal(t, "[t4 t3 t2 t1 t0]", fmt.Sprint(keys), "the pages have %v", keys)
	for want, f := range map[int]rows.AuditFilter{
		1: {Tenant: "t3", Kind: "tenant", Key: "t3", Actor: "ann", Since: time.Unix(0, 0), Until: time.Now().Add(time.Hour)},
		0: {Since: time.Now().Add(time.Hour)},
	} {
		if found, _, err := s.Audit(t.Context(), f); err != nil || len(found) != want {
			t.Errorf("%+v selects %v (%v), want %d", f, found, err, want)
		}
	}
}
