package rows

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// CandidateReport has what a candidate would change, as nodes have counted it beside the active policies.
type CandidateReport struct {
	Candidate Candidate         `json:"candidate"`
	Since     time.Time         `json:"since,omitzero"    doc:"Nodes compare since then. Absent: none has reported."`
	Until     time.Time         `json:"until,omitzero"    doc:"The last report."`
	Processes int64             `json:"processes"         doc:"How many processes have reported."`
	Dropped   int64             `json:"dropped"           doc:"Counts for which there was no room."`
	Total     CandidateTotal    `json:"total"             doc:"Of all requests that were compared, whatever the filter is."`
	Windows   []CandidateWindow `json:"windows"           doc:"How much of the windows of its policies it has seen." nullable:"false"`
	Items     []CandidateCount  `json:"items"             doc:"Those with the most differences are first." nullable:"false"`
}

// CandidateTotal counts requests that were compared.
type CandidateTotal struct {
	Requests      int64 `json:"requests"`
	ActiveOnly    int64 `json:"active_only"    doc:"Denied by the active policies, admitted by the candidate."`
	CandidateOnly int64 `json:"candidate_only" doc:"Denied by the candidate, admitted by the active policies."`
	Both          int64 `json:"both"           doc:"Denied by both."`
	Tenants       int64 `json:"tenants_denied" doc:"How many tenants have requests that only the candidate denies."`
}

// CandidateWindow reports how much of the window of a policy a candidate has seen. Until it has seen all of it, a
// report may lack denials at its end.
type CandidateWindow struct {
	Policy     string  `json:"policy"`
	WindowSize int64   `json:"window_size" doc:"Seconds; the longest, if policies of this name have several."`
	Seen       float64 `json:"seen"        doc:"0 to 1: the time since nodes compare, or since the candidate has changed the policy, in windows."`
}

// CandidateCount compares the requests of a tenant and an endpoint for one policy.
type CandidateCount struct {
	Tenant        string             `json:"tenant"         doc:"Empty: requests without a tenant."`
	Endpoint      string             `json:"endpoint"`
	Policy        string             `json:"policy"         doc:"Empty: the requests themselves, whichever policy denies. The other rows count what one policy answers: their sum means nothing."`
	Requests      int64              `json:"requests"       doc:"That were compared."`
	ActiveOnly    int64              `json:"active_only"    doc:"Denied by the active policies, admitted by the candidate."`
	CandidateOnly int64              `json:"candidate_only" doc:"Denied by the candidate, admitted by the active policies."`
	Both          int64              `json:"both"           doc:"Denied by both."`
	Examples      []CandidateExample `json:"examples"       doc:"Of requests that they answer differently, the latest first." nullable:"false"`
	FirstAt       time.Time          `json:"first_at"`
	LastAt        time.Time          `json:"last_at"`
}

// CandidateExample is a request that the active policies and a candidate answer differently.
type CandidateExample struct {
	At        time.Time `json:"at"`
	User      string    `json:"user,omitempty" doc:"A hash of the user. Absent: the request names none."`
	DeniedBy  string    `json:"denied_by"      enum:"active,candidate"`
	Active    string    `json:"active"         doc:"The limit that decides, or why the request is denied without one. Empty: no limit applies."`
	Candidate string    `json:"candidate"      doc:"The same of the candidate."`
}

// CandidateReportFilter selects rows of a report. Every field that is set must match.
type CandidateReportFilter struct {
	Tenant   string `query:"tenant"   maxLength:"128" doc:"Only requests of this tenant."                                     example:"acme"`
	Policy   string `query:"policy"   maxLength:"64"  doc:"Only rows of this policy."                                         example:"daily"`
	Requests bool   `query:"requests"                 doc:"Only the rows of the requests themselves, of no single policy."`
	Max      int    `query:"limit"    default:"100"   doc:"The maximum number of rows."                                       minimum:"1"     maximum:"1000"`
}

// reportPage is the default of CandidateReportFilter.Max.
const reportPage = 100

