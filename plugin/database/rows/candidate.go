package rows

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// States of a candidate.
const (
	CandidateOpen       = "open"
	CandidatePromoted   = "promoted"
	CandidateRolledBack = "rolled_back"
	CandidateDropped    = "dropped"
)

// Candidate is a named set of changes to the active policies, which are tried before they are promoted. At most one is
// open.
type Candidate struct {
	Name        string    `json:"name"                 example:"july"`
	State       string    `json:"state"                enum:"open,promoted,rolled_back,dropped"`
	Policies    int64     `json:"policies"             doc:"How many policies it changes."`
	PoliciesAt  int64     `json:"policies_version"     doc:"The version of the last change of its policies."`
	Revision    int64     `json:"revision"             doc:"The version of its last change, as its ETag has it."`
	BaseVersion int64     `json:"base_version"         doc:"The version of the active policies that it changes."`
	Percent     int32     `json:"percent"              doc:"For how many of all tenants it is enforced, by a hash."`
	Tenants     []string  `json:"tenants"              doc:"Tenants for which it is enforced, beside the percentage." nullable:"false"`
	CreatedAt   time.Time `json:"created_at"`
	CreatedBy   string    `json:"created_by"`
	Reason      string    `json:"reason"`
	EndedAt     time.Time `json:"ended_at,omitzero"    doc:"The last change of its state. Absent: it is open."`
	EndedBy     string    `json:"ended_by,omitempty"`
	EndReason   string    `json:"end_reason,omitempty"`
	BaseAudit   int64     `json:"-"` // the last audit entry of the base
}

func candidateNamed(name string) string { return "candidate " + name }

// selectCandidates selects candidates. A change of its base or its end is later than the assignments before it.
const selectCandidates = `SELECT c.name, c.state, c.percent, c.base_version, c.base_audit, c.created_at, c.created_by,
		c.reason, coalesce(c.ended_at, ` + zeroTime + `) AS ended_at, c.ended_by, c.end_reason,
		(SELECT count(*) FROM rate_limiter.candidate_policies p WHERE p.candidate = c.name) AS policies,
		changed.policies AS policies_at, greatest(changed.policies, changed.itself, changed.tenants) AS revision,
		ARRAY(SELECT t.tenant FROM rate_limiter.candidate_tenants t WHERE t.candidate = c.name ORDER BY 1) AS tenants
	FROM rate_limiter.candidates c, LATERAL (SELECT
		coalesce((SELECT max(a.version) FROM rate_limiter.audit a WHERE a.kind = 'candidate_policy'
			AND coalesce(a.after, a.before) ->> 'candidate' = c.name), 0) AS policies,
		(SELECT max(a.version) FROM rate_limiter.audit a WHERE a.kind = 'candidate' AND a.key = c.name) AS itself,
		(SELECT max(a.version) FROM rate_limiter.audit a WHERE a.kind = 'candidate_tenant' AND a.id > c.base_audit
			AND c.state = 'open' AND coalesce(a.after, a.before) ->> 'candidate' = c.name) AS tenants) changed`

// Candidates returns all candidates, the newest first.
func (s *DB) Candidates(ctx context.Context) ([]Candidate, error) {
	return readAll[Candidate](ctx, s.pool, "list candidates", selectCandidates+` ORDER BY c.created_at DESC, c.name`)
}

// Candidate returns the candidate of a name, or for "" the open one. It returns a NotFoundError if there is none.
func (s *DB) Candidate(ctx context.Context, name string) (Candidate, error) {
	c, err := candidateByName(ctx, s.pool, name)
	return c, fail("read "+candidateNamed(name), err)
}

func candidateByName(ctx context.Context, q querier, name string) (Candidate, error) {
	if name == "" {
		return one[Candidate](ctx, q, "an open candidate", selectCandidates+` WHERE c.state = 'open'`)
	}
	return one[Candidate](ctx, q, candidateNamed(name), selectCandidates+` WHERE c.name = $1`, name)
}

// CandidateDiff shows what a candidate changes.
type CandidateDiff struct {
	Candidate Candidate `json:"candidate"`
	Diff      Diff      `json:"diff"    doc:"What it changes in the active policies. Of one that was promoted: what it has changed."`
	Moved     Diff      `json:"moved"   doc:"How the active policies have changed since its base. It can be promoted only without such changes."`
	Version   int64     `json:"version" doc:"The version of the active policies that were compared."`
}

