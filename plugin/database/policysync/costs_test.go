package policysync_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestCostsAreLoadedFollowedAndSaved(t *testing.T) {
	w := newWorld(t)
	w.write(`INSERT INTO rate_limiter.costs (endpoint, cost) VALUES ('GET /a', 2), ('GET /b', 0)`)
	options := w.options()
	options.Dir = t.TempDir()
	n := start(t, options)
	want := func(when string, s *policy.Snapshot, costs map[string]int64) {
		t.Helper()
		rows := s.Costs()
		for _, row := range rows {
			if tokens, ok := costs[row.Endpoint]; !ok || tokens != *row.Cost.Cost {
				t.Errorf("%s: %s costs %d", when, row.Endpoint, *row.Cost.Cost)
			}
		}
		if len(rows) != len(costs) {
			t.Errorf("%s: there are %d costs, want %v", when, len(rows), costs)
		}
	}
	want("loaded", n.await(1), map[string]int64{"GET /a": 2, "GET /b": 0})
	changed := w.write(`UPDATE rate_limiter.costs SET cost = 5 WHERE endpoint = 'GET /a';
		DELETE FROM rate_limiter.costs WHERE endpoint = 'GET /b';
		INSERT INTO rate_limiter.costs (endpoint, cost) VALUES ('GET /c', 7)`)
	now := map[string]int64{"GET /a": 5, "GET /c": 7}
	want("followed", n.await(changed), now)
	n.until("it is saved", func(policysync.Stats) bool {
		saved, err := policysync.ReadFile(fileIn(options.Dir), 0)
		if err != nil || saved.Rows.Version != changed {
			return false
		}
		snapshot, faults := policy.NewSnapshot(saved.Rows, nil)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		want("saved", snapshot, now)
		return true
	})
}
