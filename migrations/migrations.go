// Package migrations holds the Postgres schema of the control plane as embedded, numbered SQL files. It applies them,
// and has advice for errors of a database that lacks one ([Advice]).
//
// Everything is in the schema rate_limiter, including the list of applied migrations. The files describe their tables.
// Packages rows and policysync read and write the rows.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

const (
	// schema holds all tables. The first migration run creates it, and it is never dropped.
	schema = "rate_limiter"
	// applied names the list of applied migrations.
	applied = schema + ".migrations"
	// lockNumber is the advisory lock of a run of migrations: others wait for it.
	lockNumber = 0x726c_6d69_6772
)

// Migration describes one numbered file.
type Migration struct {
	Number    int64
	File      string    // "": not in this program
	AppliedAt time.Time // zero: not applied
}

// Up applies all pending migrations and returns them; none is no error. Each runs in its own transaction, so those
// before an error stay applied. A concurrent run waits for the first and finds nothing to do. Tables that a newer
// program has migrated are an AheadError.
func Up(ctx context.Context, config *pgx.ConnConfig) (done []Migration, err error) {
	err = run(ctx, "migrate up", config, func(p *goose.Provider, conn *pgx.Conn) error {
		if err := CheckAhead(ctx, conn); err != nil {
			return err
		}
		results, err := p.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
			err = &stepError{"apply " + partial.Failed.Source.Path, cause(partial.Err)}
		}
		for _, result := range results {
			done = append(done, Migration{Number: result.Source.Version, File: result.Source.Path})
		}
		return err
	})
	return done, err
}

// Down reverts the last applied migration and returns it; its number is 0 if none is applied. It drops the tables and
// columns of the migration with their values. Tables that a newer program has migrated are an AheadError, because only
// that program can revert them.
func Down(ctx context.Context, config *pgx.ConnConfig) (reverted Migration, err error) {
	err = run(ctx, "migrate down", config, func(p *goose.Provider, conn *pgx.Conn) error {
		if err := CheckAhead(ctx, conn); err != nil {
			return err
		}
		result, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil
		}
		if partial := new(goose.PartialError); errors.As(err, &partial) {
			err = &stepError{"revert " + partial.Failed.Source.Path, cause(partial.Err)}
		}
		if err == nil {
			reverted = Migration{Number: result.Source.Version, File: result.Source.Path}
		}
		return err
	})
	return reverted, err
}

// Status returns the state of all migrations, in order. Those of a newer program come last.
func Status(ctx context.Context, config *pgx.ConnConfig) (all []Migration, err error) {
	err = run(ctx, "read the state of migrations", config, func(p *goose.Provider, conn *pgx.Conn) error {
		states, err := p.Status(ctx)
		if err != nil {
			return err
		}
		for _, state := range states {
			all = append(all, Migration{state.Source.Version, state.Source.Path, state.AppliedAt})
		}
		newer, err := appliedByNewer(ctx, conn)
		all = append(all, newer...)
		return err
	})
	return all, err
}

var createdTable = regexp.MustCompile(`(?m)^CREATE TABLE ` + schema + `\.(\w+)`)

// Tables returns the tables that the migration of a file creates.
func Tables(file string) (tables []string) {
	text, err := files.ReadFile(file)
	if err != nil {
		return nil // a newer program has the file
	}
	for _, match := range createdTable.FindAllSubmatch(text, -1) {
		tables = append(tables, string(match[1]))
	}
	return tables
}

// run runs work while it holds the lock. The lock belongs to a separate connection, so the server releases it if this
// process dies. The locks of goose poll once a second or less, and do not cover the creation of its table. Errors begin
// with what was to be done.
func run(
	ctx context.Context, what string, config *pgx.ConnConfig, work func(*goose.Provider, *pgx.Conn) error,
) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
	}()
	holder, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.Close(context.WithoutCancel(ctx))) }()
	if _, err := holder.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(lockNumber)); err != nil {
		return fmt.Errorf("wait for other migrations: %w", err)
	}
	var missing bool // found first, because the owner may lack the right to create a schema
	err = holder.QueryRow(ctx, "SELECT to_regnamespace($1) IS NULL", schema).Scan(&missing)
	if err == nil && missing {
		_, err = holder.Exec(ctx, "CREATE SCHEMA "+schema)
	}
	if err != nil {
		return fmt.Errorf("create the schema: %w", err)
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
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(applied),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	return cause(work(provider, holder))
}

// cause returns the error of Postgres or of a connection within an error of goose, without goose's words; any other
// error as it is.
func cause(err error) error {
	var (
		named    *stepError
		rejected *pgconn.PgError
		failed   *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &named):
		return named
	case errors.As(err, &failed):
		return failed
	case errors.As(err, &rejected):
		return rejected
	}
	return err
}

// stepError reports the migration that failed.
type stepError struct {
	step string // "apply 00001_audit.sql"
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }

// Unwrap returns the error of Postgres.
func (e *stepError) Unwrap() error { return e.err }

// schemaOwner returns the role that owns the schema, or an error if the user is not a member of it.
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

// become makes a connection act as the owner of the schema, so that all objects have one owner. It also limits names
// without a schema to the functions and operators of Postgres itself.
func become(ctx context.Context, conn *pgx.Conn, owner string) error {
	_, err := conn.Exec(ctx, `SELECT set_config('role', $1, false),
		set_config('search_path', 'pg_catalog, pg_temp', false)`, owner)
	if err != nil {
		return fmt.Errorf("act as the owner of the schema: %w", err)
	}
	return nil
}

// SuperuserOwner returns the role that owns the schema if it is a superuser, else "". Functions that run as their owner
// then run as a superuser.
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
