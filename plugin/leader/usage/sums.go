package usage

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

type sums map[sumKey]*row

type sumKey struct {
	minute int64 // its begin, in seconds since 1970
	usage.Key
}

// row is a row to add, in the order of the parameters of addRows.
type row struct {
	Minute time.Time
	usage.Row
}

// addBatch adds what a batch has, which began at an instant.
func (u *unpacking) addBatch(began time.Time, b *usage.Batch) {
	minute := began.Truncate(time.Minute)
	for _, r := range b.Rows {
		k := sumKey{minute.Unix(), r.Key}
		if have := u.sums[k]; have != nil {
			have.Add(r.Counts)
		} else {
			u.sums[k] = &row{minute, r}
		}
	}
	u.denied.addBatch(began, b.Denials)
	u.tiers.addBatch(began.Add(b.Span), b.Tiers)
	at := began
	if began.Before(u.state.daysUntil) { // its day is closed
		at = u.state.now.Add(u.shift)
	}
	for _, m := range b.Models {
		u.models = append(u.models, &modelRow{at, m})
	}
}

// write stores names and tiers, and adds the sums to the minutes, and to the hours and days that are summed up already.
func (u *unpacking) write(ctx context.Context) error {
	columns := columnsOf(slices.Collect(maps.Values(u.sums)))
	names := slices.Concat(columns[1].([]string), columns[2].([]string), columns[3].([]string))
	for t := range u.tiers {
		names = append(names, t.Tenant)
	}
	for _, m := range u.models {
		names = append(names, m.Tenant)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	if _, err := u.tx.Exec(ctx, insertNames, slices.Compact(names), maxNames); err != nil {
		return fmt.Errorf("write names: %w", err)
	}
	if err := u.writeTiers(ctx); err != nil || len(u.sums) == 0 {
		return err
	}
	columns = append(columns, u.state.hoursUntil, u.state.daysUntil, u.state.now.Add(u.shift))
	err := u.tx.QueryRow(ctx, addRows, columns...).Scan(&u.done.Rows)
	return leadership.Wrap("add rows", err)
}

// columnsOf returns the fields of rows as arrays, one for each field, for unnest.
func columnsOf[T any](rows []*T) (columns []any) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		column := reflect.MakeSlice(reflect.SliceOf(f.Type), len(rows), len(rows))
		for i, row := range rows {
			column.Index(i).Set(reflect.ValueOf(row).Elem().FieldByIndex(f.Index))
		}
		columns = append(columns, column.Interface())
	}
	return columns
}

const (
	// hourAfter is the time between the end of an hour and its sum. Most batches have come by then; later ones are added
	// to the sum.
	hourAfter = 10 * time.Minute
	// dayAfter is the least time between the end of a day and its close. Until then all live sources must have reported
	// this time as well.
	dayAfter = time.Hour
	// dayAtLast is the time between the end of a day and its close, whatever the sources do.
	dayAtLast = 24 * time.Hour

	hour = time.Hour
	day  = 24 * time.Hour
)

func (s *session) sumUp(ctx context.Context) error {
	for more := true; more; {
		done := Stats{}
		err := s.transact(ctx, func(tx pgx.Tx, now state) error {
			var err error
			done, err = s.sumUpNext(ctx, tx, now)
			return err
		})
		if err != nil {
			return fmt.Errorf("sum up usage: %w", err)
		}
		s.add(done)
		more = done != Stats{}
	}
	return nil
}

// sumUpNext sums up the next hour or closes the next day, if one is due.
func (s *session) sumUpNext(ctx context.Context, tx pgx.Tx, now state) (Stats, error) {
	clock := now.now.Add(s.shift)
	if next := now.daysUntil.Add(day); !now.hoursUntil.Before(next) && !clock.Before(next.Add(dayAfter)) {
		closes := !clock.Before(next.Add(dayAtLast))
		if !closes {
			err := tx.QueryRow(ctx, isDayComplete, next, next.Add(dayAfter), clock.Add(-s.options.GapAfter)).Scan(&closes)
			if err != nil {
				return Stats{}, fmt.Errorf("check the sources: %w", err)
			}
		}
		if closes {
			_, err := tx.Exec(ctx, closeDay, now.daysUntil, next)
			if err != nil {
				return Stats{}, fmt.Errorf("close the day %s: %w", now.daysUntil.Format(time.DateOnly), err)
			}
			return Stats{Days: 1}, nil
		}
	}
	next := now.hoursUntil.Add(hour)
	if clock.Before(next.Add(hourAfter)) {
		return Stats{}, nil
	}
	for _, sql := range [...]string{sumUpHour, orderMinutes} {
		if _, err := tx.Exec(ctx, sql, now.hoursUntil, next); err != nil {
			return Stats{}, fmt.Errorf("sum up the hour %s: %w", now.hoursUntil.Format(time.RFC3339), err)
		}
	}
	return Stats{Hours: 1}, nil
}

// tiersKept bounds the tiers of a tenant: the ones that were seen last.
const tiersKept = 8

type tiers map[usage.Tier]time.Time

// addBatch adds the tiers of a batch, which ended at an instant: the last one was seen then, the others just before.
func (t tiers) addBatch(end time.Time, seen []usage.Tier) {
	for i := range seen {
		before := time.Duration(len(seen)-1-i) * time.Microsecond
		t[seen[i]] = later(t[seen[i]], end.Add(-before))
	}
}

// writeTiers stores the tiers, except those of tenants that have no name in the database.
func (u *unpacking) writeTiers(ctx context.Context) error {
	type tier usage.Tier // a name that hides no field of it
	type row struct {
		tier
		SeenAt time.Time
	}
	var rows []*row
	for t, at := range u.tiers {
		rows = append(rows, &row{tier(t), at})
	}
	if len(rows) == 0 {
		return nil
	}
	columns := columnsOf(rows)
	if _, err := u.tx.Exec(ctx, upsertTiers, columns...); err != nil {
		return fmt.Errorf("write tiers: %w", err)
	}
	_, err := u.tx.Exec(ctx, deleteTiers, columns[0], tiersKept)
	return leadership.Wrap("delete old tiers", err)
}

const (
	upsertTiers = `INSERT INTO rate_limiter.tenant_tiers AS t (tenant, namespace, tier, source, seen_at, since, stored_at)
		SELECT n.id, k.namespace, k.tier, k.source, k.seen_at, k.seen_at, clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
			k (name, namespace, tier, source, seen_at) JOIN rate_limiter.usage_names n USING (name)
		ON CONFLICT (tenant, namespace, tier, source) DO UPDATE
		SET seen_at = excluded.seen_at, stored_at = excluded.stored_at,
			since = CASE WHEN excluded.seen_at - t.seen_at < interval '10 minutes' THEN t.since ELSE excluded.since END
		WHERE t.seen_at < excluded.seen_at`

	deleteTiers = `DELETE FROM rate_limiter.tenant_tiers WHERE ctid IN (SELECT ctid FROM (
			SELECT ctid, row_number() OVER (PARTITION BY tenant ORDER BY seen_at DESC) AS place
			FROM rate_limiter.tenant_tiers
			WHERE tenant IN (SELECT id FROM rate_limiter.usage_names WHERE name = ANY ($1::text[]))) t
		WHERE place > $2)`
)
