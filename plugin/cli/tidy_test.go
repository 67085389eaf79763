package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	reported "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

func TestTidyReportsProgressOnStandardErrorAndOneDocumentOnStandardOutput(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	_, err := pool.Exec(t.Context(), `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at)
		SELECT 'n' || i, 0, now() - interval '9 days', now() - interval '9 days' FROM generate_series(1, 10) i`)
	require.NoError(t, err)
	var out, progress strings.Builder
	c := newCall(&operator{stdout: screen{to: &out}, stderr: screen{to: &progress}}, tidyCommand)
	c.format, c.database.dsn = formatJSON, dsn
	keep := rows.Retention{Overrides: time.Hour, Changes: time.Hour, Nodes: time.Hour}
	require.NoError(t, c.tidy(t.Context(), rows.New(pool), c.newLeader(), keep, 4))
	var done tidied
	if err := json.Unmarshal([]byte(out.String()), &done); err != nil || done.Nodes != 10 {
		t.Errorf("standard output is %q (%v), want one document with 10 nodes", out.String(), err)
	}
	lines := strings.Split(strings.TrimSpace(progress.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], ", nodes 4,") || !strings.Contains(lines[1], ", nodes 8,") {
		t.Errorf("standard error is %q, want the counts after each of two batches that another follows", progress.String())
	}
}

func TestTidyUnpacksTheUsageThatNodesHaveReported(t *testing.T) {
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	pool := pgtest.Pool(t, x.env[databaseVariable])
	b := reported.Batch{Epoch: "0123456789abcdef", Seq: 1, Rows: []reported.Row{{
		Key: reported.Key{Tenant: "acme"}, Counts: reported.Counts{Admitted: 7, Remaining: reported.NoRemaining},
	}}}
	payload, err := b.MarshalBinary()
	require.NoError(t, err)
	for seq, payload := range [][]byte{payload, []byte("damaged")} {
		pgtest.Exec(t, pool, `SELECT rate_limiter.report_usage('edge-1', $1, $2, '1 s', $3)`, b.Epoch, seq+1,
			payload)
	}
	if code := x.call("tidy"); code != 0 {
		t.Errorf("exit code %d: %s", code, x.output.String())
	}
	for _, want := range []string{"\nbatches   1\n", "batches of usage cannot be added"} {
		if !strings.Contains(x.output.String(), want) {
			t.Errorf("the output is %q, want %q in it", x.output.String(), want)
		}
	}
	var admitted int64
	err = pool.QueryRow(t.Context(), `SELECT sum(admitted)::bigint FROM rate_limiter.usage_minutes`).Scan(&admitted)
	if err != nil || admitted != 7 {
		t.Errorf("the minutes have %d admitted (%v), want 7", admitted, err)
	}
}

func TestTidyDeletesEventsThatArePastTheirRetention(t *testing.T) {
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	pool := pgtest.Pool(t, x.env[databaseVariable])
	_, err := pool.Exec(t.Context(), `INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data, added_at)
		SELECT i::text, '/control', 'x', now(), '', '{}', now() - i * interval '5 days' FROM generate_series(0, 2) i
		ORDER BY i DESC`)
	require.NoError(t, err)
	if code := x.call("tidy"); code != 0 {
		t.Errorf("exit code %d: %s", code, x.output.String())
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.outbox`).Scan(&left); err != nil || left != 2 {
		t.Errorf("%d events are left (%v), want 2", left, err)
	}
}
