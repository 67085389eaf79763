package rows

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// PutOverride changes the override of o.ID, which keeps its id and author, or returns a NotFoundError: its numbers, its
// note, its reason, its end, and until it begins its start. What it is about must stay. One that has ended does not
// change: that is a ConflictError without a revision. o.Revision must be that of the row, or AnyRevision or Present. It
// returns the row after the write, and the version in which it is in force.
func (s *DB) PutOverride(ctx context.Context, c Change, o Override) (Override, int64, error) {
	what, wanted := fmt.Sprint("override ", o.ID), o.Revision
	if wanted == AnyRevision {
		wanted = Present
	}
	return overrideTable.put(ctx, s, c, what, wanted, overrideTable.byKey(what, o.ID),
		func(current Override) (Override, error) {
			o.Reason, o.Author = cmp.Or(o.Reason, c.Reason), current.Author
			o.Source, o.IP = o.OwnSource(), canonicalIP(o.IP)
			return o, cmp.Or(o.check(), current.changesTo(o))
		})
}

// hasNotEnded returns why an override that was put has no effect.
func (o Override) hasNotEnded() error {
	if o.State == StateEnded {
		return &InvalidError{fmt.Sprint("override ", o.ID), "expires_at", expiryProblem}
	}
	return nil
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
