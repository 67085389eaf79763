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

// overrideKeyColumns lists the columns that a change of an override leaves as they are. Its endpoint is not among them:
// the names of its parameters may change.
var overrideKeyColumns = []string{"kind", "tenant", "user", "credential", "ip", "tag", "policy", "author"}

var updateOverride = fmt.Sprintf(`UPDATE rate_limiter.overrides o SET %s
	FROM jsonb_populate_record(NULL::rate_limiter.overrides, $1) n WHERE o.id = n.id`,
	columnsOf(schema.OverrideFields()).without(overrideKeyColumns...).set("n"))

// PutOverride changes the override of o.ID, which keeps its id and author, or returns a NotFoundError: its numbers, its
// note, its reason, its end, and until it begins its start. What it is about must stay. One that has ended does not
// change: that is a ConflictError without a revision. o.Revision must be that of the row, or AnyRevision or Present. It
// returns the row after the write, and the version in which it is in force.
func (s *DB) PutOverride(ctx context.Context, c Change, o Override) (Override, int64, error) {
	what := fmt.Sprint("override ", o.ID)
	return write(ctx, s, "put "+what, c, func(tx pgx.Tx) (Override, error) {
		current, err := override(ctx, tx, o.ID)
		if err == nil {
			err = sameRevision(what, o.Revision, current.Revision)
		}
		if err != nil {
			return Override{}, err
		}
		o.Reason, o.Author = cmp.Or(o.Reason, c.Reason), current.Author
		o.Source, o.IP = o.OwnSource(), canonicalIP(o.IP)
		if err := o.check(); err != nil {
			return Override{}, err
		}
		if err := current.changesTo(o); err != nil {
			return Override{}, err
		}
		row, err := json.Marshal(o)
		if err == nil {
			_, err = tx.Exec(ctx, updateOverride, row)
		}
		if err != nil {
			return Override{}, err
		}
		changed, err := override(ctx, tx, o.ID)
		if err == nil && changed.State == StateEnded {
			err = &InvalidError{what, "expires_at", expiryProblem}
		}
		return changed, err
	})
}

// changesTo returns why an override cannot become another one.
func (o Override) changesTo(next Override) error {
	what := fmt.Sprint("override ", o.ID)
	switch {
	case o.State == StateEnded:
		return &ConflictError{What: what, Problem: "it has ended: add another override"}
	case o.Source == schema.SourceDetector:
		return &InvalidError{what, "source", "is detector, whose penalties do not change: end it, or add another override"}
	}
	for _, part := range [...][3]string{
		{"kind", o.Kind, next.Kind},
		{"tenant", o.Tenant, next.Tenant},
		{"user", o.User, next.User},
		{"endpoint", schema.CanonicalEndpoint(o.Endpoint), schema.CanonicalEndpoint(next.Endpoint)},
		{"credential", o.Credential, next.Credential},
		{"ip", o.IP, next.IP},
		{"tag", o.Tag, next.Tag},
		{"policy", o.Policy, next.Policy},
	} {
		if part[1] != part[2] {
			return &InvalidError{what, part[0], fmt.Sprintf("must stay %q: end the override, and add another", part[1])}
		}
	}
	switch {
	case o.State == StateScheduled || o.StartsAt.Equal(next.StartsAt):
		return nil
	case o.StartsAt.IsZero():
		return &InvalidError{what, "starts_at", "must be left out: the override has begun"}
	}
	return &InvalidError{what, "starts_at", fmt.Sprintf("must stay %s: the override has begun",
		o.StartsAt.UTC().Format(time.RFC3339Nano))}
}
