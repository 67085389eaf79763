package rows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestTheAuditHasFactorsAsDecimals(t *testing.T) {
	s, pool := open(t)
	doubled := permanent(schema.Override{Kind: "multiplier", Tenant: "acme", Factor: 2000})
	_, _, err := s.AddOverride(t.Context(), ann, doubled)
	require.NoError(t, err)
	_, _, err = s.AddOverride(t.Context(), ann, ban())
	require.NoError(t, err)
	pgtest.Exec(t, pool, `SET rate_limiter.reason = 'less'; UPDATE rate_limiter.overrides SET factor = 1500
		WHERE kind = 'multiplier';
		UPDATE rate_limiter.overrides SET factor = 1 WHERE kind = 'multiplier'; RESET rate_limiter.reason`)
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "override"})
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
		page, err := s.Audit(t.Context(), filter)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			keys = append(keys, e.Key)
			filter.Before = e.ID
		}
	}
	assert.Equal(t, "[t4 t3 t2 t1 t0]", fmt.Sprint(keys), "the pages have %v", keys)
	for want, f := range map[int]rows.AuditFilter{
		1: {Tenant: "t3", Kind: "tenant", Key: "t3", Actor: "ann", Since: time.Unix(0, 0), Until: time.Now().Add(time.Hour)},
		0: {Since: time.Now().Add(time.Hour)},
	} {
		if found, err := s.Audit(t.Context(), f); err != nil || len(found) != want {
			t.Errorf("%+v selects %v (%v), want %d", f, found, err, want)
		}
	}
}

// lastQuery records the last query of a pool.
type lastQuery struct {
	mu   sync.Mutex
	sql  string
	args []any
}

func (q *lastQuery) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sql, q.args = data.SQL, data.Args
	return ctx
}

func (q *lastQuery) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// plan is a node of a query's plan, with the fields that tests read.
type plan struct {
	Rows    float64 `json:"Actual Rows"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []plan
}

// rowsRead returns the largest number of rows that a node of the plan has read.
func (p plan) rowsRead() float64 {
	rows := p.Rows + p.Removed
	for _, child := range p.Plans {
		rows = max(rows, child.rowsRead())
	}
	return rows
}

// rowsRead returns the largest number of rows that a node of the plan of the last query reads.
func (q *lastQuery) rowsRead(t *testing.T, pool *pgxpool.Pool) float64 {
	t.Helper()
	q.mu.Lock()
	sql, args := q.sql, q.args
	q.mu.Unlock()
	var plans []struct{ Plan plan }
	require.NoError(t, pool.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+sql, args...).Scan(&plans))
	return plans[0].Plan.rowsRead()
}

func TestACandidateIsReadWithoutReadingALongAudit(t *testing.T) {
	const entries = 50_000
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	var last lastQuery
	s := wired(t, dsn, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &last })
	candidate(t, s, july, daily())
	before, err := s.Candidate(t.Context(), july)
	require.NoError(t, err)
	// Half of the entries are of policies of other candidates, which have ended.
	_, err = pool.Exec(t.Context(), `
		INSERT INTO rate_limiter.audit (version, at, actor, reason, kind, operation, key, tenant, after)
		SELECT i, now(), 'ann', 'r', CASE WHEN i % 2 = 0 THEN 'candidate_policy' ELSE 'tier' END, 'insert', i::text, '',
			json_build_object('candidate', 'of-' || i % 100)
		FROM generate_series(1, $1::int) i`, entries)
	if err == nil {
		_, err = pool.Exec(t.Context(), `ANALYZE rate_limiter.audit`)
	}
	require.NoError(t, err)
	after, err := s.Candidate(t.Context(), july)
	if err != nil || after.PoliciesAt != before.PoliciesAt {
		t.Fatalf("its policies are of version %d (%v), want %d", after.PoliciesAt, err, before.PoliciesAt)
	}
	if rows := last.rowsRead(t, pool); rows > entries/20 {
		t.Errorf("%v of %d entries are read for the version of its policies", rows, entries)
	}
}

func TestAFewEntriesOfALongAuditAreFoundByTimeAndByActorWithoutReadingAllOfIt(t *testing.T) {
	const entries = 50_000
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	var last lastQuery
	s := wired(t, dsn, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &last })
	// One entry a minute, the last a minute ago; one in a thousand is bob's, all before half of the time.
	_, err := pool.Exec(t.Context(), `
		INSERT INTO rate_limiter.audit (version, at, actor, reason, kind, operation, key, tenant)
		SELECT i, now() - ($1::int + 1 - i) * interval '1 minute', CASE WHEN i % 1000 = 0
		AND i < $1::int / 2 THEN 'bob' ELSE 'ann' END,
			'r', 'tier', 'update', 'gold', '' FROM generate_series(1, $1::int) i`, entries)
	if err == nil {
		_, err = pool.Exec(t.Context(), `ANALYZE rate_limiter.audit`)
	}
	require.NoError(t, err)
	now, old := time.Now(), time.Now().Add(-entries/2*time.Minute)
	for what, f := range map[string]rows.AuditFilter{
		"of an actor":                  {Actor: "bob"},
		"of the last hour":             {Since: now.Add(-time.Hour)},
		"of an hour long ago":          {Since: old, Until: old.Add(time.Hour)},
		"of an actor in the last hour": {Actor: "bob", Since: now.Add(-time.Hour)},
		"of an actor long ago":         {Actor: "bob", Since: old.Add(-24 * time.Hour), Until: old},
	} {
		found, err := s.Audit(t.Context(), f)
		if err != nil || len(found) > 60 {
			t.Fatalf("%s: %d entries (%v)", what, len(found), err)
		}
		if list := last.rowsRead(t, pool); list > entries/20 {
			t.Errorf("%s: %v of %d entries are read to find %d", what, list, entries, len(found))
		}
	}
}