// snapshotRead is a transaction in which all statements read the same rows.
var snapshotRead = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// CandidateDiff returns what a candidate changes, for "" the open one.
func (s *DB) CandidateDiff(ctx context.Context, name string) (CandidateDiff, error) {
	var d CandidateDiff
	err := pgx.BeginTxFunc(ctx, s.pool, snapshotRead, func(tx pgx.Tx) (err error) {
		if d.Candidate, err = candidateByName(ctx, tx, name); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT version FROM rate_limiter.version`).Scan(&d.Version); err != nil {
			return err
		}
		changes, before, err := changesAndActive(ctx, tx, d.Candidate.Name)
		if err != nil {
			return err
		}
		if d.Candidate.State != CandidateOpen {
			before = changes.was()
		} else if d.Moved, err = movedSince(ctx, tx, d.Candidate.BaseAudit); err != nil {
			return err
		}
		d.Diff, err = Compare(before, changes.puts())
		return err
	})
	return d, fail("compare "+candidateNamed(name), err)
}

type candidateChange struct {
	ID int64
	PolicyKey
	Body *schema.Policy // nil: it is deleted
	Was  *schema.Policy // what the promotion has replaced; nil: nothing
}

// candidateChanges are those of one candidate, in the order in which they were made.
type candidateChanges []candidateChange

func changesOf(ctx context.Context, q querier, candidate string) (candidateChanges, error) {
	return collect[candidateChange](ctx, q, `SELECT id, namespace, name, tier, tenant, "user", credential, ip, "for",
			endpoint, body, was
		FROM rate_limiter.candidate_policies WHERE candidate = $1 ORDER BY id`, candidate)
}

func (c candidateChanges) puts() (list []Policy) {
	for i := range c {
		if body := c[i].Body; body != nil {
			list = append(list, Policy{Policy: *body})
		}
	}
	return list
}

// was returns the policies that the promotion has replaced.
func (c candidateChanges) was() (list []Policy) {
	for i := range c {
		if was := c[i].Was; was != nil {
			list = append(list, Policy{Policy: *was})
		}
	}
	return list
}

func changesAndActive(ctx context.Context, q querier, candidate string) (candidateChanges, []Policy, error) {
	changes, err := changesOf(ctx, q, candidate)
	if err != nil {
		return nil, nil, err
	}
	keys := make([]PolicyKey, len(changes))
	for i := range changes {
		keys[i] = changes[i].PolicyKey
	}
	current, err := activePolicies(ctx, q, keys...)
	return changes, current, err
}

// activePolicies returns the active policies of keys, without those that do not exist.
func activePolicies(ctx context.Context, q querier, keys ...PolicyKey) ([]Policy, error) {
	list, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	return collect[Policy](ctx, q, policyTable.selects+` WHERE id IN (SELECT p.id FROM rate_limiter.policies p
		JOIN jsonb_to_recordset($1) AS k(`+keyColumns+`) ON `+hasKey+`) ORDER BY id`, list)
}

// movedSince returns how the active policies have changed after an entry of the audit. A policy that has its former
// values again counts as unchanged.
func movedSince(ctx context.Context, q querier, audit int64) (Diff, error) {
	states := func(row, order string) ([]Policy, error) {
		return scalars[Policy](ctx, q, fmt.Sprintf(`SELECT row FROM (
				SELECT DISTINCT ON (key) %s AS row FROM rate_limiter.audit
				WHERE kind = 'policy' AND id > $1 ORDER BY key, id %s
			) changed WHERE row IS NOT NULL`, row, order), audit)
	}
	before, err := states("before", "ASC")
	if err != nil {
		return Diff{}, fmt.Errorf("read how the policies were: %w", err)
	}
	after, err := states("after", "DESC")
	if err != nil {
		return Diff{}, fmt.Errorf("read how the policies are: %w", err)
	}
	return Compare(before, after)
}

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
	WindowSize int64   `json:"window_size" doc:"Seconds; the longest, if policies of this name have several. Of a period the usual length, of concurrency max_duration."`
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

// windowSeconds is the length of what a policy p counts over, as schema.Window.Seconds returns it.
const windowSeconds = `coalesce(p.window_size, p.max_duration, CASE p.period WHEN 'day' THEN 1 WHEN 'week' THEN 7
	WHEN 'month' THEN 30 WHEN 'quarter' THEN 91 ELSE 365 END * 86400)`

// readWindows reads how much of their windows the policies of the report have seen: those that the candidate puts, and
// those that it has counted.
func (r *CandidateReport) readWindows(ctx context.Context, tx pgx.Tx) (err error) {
	r.Windows, err = collect[CandidateWindow](ctx, tx, `WITH puts AS (
			SELECT c.name, max(`+windowSeconds+`) AS window_size,
				max((SELECT max(a.at) FROM rate_limiter.audit a
					WHERE a.kind = 'candidate_policy' AND a.key = c.id::text AND a.after ->> 'was' IS NULL)) AS since
			FROM rate_limiter.candidate_policies c, jsonb_populate_record(NULL::rate_limiter.policies, c.body) p
			WHERE c.candidate = $1 AND c.body IS NOT NULL GROUP BY 1
		), counted AS (
			SELECT DISTINCT policy FROM rate_limiter.candidate_counts WHERE candidate = $1 AND policy <> ''
		), windows AS (
			SELECT name, window_size, since FROM puts
			UNION ALL SELECT p.name, max(`+windowSeconds+`), NULL FROM counted k
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
