// Package outbox keeps events for other systems in Postgres until they are sent. [Add] adds events in the transaction
// of what they report. A consumer reads them in the order of commits ([Read]), sends them, and moves its cursor
// ([Move]), so each is sent at least once. The migration 00007_events.sql describes the tables.
//
// It does not send. The leader of `ratelimit serve` does, with the rights of the role keeper.
//
// # Order
//
// A number from a sequence is taken before the commit. So a reader that remembers the highest number it has seen misses
// the events of a transaction that took a lower one and commits later. Here an event gets its position when it is first
// read, and so after its commit. Giving positions locks one row, which makes them a sequence without gaps that is
// visible in its order. No reader waits for open transactions, and positions survive a dump and restore of the
// database.
//
// # Bounds
//
// [Tidy] deletes events after [Kept], and the oldest beyond [MaxRows]. Consumers do not hold it up: what one has not
// read by then is counted in its cursor as dropped.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

const (
	// Kept is how long an event is kept, read or not.
	Kept = 7 * 24 * time.Hour
	// MaxRows bounds the events that are kept.
	MaxRows = 500_000
	// MaxData bounds the bytes of the data of one event.
	MaxData = 256 << 10

	// maxPlaced bounds the events that get a position in one transaction.
	maxPlaced = 10_000
)

// DB is a connection or a pool. With a transaction, the locks of its functions last until that ends.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Entry is an event in the outbox.
type Entry struct {
	Position int64
	AddedAt  time.Time
	events.Event
}

// Add adds events in a transaction, in their order. An event whose source and ID the outbox has is left out, so adding
// is safe to repeat. The error names an event that no consumer could send; nothing is added then.
func Add(ctx context.Context, tx pgx.Tx, all ...events.Event) error {
	var batch pgx.Batch
	for i := range all {
		e := &all[i]
		_, err := e.JSON()
		if err == nil && len(e.Data) > MaxData {
			err = fmt.Errorf("data: must have at most %d bytes, not %d", MaxData, len(e.Data))
		}
		if err != nil {
			return fmt.Errorf("add event %q of %s to the outbox: %w", e.ID, e.Source, err)
		}
		batch.Queue(insertEvent, e.ID, e.Source, string(e.Type), e.Time, e.Tenant, string(e.Data))
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("add events to the outbox: %w", err)
	}
	return nil
}

const insertEvent = `INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
	VALUES ($1, $2, $3, $4, $5, $6::json) ON CONFLICT (source, event) DO NOTHING`

// Read returns the events after the cursor of a consumer, at most so many, in the order of commits. A new consumer
// starts with the oldest event that is kept.
func Read(ctx context.Context, db DB, consumer string, most int) ([]Entry, error) {
	if _, err := place(ctx, db); err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	rows, _ := db.Query(ctx, selectAfter, consumer, most)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Entry, error) {
		var e Entry
		var data string
		err := row.Scan(&e.Position, &e.AddedAt, &e.ID, &e.Source, &e.Type, &e.Time, &e.Tenant, &data)
		e.Data = []byte(data)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return all, nil
}

const selectAfter = `SELECT position, added_at, event, source, type, at, tenant, data::text FROM rate_limiter.outbox
	WHERE position > coalesce((SELECT position FROM rate_limiter.outbox_cursors WHERE consumer = $1), 0)
	ORDER BY position LIMIT $2`

// place gives positions to events that have none, and returns how many got one. It takes the lock also if there is
// none, so that a consumer without the rights, or on a standby, has an error at once.
func place(ctx context.Context, db DB) (placed int64, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// Statements after this one see all that was committed before the lock was taken.
		if _, err := tx.Exec(ctx, lockState); err != nil {
			return fmt.Errorf("lock the outbox: %w", err)
		}
		if err := tx.QueryRow(ctx, placeEvents, maxPlaced).Scan(&placed); err != nil {
			return fmt.Errorf("order the events: %w", err)
		}
		return nil
	})
	return placed, err
}

const (
	lockState = `SELECT FROM rate_limiter.outbox_state FOR UPDATE`

	placeEvents = `WITH added AS (
			SELECT id, row_number() OVER (ORDER BY id) AS number FROM rate_limiter.outbox
			WHERE position IS NULL ORDER BY id LIMIT $1
		), placed AS (
			UPDATE rate_limiter.outbox o SET position = s.last + a.number
			FROM added a, rate_limiter.outbox_state s WHERE o.id = a.id RETURNING 1
		), counted AS (
			SELECT count(*) AS n FROM placed
		), moved AS (
			UPDATE rate_limiter.outbox_state s SET last = s.last + c.n FROM counted c WHERE c.n > 0
		) SELECT n FROM counted`
)

