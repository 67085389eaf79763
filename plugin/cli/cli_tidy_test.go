package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestTidyReportsProgressOnStandardErrorAndOneDocumentOnStandardOutput(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	_, err := pool.Exec(t.Context(), `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at)
		SELECT 'n' || i, 0, now() - interval '9 days', now() - interval '9 days' FROM generate_series(1, 10) i`)
	if err != nil {
		t.Fatal(err)
	}
	var out, progress strings.Builder
	c := newCall(&operator{stdout: screen{to: &out}, stderr: screen{to: &progress}}, tidyCommand)
	c.format = formatJSON
	keep := pgstore.Retention{Overrides: time.Hour, Changes: time.Hour, Nodes: time.Hour}
	if err := c.tidy(t.Context(), pgstore.New(pool), keep, 4); err != nil {
		t.Fatal(err)
	}
	var done pgstore.Tidied
	if err := json.Unmarshal([]byte(out.String()), &done); err != nil || done.Nodes != 10 {
		t.Errorf("standard output is %q (%v), want one document with 10 nodes", out.String(), err)
	}
	lines := strings.Split(strings.TrimSpace(progress.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], " 4 nodes") || !strings.Contains(lines[1], " 8 nodes") {
		t.Errorf("standard error is %q, want the counts after each of two batches that another follows", progress.String())
	}
}
