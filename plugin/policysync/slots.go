package policysync

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// candidates counts the policies of the slot candidate, which programs wrote before migration 00011. They apply to no
// request, and are in no snapshot.
type candidates struct {
	count int64
	ids   []int64 // the first of them
}

// readCandidates counts the policies of the slot candidate.
func readCandidates(ctx context.Context, tx pgx.Tx) (c candidates, err error) {
	err = tx.QueryRow(ctx, `SELECT count(*), coalesce((array_agg(id ORDER BY id))[1:$1], '{}')
		FROM rate_limiter.policies WHERE slot <> 'active'`, maxLogged).Scan(&c.count, &c.ids)
	if err != nil {
		return c, fmt.Errorf("count the candidates: %w", err)
	}
	return c, nil
}

// logCandidates warns of candidates when a load finds another number of them than the one before.
func (s *Sync) logCandidates(c candidates, version int64) {
	if c.count > 0 && c.count != s.candidates {
		s.log.Warn("policies of the slot candidate apply to no request",
			"rows", c.count, "ids", c.ids, "version", version,
			"advice", "delete those that ratelimit policy list --slot candidate lists")
	}
	s.candidates = c.count
}
