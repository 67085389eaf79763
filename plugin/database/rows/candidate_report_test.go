package rows_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// reportCounts reports a batch of a process that began age ago.
func reportCounts(t *testing.T, pool *pgxpool.Pool, source string, age time.Duration, rows string) {
	t.Helper()
	var added bool
	err := pool.QueryRow(t.Context(), `SELECT rate_limiter.report_candidate($1, 'july', 1, $2, $3)`, source, age, rows).
		Scan(&added)
	if err != nil || !added {
		t.Fatalf("report: %v (%v)", added, err)
	}
}

func TestTheReportOfACandidateHasCountsExamplesAndSeenWindows(t *testing.T) {
	s, pool := open(t)
	put(t, s, named("hourly")[0]) // of a day
	candidate(t, s, july, limited(5))
	r, err := s.CandidateReport(t.Context(), "", rows.CandidateReportFilter{})
	if err != nil || len(r.Items) != 0 || r.Processes != 0 || len(r.Windows) != 1 || r.Windows[0].Seen != 0 {
		t.Fatalf("before any report there is %+v (%v)", r, err)
	}

	reportCounts(t, pool, "n1", 12*time.Hour, `[
		{"tenant": "acme", "endpoint": "GET /a", "policy": "", "requests": 100, "active_only": 1, "candidate_only": 7,
			"both": 2},
		{"tenant": "acme", "endpoint": "GET /a", "policy": "daily", "requests": 100, "active_only": 0, "candidate_only": 8,
			"both": 0,
			"examples": [{"at": "2026-11-22T10:00:00Z", "denied_by": "candidate", "active": "", "candidate": "daily"}]},
		{"tenant": "globex", "endpoint": "GET /a", "policy": "", "requests": 50, "active_only": 0, "candidate_only": 0,
			"both": 0},
		{"tenant": "globex", "endpoint": "GET /a", "policy": "hourly", "requests": 50, "active_only": 0, "candidate_only": 0,
			"both": 0}]`)
	reportCounts(t, pool, "n2", time.Minute, `[
		{"tenant": "", "endpoint": "", "policy": "", "requests": 3, "active_only": 0, "candidate_only": 1, "both": 0}]`)
	r, err = s.CandidateReport(t.Context(), july, rows.CandidateReportFilter{})
	require.NoError(t, err)
	if want := (rows.CandidateTotal{153, 1, 8, 2, 1}); r.Total != want || r.Processes != 2 || len(r.Items) != 5 {
		t.Errorf("the report has %+v from %d processes and %d rows, want %+v", r.Total, r.Processes, len(r.Items), want)
	}
	if first := r.Items[0]; first.Policy != "daily" || first.CandidateOnly != 8 || len(first.Examples) != 1 ||
		first.Examples[0].DeniedBy != "candidate" {
		t.Errorf("the first row is %+v, want that of the most differences", first)
	}
	// The candidate has changed daily a moment ago, and nodes compare hourly for half of its window.
	if len(r.Windows) != 2 || r.Windows[0].Policy != "daily" || r.Windows[0].Seen > 0.1 ||
		r.Windows[1].Policy != "hourly" || r.Windows[1].Seen < 0.4 || r.Windows[1].Seen > 0.6 {
		t.Errorf("the windows are seen as %+v", r.Windows)
	}

	_, err = pool.Exec(t.Context(), `UPDATE rate_limiter.policies SET window_size = NULL, period = 'month',
		algorithm = 'fixed_window'`)
	require.NoError(t, err)
	r, err = s.CandidateReport(t.Context(), july, rows.CandidateReportFilter{})
	if err != nil || r.Windows[1].WindowSize != 30*86400 || r.Windows[1].Seen > 0.1 {
		t.Errorf("a month is seen as %+v (%v)", r.Windows, err)
	}

	r, err = s.CandidateReport(t.Context(), july, rows.CandidateReportFilter{Tenant: "acme", Requests: true, Max: 1})
	if err != nil || len(r.Items) != 1 || r.Items[0].Requests != 100 || r.Total.Requests != 153 {
		t.Errorf("of a tenant there is %+v (%v)", r.Items, err)
	}
	_, err = s.CandidateReport(t.Context(), "none", rows.CandidateReportFilter{})
	wantMissing(t, "a report of no candidate", err)
}
