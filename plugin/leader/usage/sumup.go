package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

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