// Start gives a new consumer a cursor before the oldest event that is kept, so that [Lags] counts what waits for it and
// [Tidy] what it has missed. The cursor of another consumer stays where it is.
func Start(ctx context.Context, db DB, consumer string) error {
	if _, err := db.Exec(ctx, startCursor, consumer); err != nil {
		return fmt.Errorf("make the cursor %s of the outbox: %w", consumer, err)
	}
	return nil
}

const startCursor = `INSERT INTO rate_limiter.outbox_cursors (consumer, position, moved_at)
	SELECT $1, deleted, clock_timestamp() FROM rate_limiter.outbox_state ON CONFLICT (consumer) DO NOTHING`

// Move moves the cursor of a consumer: it is done with all events up to a position. A cursor does not move back.
func Move(ctx context.Context, tx pgx.Tx, consumer string, position int64) error {
	if _, err := tx.Exec(ctx, moveCursor, consumer, position); err != nil {
		return fmt.Errorf("move the cursor %s of the outbox: %w", consumer, err)
	}
	return nil
}

const moveCursor = `INSERT INTO rate_limiter.outbox_cursors AS c (consumer, position, moved_at)
	VALUES ($1, $2, clock_timestamp())
	ON CONFLICT (consumer) DO UPDATE SET position = excluded.position, moved_at = excluded.moved_at
	WHERE c.position < excluded.position`

// Tidy deletes events that are past their retention, one batch, and reports whether more are due. It counts in each
// cursor what its consumer has not read.
func Tidy(ctx context.Context, db DB) (more bool, err error) {
	return tidy(ctx, db, Kept, MaxRows)
}

func tidy(ctx context.Context, db DB, kept time.Duration, rows int64) (more bool, err error) {
	placed, err := place(ctx, db) // also where there is no consumer
	if err != nil {
		return false, fmt.Errorf("tidy the outbox: %w", err)
	}
	var deleted int64
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockState); err != nil {
			return err
		}
		var until int64
		err := tx.QueryRow(ctx, selectOld, kept, rows, maxPlaced).Scan(&until)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // nothing is due
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, skipDropped, until); err != nil {
			return err
		}
		return tx.QueryRow(ctx, deleteUntil, until).Scan(&deleted)
	})
	if err != nil {
		return false, fmt.Errorf("tidy the outbox: %w", err)
	}
	return placed == maxPlaced || deleted == maxPlaced, nil
}

const (
	// selectOld selects the last position of a batch that is due.
	selectOld = `SELECT d.until FROM rate_limiter.outbox_state s, LATERAL (
			SELECT least(s.deleted + $3::bigint, greatest(s.last - $2::bigint, (
				SELECT max(position) FROM rate_limiter.outbox
				WHERE position <= s.deleted + $3::bigint AND added_at < clock_timestamp() - $1::interval
			))) AS until
		) d WHERE d.until > s.deleted`

	skipDropped = `UPDATE rate_limiter.outbox_cursors SET dropped = dropped + ($1 - position), position = $1
		WHERE position < $1`

	deleteUntil = `WITH gone AS (
			DELETE FROM rate_limiter.outbox WHERE position <= $1 RETURNING 1
		), moved AS (
			UPDATE rate_limiter.outbox_state SET deleted = $1
		) SELECT count(*) FROM gone`
)

// Lag is how far a consumer is behind.
type Lag struct {
	Consumer string
	Waiting  int64         // events with a position that it has not read
	Dropped  int64         `metric:"topic_dropped_events"`       // events that were deleted before it had read them
	Oldest   time.Duration `metric:"topic_oldest_event_seconds"` // since the first waiting event was added; 0: none waits
}

// Lags returns how far each consumer is behind, ordered by name.
func Lags(ctx context.Context, db DB) ([]Lag, error) {
	rows, _ := db.Query(ctx, selectLags)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Lag])
	if err != nil {
		return nil, fmt.Errorf("read the cursors of the outbox: %w", err)
	}
	return all, nil
}

const selectLags = `SELECT c.consumer, s.last - c.position, c.dropped, coalesce(clock_timestamp() - (
		SELECT added_at FROM rate_limiter.outbox WHERE position > c.position ORDER BY position LIMIT 1), interval '0')
	FROM rate_limiter.outbox_cursors c, rate_limiter.outbox_state s ORDER BY c.consumer`
