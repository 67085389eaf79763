package rows

import (
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

const selectCandidates = `SELECT c.name, c.state, c.percent, c.base_version, c.base_audit, c.created_at, c.created_by,
		c.reason, coalesce(c.ended_at, ` + zeroTime + `) AS ended_at, c.ended_by, c.end_reason,
		(SELECT count(*) FROM rate_limiter.candidate_policies p WHERE p.candidate = c.name) AS policies,
		coalesce((SELECT max(a.version) FROM rate_limiter.audit a WHERE a.kind = 'candidate_policy'
			AND coalesce(a.after, a.before) ->> 'candidate' = c.name), 0) AS policies_at,
		ARRAY(SELECT t.tenant FROM rate_limiter.candidate_tenants t WHERE t.candidate = c.name ORDER BY 1) AS tenants
	FROM rate_limiter.candidates c`

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

// candidateChange is a policy that a candidate puts or deletes.
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

// puts returns the policies that the candidate puts.
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

// changesAndActive returns the changes of a candidate, and the active policies that it changes.
func changesAndActive(ctx context.Context, q querier, candidate string) (candidateChanges, []Policy, error) {
	changes, err := changesOf(ctx, q, candidate)
	if err != nil {
		return nil, nil, err
	}
	current, err := changes.active(ctx, q)
	return changes, current, err
}

// active returns the active policies that the candidate changes.
func (c candidateChanges) active(ctx context.Context, q querier) ([]Policy, error) {
	keys := make([]PolicyKey, len(c))
	for i := range c {
		keys[i] = c[i].PolicyKey
	}
	return activePolicies(ctx, q, keys...)
}

// activePolicies returns the active policies of keys, without those that do not exist.
func activePolicies(ctx context.Context, q querier, keys ...PolicyKey) ([]Policy, error) {
	list, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	return collect[Policy](ctx, q, policyTable.selects+` p JOIN jsonb_to_recordset($1) AS k(`+keyColumns+`)
		ON (p.tier, p.tenant, p.name, p.namespace, p."user", p.credential, p.ip, p."for")
				= (k."Tier", k."Tenant", k."Name", k."Namespace", k."User", k."Credential", k."IP", k."For")
			AND rate_limiter.canonical_endpoint(p.endpoint) = rate_limiter.canonical_endpoint(k."Endpoint")
		ORDER BY p.id`, list)
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
