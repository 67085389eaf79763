package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// RowDiff holds the changes from one set of rows to another.
type RowDiff[T any] struct {
	Create    []T             `json:"create,omitempty"`
	Update    []RewriteRow[T] `json:"update,omitempty"`
	Delete    []T             `json:"delete,omitempty"`
	Unchanged int             `json:"unchanged"`
	Ended     int             `json:"ended,omitempty"` // desired overrides that have ended, which are not made
}

// RewriteRow is a row that keeps its key and gets other values.
type RewriteRow[T any] struct {
	Before T `json:"before"`
	After  T `json:"after"`
}

// Empty reports whether the two sets are equal.
func (d *RowDiff[T]) Empty() bool { return d == nil || len(d.Create)+len(d.Update)+len(d.Delete) == 0 }

func (d *RowDiff[T]) deletes() int {
	if d == nil {
		return 0
	}
	return len(d.Delete)
}

// compareRows returns the changes from current rows to desired ones. keep returns a desired row as it is to be written
// over a current one, and reports whether that changes the current one. With partial, rows that are not desired stay.
func compareRows[K comparable, T fmt.Stringer](
	current, desired []T, partial bool, key func(T) K, keep func(before, after T) (T, bool),
) (*RowDiff[T], error) {
	was := make(map[K]T, len(current))
	for _, row := range current {
		was[key(row)] = row
	}
	d, wanted := new(RowDiff[T]), make(map[K]bool, len(desired))
	for _, row := range desired {
		k := key(row)
		before, exists := was[k]
		switch after, changes := keep(before, row); {
		case wanted[k]:
			return nil, &InvalidError{What: row.String(), Problem: "is given twice"}
		case !exists:
			d.Create = append(d.Create, after)
		case changes:
			d.Update = append(d.Update, RewriteRow[T]{before, after})
		default:
			d.Unchanged++
		}
		wanted[k] = true
	}
	for _, row := range current {
		if !partial && !wanted[key(row)] {
			d.Delete = append(d.Delete, row)
		}
	}
	return d, nil
}

// diffRows returns the changes from the current rows to the desired ones of a section, as compareRows does; nil without
// such a section. prepare completes and checks a desired row.
func diffRows[K comparable, T fmt.Stringer](
	desired []T, partial bool, read func() ([]T, error), prepare func(*T) error, key func(T) K,
	keep func(before, after T) (T, bool),
) (*RowDiff[T], error) {
	if desired == nil {
		return nil, nil
	}
	current, err := read()
	if err != nil {
		return nil, err
	}
	desired = slices.Clone(desired)
	for i := range desired {
		if err := prepare(&desired[i]); err != nil {
			return nil, err
		}
	}
	return compareRows(current, desired, partial, key, keep)
}

// String names the tenant as people do.
func (t Tenant) String() string { return "tenant " + t.ID }

func (set Set) diffTenants(ctx context.Context, q querier) (*RowDiff[Tenant], error) {
	return diffRows(set.Tenants, set.Partial,
		func() ([]Tenant, error) { return allTenants(ctx, q) },
		func(t *Tenant) error { return invalid(t.String(), t.Faults()) },
		func(t Tenant) string { return t.ID }, func(before, after Tenant) (Tenant, bool) {
			after.Revision = before.Revision
			return after, before != after
		})
}

func allTenants(ctx context.Context, q querier) ([]Tenant, error) {
	return readAll[Tenant](ctx, q, "list tenants", tenantTable.selects+` ORDER BY id COLLATE "C"`)
}

// overrideKey names an override in a document: what it is about, and its start.
type overrideKey struct {
	kind, tenant, user, endpoint, credential, ip, tag, policy string
	starts                                                    int64 // µs since 1970; 0: none
}

func keyOfOverride(o Override) overrideKey {
	key := overrideKey{
		o.Kind, o.Tenant, o.User, schema.CanonicalEndpoint(o.Endpoint), o.Credential, canonicalIP(o.IP), o.Tag, o.Policy, 0,
	}
	if !o.StartsAt.IsZero() {
		key.starts = o.StartsAt.UnixMicro()
	}
	return key
}

