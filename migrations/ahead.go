package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// AheadError reports a database that a newer program has migrated: its rows may have values that this program ignores.
type AheadError struct {
	Applied int64 // number of the last migration that is applied
	Latest  int64 // number of the last migration of this program
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("the tables in Postgres are newer than this program (migration %d, it knows %d): "+
		"use the program that migrated them", e.Applied, e.Latest)
}

// querier is a connection, a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// CheckReady returns an error if the database has no tables of the rate limiter, else the result of [CheckAhead].
func CheckReady(ctx context.Context, from querier) error {
	var migrated bool
	if err := from.QueryRow(ctx, "SELECT to_regclass('rate_limiter.tokens') IS NOT NULL").Scan(&migrated); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	if !migrated {
		return errors.New("the database lacks the tables of the rate limiter: run ratelimit migrate up")
	}
	return CheckAhead(ctx, from)
}

// CheckAhead returns an AheadError if the database has migrations that this program does not have. It
// returns nil for a role that may not read the list of migrations, and for a database without tables.
func CheckAhead(ctx context.Context, from querier) error {
	applied, latest, err := compare(ctx, from)
	if err == nil && applied > latest {
		return &AheadError{applied, latest}
	}
	return err
}

// CheckBehind returns an error if the database lacks migrations of this program. Like [CheckAhead] it returns nil if
// there is no list of migrations to read.
func CheckBehind(ctx context.Context, from querier) error {
	applied, latest, err := compare(ctx, from)
	if err == nil && applied < latest {
		return fmt.Errorf("the tables in Postgres are older than this program (migration %d, it needs %d): "+
			"run ratelimit migrate up", applied, latest)
	}
	return err
}

// compare returns the numbers of the last applied migration and of the last one of this program. They are equal if
// there is no list of migrations to read.
func compare(ctx context.Context, from querier) (newest, latest int64, err error) {
	if latest, err = last(); err != nil {
		return 0, 0, err
	}
	err = from.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM `+applied+` WHERE is_applied`).Scan(&newest)
	denied := new(pgconn.PgError)
	if errors.As(err, &denied) && (denied.Code == noPrivilege || denied.Code == undefinedTable) {
		return latest, latest, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the list of migrations: %w", err)
	}
	return newest, latest, nil
}

// appliedByNewer returns the applied migrations that this program does not have, in order.
func appliedByNewer(ctx context.Context, conn *pgx.Conn) ([]Migration, error) {
	latest, err := last()
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, `SELECT version_id, '', max(tstamp) FROM `+applied+`
		WHERE is_applied AND version_id > $1 GROUP BY version_id ORDER BY version_id`, latest)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Migration])
}

// last returns the number of the last migration of this program.
func last() (int64, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("list the migrations of this program: %d, %w", len(names), err)
	}
	number, _, _ := strings.Cut(names[len(names)-1], "_") // Glob sorts them
	return strconv.ParseInt(number, 10, 64)
}
