package policysync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const candidateKind = "candidate"

// readCandidate reads the open candidate; nil: none is open. A change that cannot be decoded is read without a limit,
// so that it becomes a fault of its own.
func readCandidate(ctx context.Context, tx pgx.Tx) (*policy.CandidateSet, error) {
	var set policy.CandidateSet
	var created time.Time
	err := tx.QueryRow(ctx, `SELECT name, percent, created_at FROM rate_limiter.candidates WHERE state = 'open'`).
		Scan(&set.Name, &set.Percent, &created)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // none is open
	}
	if err != nil {
		return nil, fmt.Errorf("read the open candidate: %w", err)
	}
	set.Created = limit.Micros(created.UnixMicro())
	rows, _ := tx.Query(ctx, `SELECT namespace, name, tier, tenant, "user", credential, ip, "for", endpoint, body
		FROM rate_limiter.candidate_policies WHERE candidate = $1
		ORDER BY namespace, tenant, tier, name, endpoint, id`, set.Name)
	if set.Rows, err = pgx.CollectRows(rows, scanCandidateRow); err != nil {
		return nil, fmt.Errorf("read the policies of candidate %s: %w", set.Name, err)
	}
	rows, _ = tx.Query(ctx, `SELECT tenant FROM rate_limiter.candidate_tenants WHERE candidate = $1`, set.Name)
	if set.Tenants, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, fmt.Errorf("read the tenants of candidate %s: %w", set.Name, err)
	}
	return &set, nil
}

func scanCandidateRow(row pgx.CollectableRow) (r policy.CandidateRow, err error) {
	var body []byte
	key := []any{&r.Namespace, &r.Name, &r.Tier, &r.Tenant, &r.User, &r.Credential, &r.IP, &r.For, &r.Endpoint, &body}
	if err := row.Scan(key...); err != nil {
		return r, err
	}
	if r.Deleted = body == nil; !r.Deleted && json.Unmarshal(body, &r.Policy) != nil {
		r.Policy = schema.Policy{}
	}
	return r, row.Scan(key...) // the columns are the key, whatever the body says
}

// withCandidate puts the open candidate beside a snapshot, and logs changes of it that do not compile, once.
func (s *Sync) withCandidate(snapshot *policy.Snapshot) *policy.Snapshot {
	if s.candidate == nil {
		s.candidateFaults = nil
		return snapshot
	}
	both, faults := snapshot.WithCandidate(s.candidate)
	if !slices.Equal(faults, s.candidateFaults) {
		s.logFaults(faults, snapshot.Version())
	}
	s.candidateFaults = faults
	return both
}

// CandidateSink stores what nodes count about a candidate, over a connection of its own. It implements the Sink of
// package candidate.
type CandidateSink struct{ reportSession }

// NewCandidateSink returns a sink that has not connected yet.
func NewCandidateSink(source Source) *CandidateSink {
	return &CandidateSink{reportSession{source: source}}
}

// Report stores a batch that began age ago. A batch that is stored already stays as it is.
func (c *CandidateSink) Report(
	ctx context.Context, source, candidate string, seq int64, age time.Duration, rows []byte,
) error {
	const sql = `SELECT rate_limiter.report_candidate($1, $2, $3, $4, $5)`
	return c.reportBatch(ctx, "report a candidate", sql, source, candidate, seq, age, string(rows))
}