// diffOverrides returns the changes from the current overrides of people, without those that have ended, to those of
// the set; nil without such a section. A desired one that has ended is counted, and not made.
func (set Set) diffOverrides(ctx context.Context, q querier, actor string) (*RowDiff[Override], error) {
	if set.Overrides == nil {
		return nil, nil
	}
	now, err := readClock(ctx, q)
	if err != nil {
		return nil, err
	}
	current, err := declaredOverrides(ctx, q)
	if err != nil {
		return nil, err
	}
	desired, ended := make([]Override, 0, len(set.Overrides)), 0
	for _, o := range set.Overrides {
		o.Source, o.Author, o.IP = o.OwnSource(), cmp.Or(o.Author, actor, "document"), canonicalIP(o.IP)
		if o.Kind == schema.KindTopUp {
			return nil, &InvalidError{o.String(), "kind", "must not be topup in a document: use ratelimit topup, once"}
		}
		o.StartsAt, o.ExpiresAt = o.StartsAt.Truncate(time.Microsecond), o.ExpiresAt.Truncate(time.Microsecond)
		if err := o.check(); err != nil {
			return nil, err
		}
		if !o.Permanent && !o.ExpiresAt.After(now) {
			ended++
			continue
		}
		desired = append(desired, o)
	}
	d, err := compareRows(current, desired, set.Partial, keyOfOverride, keepOverride)
	if d != nil {
		d.Ended = ended
	}
	return d, err
}

// keepOverride returns a desired override with the id and the author of the current one, and reports whether it
// differs.
func keepOverride(before, after Override) (Override, bool) {
	if before.ID == 0 {
		return after, true
	}
	after.ID, after.Revision, after.CreatedAt, after.State = before.ID, before.Revision, before.CreatedAt, before.State
	after.Author = before.Author
	same := before.ExpiresAt.Equal(after.ExpiresAt)
	plain := after
	plain.ExpiresAt, plain.StartsAt, plain.CreatedAt = before.ExpiresAt, before.StartsAt, before.CreatedAt
	return after, !same || plain != before
}

// declaredOverrides returns the overrides that a document has: those of people that have not ended, without top-ups,
// which are made once.
func declaredOverrides(ctx context.Context, q querier) ([]Override, error) {
	return readAll[Override](ctx, q, "list overrides", overrideTable.selects+" WHERE "+stateColumn+" <> '"+StateEnded+
		"' AND source <> 'detector' AND kind <> 'topup' ORDER BY id")
}

// written returns the rows that are created, and those that are changed, as they are then.
func (d *RowDiff[T]) written() []T { return slices.Concat(d.Create, d.updated()) }

func (d *RowDiff[T]) updated() (list []T) {
	for _, r := range d.Update {
		list = append(list, r.After)
	}
	return list
}

// Dump returns the rows that a document has, at one version: the active policies, the costs and the prices of a
// namespace, all tenants, and the overrides of people that have not ended.
func (s *DB) Dump(ctx context.Context, namespace string) (Set, error) {
	set := Set{Namespace: cmp.Or(namespace, defaultNamespace)}
	err := pgx.BeginTxFunc(ctx, s.pool, snapshotRead, func(tx pgx.Tx) (err error) {
		if set.Policies, err = policies(ctx, tx, PolicyFilter{Namespace: set.Namespace}); err != nil {
			return err
		}
		if set.Costs, err = costs(ctx, tx, CostFilter{Namespace: set.Namespace}); err != nil {
			return err
		}
		if set.Prices, err = prices(ctx, tx, PriceFilter{Namespace: set.Namespace}); err != nil {
			return err
		}
		if set.Tenants, err = allTenants(ctx, tx); err != nil {
			return err
		}
		set.Overrides, err = declaredOverrides(ctx, tx)
		return err
	})
	return set, err
}
