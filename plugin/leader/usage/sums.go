package usage

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// sums holds counts by time and key.
type sums map[sumKey]*usage.Counts

type sumKey struct {
	at int64 // seconds since 1970, of the begin of a minute, hour or day
	usage.Key
}

// add adds counts. The time is cut to the begin of its unit.
func (s sums) add(at time.Time, unit time.Duration, key usage.Key, c usage.Counts) {
	k := sumKey{at.Truncate(unit).Unix(), key} // Truncate counts from a midnight of UTC
	if have := s[k]; have != nil {
		have.Add(c)
		return
	}
	s[k] = &c
}

// addBatch adds the rows of a batch to a minute.
func (s sums) addBatch(began time.Time, rows []usage.Row) {
	for i := range rows {
		s.add(began, time.Minute, rows[i].Key, rows[i].Counts)
	}
}

// before returns the sums by a longer unit of all times before a mark.
func (s sums) before(mark time.Time, unit time.Duration) sums {
	part := sums{}
	for k, c := range s {
		if at := time.Unix(k.at, 0); at.Before(mark) {
			part.add(at, unit, k.Key, *c)
		}
	}
	return part
}

// moved returns the sums of all times, at one time.
func (s sums) moved(to time.Time, unit time.Duration) sums {
	part := sums{}
	for k, c := range s {
		part.add(to, unit, k.Key, *c)
	}
	return part
}

// oldest returns the first time of the sums.
func (s sums) oldest() time.Time {
	first := int64(math.MaxInt64)
	for k := range s {
		first = min(first, k.at)
	}
	return time.Unix(first, 0)
}

// sumRow is a row of the tables.
type sumRow struct {
	At                                         time.Time
	Tenant, Endpoint, Policy                   int32
	Admitted, Soft, Denied, ShadowDenied, Cost int64
	Remaining                                  *int64 // nil: unknown
}

// rows returns the sums with the numbers of their names, ordered by the primary key of the tables.
func (s sums) rows(names map[string]int32) []sumRow {
	rows := make([]sumRow, 0, len(s))
	for k, n := range s {
		row := sumRow{
			time.Unix(k.at, 0), names[k.Tenant], names[k.Endpoint], names[k.Policy],
			n.Admitted, n.Soft, n.Denied, n.ShadowDenied, n.Cost, nil,
		}
		if n.Remaining != usage.NoRemaining {
			row.Remaining = &n.Remaining
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b sumRow) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), a.At.Compare(b.At), cmp.Compare(a.Endpoint, b.Endpoint),
			cmp.Compare(a.Policy, b.Policy))
	})
	return rows
}

// columnsOf returns the fields of rows as arrays, one for each field, for unnest.
func columnsOf[T any](rows []T) []any {
	columns := make([]any, reflect.TypeFor[T]().NumField())
	for i := range columns {
		column := reflect.MakeSlice(reflect.SliceOf(reflect.TypeFor[T]().Field(i).Type), len(rows), len(rows))
		for j := range rows {
			column.Index(j).Set(reflect.ValueOf(&rows[j]).Elem().Field(i))
		}
		columns[i] = column.Interface()
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

// sumUp sums up all hours and closes all days that are due.
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

// dropSources drops what is kept about sources and nodes that have not reported for long.
func (s *session) dropSources(ctx context.Context) error {
	for _, sql := range [...]string{deleteSources, deleteNodes} {
		if _, err := s.conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("drop old sources: %w", err)
		}
	}
	return nil
}