// CandidateReport returns what a candidate, or for "" the open one, would change.
func (s *DB) CandidateReport(ctx context.Context, name string, f CandidateReportFilter) (CandidateReport, error) {
	var r CandidateReport
	err := pgx.BeginTxFunc(ctx, s.pool, snapshotRead, func(tx pgx.Tx) (err error) {
		if r.Candidate, err = candidateByName(ctx, tx, name); err != nil {
			return err
		}
		if err := r.readSources(ctx, tx); err != nil {
			return fmt.Errorf("read who has reported: %w", err)
		}
		if err := r.readItems(ctx, tx, f); err != nil {
			return fmt.Errorf("read the counts: %w", err)
		}
		return r.readWindows(ctx, tx)
	})
	return r, fail("report "+candidateNamed(name), err)
}

// readSources reads since when nodes compare, and the totals.
func (r *CandidateReport) readSources(ctx context.Context, tx pgx.Tx) error {
	err := tx.QueryRow(ctx, `SELECT coalesce(min(first_at), `+zeroTime+`), coalesce(max(last_at), `+zeroTime+`), count(*),
			(SELECT coalesce(sum(dropped), 0)::bigint FROM rate_limiter.candidate_reports WHERE candidate = $1)
		FROM rate_limiter.candidate_sources WHERE candidate = $1`, r.Candidate.Name).
		Scan(&r.Since, &r.Until, &r.Processes, &r.Dropped)
	if err != nil {
		return err
	}
	r.Total, err = one[CandidateTotal](ctx, tx, "a total", `SELECT coalesce(sum(requests), 0)::bigint AS requests,
			coalesce(sum(active_only), 0)::bigint AS active_only, coalesce(sum(candidate_only), 0)::bigint AS candidate_only,
			coalesce(sum("both"), 0)::bigint AS "both",
			count(DISTINCT tenant) FILTER (WHERE candidate_only > 0 AND tenant <> '') AS tenants
		FROM rate_limiter.candidate_counts WHERE candidate = $1 AND policy = ''`, r.Candidate.Name)
	return err
}

// readItems reads the counts that a filter selects.
func (r *CandidateReport) readItems(ctx context.Context, tx pgx.Tx, f CandidateReportFilter) (err error) {
	var w where
	w.add("candidate = %s", r.Candidate.Name)
	w.equal("tenant", f.Tenant)
	w.equal("policy", f.Policy)
	if f.Requests {
		w.add("policy = %s", "")
	}
	r.Items, err = collect[CandidateCount](ctx, tx, `SELECT tenant, endpoint, policy, requests, active_only,
			candidate_only, "both", examples, first_at, last_at FROM rate_limiter.candidate_counts`+w.String()+
		` ORDER BY candidate_only DESC, active_only DESC, "both" DESC, requests DESC, tenant, endpoint, policy`+
		limitTo(cmp.Or(f.Max, reportPage)), w.args...)
	return err
}

// readWindows reads how much of their windows the policies of the report have seen: those that the candidate puts, and
// those that it has counted.
func (r *CandidateReport) readWindows(ctx context.Context, tx pgx.Tx) (err error) {
	r.Windows, err = collect[CandidateWindow](ctx, tx, `WITH puts AS (
			SELECT c.name, max((c.body ->> 'window_size')::bigint) AS window_size,
				max((SELECT max(a.at) FROM rate_limiter.audit a
					WHERE a.kind = 'candidate_policy' AND a.key = c.id::text AND a.after ->> 'was' IS NULL)) AS since
			FROM rate_limiter.candidate_policies c WHERE c.candidate = $1 AND c.body IS NOT NULL GROUP BY 1
		), counted AS (
			SELECT DISTINCT policy FROM rate_limiter.candidate_counts WHERE candidate = $1 AND policy <> ''
		), windows AS (
			SELECT name, window_size, since FROM puts
			UNION ALL SELECT p.name, max(p.window_size), NULL FROM counted k
				JOIN rate_limiter.policies p ON p.name = k.policy
				WHERE NOT EXISTS (SELECT FROM puts WHERE puts.name = k.policy) GROUP BY 1
		) SELECT name AS policy, window_size, CASE WHEN $4
				THEN least(1, greatest(0, extract(epoch FROM $3::timestamptz - greatest(since, $2)) / window_size))
				ELSE 0 END::float8 AS seen
			FROM windows ORDER BY seen, name COLLATE "C"`, r.Candidate.Name, r.Since, r.Until, r.Processes > 0)
	if err != nil {
		return fmt.Errorf("read the windows: %w", err)
	}
	return nil
}
