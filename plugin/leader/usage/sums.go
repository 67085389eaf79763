package usage

import (
	"cmp"
	"context"
	"fmt"
	"math"
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

// columns holds rows as arrays, one for each column, for unnest.
type columns struct {
	at                                         []time.Time
	tenant, endpoint, policy                   []int32
	admitted, soft, denied, shadowDenied, cost []int64
	remaining                                  []*int64 // nil: unknown
}

// columns returns the sums with the numbers of their names, ordered by the primary key of the tables.
func (s sums) columns(names map[string]int32) columns {
	keys := make([]sumKey, 0, len(s))
	for k := range s {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sumKey) int {
		return cmp.Or(cmp.Compare(names[a.Tenant], names[b.Tenant]), cmp.Compare(a.at, b.at),
			cmp.Compare(names[a.Endpoint], names[b.Endpoint]), cmp.Compare(names[a.Policy], names[b.Policy]))
	})
	var c columns
	for _, k := range keys {
		n := s[k]
		c.at = append(c.at, time.Unix(k.at, 0))
		c.tenant = append(c.tenant, names[k.Tenant])
		c.endpoint = append(c.endpoint, names[k.Endpoint])
		c.policy = append(c.policy, names[k.Policy])
		c.admitted = append(c.admitted, n.Admitted)
		c.soft = append(c.soft, n.Soft)
		c.denied = append(c.denied, n.Denied)
		c.shadowDenied = append(c.shadowDenied, n.ShadowDenied)
		c.cost = append(c.cost, n.Cost)
		var remaining *int64
		if n.Remaining != usage.NoRemaining {
			remaining = &n.Remaining
		}
		c.remaining = append(c.remaining, remaining)
	}
	return c
}

// part returns the rows from first to end as arguments of a statement.
func (c *columns) part(first, end int) []any {
	return []any{
		c.at[first:end], c.tenant[first:end], c.endpoint[first:end], c.policy[first:end],
		c.admitted[first:end], c.soft[first:end], c.denied[first:end], c.shadowDenied[first:end], c.cost[first:end],
		c.remaining[first:end],
	}
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
