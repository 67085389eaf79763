// Package migrations is the Postgres schema of the control plane: numbered SQL files, embedded, their application, and
// what to do about a database that lacks one of them ([Advice]).
//
// Everything is in the schema rate_limiter, the list of applied migrations included. What the tables mean is told in
// the files, each beside its table. Reading and writing the rows is package pgstore's and package policysync's.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

const (
	// schema holds all tables. It is made by the first migration run and never dropped.
	schema = "rate_limiter"
	// applied is the list of applied migrations.
	applied = schema + ".migrations"
	// turn is the advisory lock of the database that a run of migrations holds: others wait for it.
	turn = 0x726c_6d69_6772
)

// Migration is one numbered file.
type Migration struct {
	Number    int64
	File      string    // "": this program does not have it
	AppliedAt time.Time // zero: it is not applied
}

// Up applies all migrations that are pending and returns them; none is no error. Each runs in its own transaction: what
// has been applied before an error stays. A second run at the same time waits for the first and finds nothing to do.
// Tables that a newer program has migrated are an AheadError.
func Up(ctx context.Context, config *pgx.ConnConfig) ([]Migration, error) {
	var done []Migration
	err := run(ctx, config, func(p *goose.Provider, conn *pgx.Conn) error {
		if err := CheckAhead(ctx, conn); err != nil {
			return err
		}
		results, err := p.Up(ctx)
		if partial := new(goose.PartialError); errors.As(err, &partial) {
			results = partial.Applied
		}
		done = migrations(results)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("migrate up: %w", err)
	}
	return done, nil
}

// Down takes back the last migration that is applied, with the rows of the tables and the values of the columns that it
// made, and returns it. When none is applied the number is 0. Tables that a newer program has migrated are an
// AheadError: only that program knows how they are taken back.
func Down(ctx context.Context, config *pgx.ConnConfig) (Migration, error) {
	var undone Migration
	err := run(ctx, config, func(p *goose.Provider, conn *pgx.Conn) error {
		if err := CheckAhead(ctx, conn); err != nil {
			return err
		}
		result, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil
		}
		if err == nil {
			undone = migrations([]*goose.MigrationResult{result})[0]
		}
		return err
	})
	if err != nil {
		return undone, fmt.Errorf("migrate down: %w", err)
	}
	return undone, nil
}

// Status is the state of all migrations, in order. Those that only a newer program has are the last.
func Status(ctx context.Context, config *pgx.ConnConfig) ([]Migration, error) {
	var all []Migration
	err := run(ctx, config, func(p *goose.Provider, conn *pgx.Conn) error {
		states, err := p.Status(ctx)
		if err != nil {
			return err
		}
		for _, state := range states {
			all = append(all, Migration{state.Source.Version, state.Source.Path, state.AppliedAt})
		}
		newer, err := unknown(ctx, conn)
		all = append(all, newer...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the state of migrations: %w", err)
	}
	return all, nil
}

func migrations(results []*goose.MigrationResult) []Migration {
	list := make([]Migration, len(results))
	for i, result := range results {
		list[i] = Migration{Number: result.Source.Version, File: result.Source.Path}
	}
	return list
}

// run works while it has the turn. The lock is one of a connection of its own, so that the server ends it when this
// process dies; goose's own locks are asked for again every second or more, and do not cover making its table.
func run(ctx context.Context, config *pgx.ConnConfig, work func(*goose.Provider, *pgx.Conn) error) (err error) {
	holder, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.Close(context.WithoutCancel(ctx))) }()
	if _, err := holder.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(turn)); err != nil {
		return fmt.Errorf("wait for other migrations: %w", err)
	}
	if err := makeSchema(ctx, holder); err != nil {
		return fmt.Errorf("make the schema: %w", err)
	}
	owner, err := schemaOwner(ctx, holder)
	if err != nil {
		return err
	}
	if err := become(ctx, holder, owner); err != nil {
		return err
	}
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		return become(ctx, conn, owner)
	}))
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := open(db)
	if err != nil {
		return err
	}
	return work(provider, holder)
}

// schemaOwner returns the role that owns the schema, if the user may act as it.
func schemaOwner(ctx context.Context, conn *pgx.Conn) (owner string, err error) {
	var member bool
	err = conn.QueryRow(ctx, `SELECT o.rolname, pg_has_role(o.oid, 'MEMBER')
		FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner WHERE n.nspname = $1`, schema).Scan(&owner, &member)
	if err != nil {
		return "", fmt.Errorf("find the owner of the schema: %w", err)
	}
	if !member {
		return "", fmt.Errorf("the schema %s belongs to the role %s: migrate as it, or as a member of it", schema, owner)
	}
	return owner, nil
}

// become lets a connection work as the owner of the schema, so that what a migration makes has one owner, and finds
// only the functions and operators of Postgres itself under names without a schema.
func become(ctx context.Context, conn *pgx.Conn, owner string) error {
	_, err := conn.Exec(ctx, `SELECT set_config('role', $1, false),
		set_config('search_path', 'pg_catalog, pg_temp', false)`, owner)
	if err != nil {
		return fmt.Errorf("act as the owner of the schema: %w", err)
	}
	return nil
}

// SuperuserOwner returns the role that owns the schema if it is a superuser, and else "". Functions of the schema that
// run as their owner would then run as a superuser.
func SuperuserOwner(ctx context.Context, config *pgx.ConnConfig) (owner string, err error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	err = conn.QueryRow(ctx, `SELECT o.rolname FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner
		WHERE n.nspname = $1 AND o.rolsuper`, schema).Scan(&owner)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("find the owner of the schema: %w", err)
	}
	return owner, nil
}

// makeSchema asks first: making needs a right on the database that who owns the schema may lack.
func makeSchema(ctx context.Context, holder *pgx.Conn) error {
	var missing bool
	err := holder.QueryRow(ctx, "SELECT to_regnamespace($1) IS NULL", schema).Scan(&missing)
	if err == nil && missing {
		_, err = holder.Exec(ctx, "CREATE SCHEMA "+schema)
	}
	return err
}

func open(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(
		goose.DialectPostgres,
		db,
		files,
		goose.WithTableName(applied),
		goose.WithDisableGlobalRegistry(true),
	)
}
