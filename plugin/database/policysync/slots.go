package policysync

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// inactive counts the policies of the slot candidate, which programs wrote before migration 00011. They belong to no
// candidate, apply to no request, and are in no snapshot.
type inactive struct {
	count int64
	ids   []int64 // the first of them
}

// readInactive counts the policies of another slot than active.
func readInactive(ctx context.Context, tx pgx.Tx) (c inactive, err error) {
	err = tx.QueryRow(ctx, `SELECT count(*), coalesce((array_agg(id ORDER BY id))[1:$1], '{}')
		FROM rate_limiter.policies WHERE slot <> 'active'`, maxLogged).Scan(&c.count, &c.ids)
	if err != nil {
		return c, fmt.Errorf("count the policies of other slots: %w", err)
	}
	return c, nil
}

// logInactive warns of such policies when a load finds another number of them than the one before.
func (s *Sync) logInactive(c inactive, version int64) {
	if c.count > 0 && c.count != s.inactive {
		s.log.Warn("policies of the slot candidate apply to no request",
			"rows", c.count, "ids", c.ids, "version", version,
			"advice", "delete those that ratelimit policy list --slot candidate lists; a candidate is a set of changes now: "+
				"ratelimit candidate create")
	}
	s.inactive = c.count
}
