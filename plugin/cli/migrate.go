package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
)

var migrateCommands = []*command{
	{
		words: "migrate up", brief: "migrate the database schema to the version of this program",
		about: `Connect as the role that owns the schema, which should not be a superuser: migrations/README.md shows
how to create it, and lists the grants to repeat after a migration. Concurrent runs are safe: the second waits for the
first.`,
		define: func(c *call) action { return c.migrates(c.migrateUp) },
	},
	{
		words: "migrate down", brief: "revert the last migration, deleting the data in its tables and columns",
		about: `Without --yes, it shows what would be deleted and changes nothing.`,
		define: func(c *call) action {
			yes := c.flags.Bool("yes", false, "revert, and delete the data")
			return c.migrates(func(ctx context.Context, config *pgx.ConnConfig) error {
				return c.migrateDown(ctx, config, *yes)
			})
		},
	},
	{
		words: "migrate status", brief: "show which migrations are applied",
		define: func(c *call) action { return c.migrates(c.migrateStatus) },
	},
}

func (c *call) migrates(do func(context.Context, *pgx.ConnConfig) error) action {
	c.databaseFlag()
	c.outputFlag()
	return func(ctx context.Context) error {
		config, err := c.connection()
		if err != nil {
			return err
		}
		return do(ctx, config.ConnConfig)
	}
}

type migration struct {
	Number    int64  `json:"number"`
	File      string `json:"file"`
	AppliedAt string `json:"applied_at,omitempty"`               // RFC 3339; "": it is not applied
	Newer     bool   `json:"applied_by_newer_program,omitempty"` // it has no file here
}

func shown(list []migrations.Migration) []migration {
	all := []migration{}
	for _, m := range list {
		all = append(all, migration{m.Number, m.File, timeText(m.AppliedAt), m.File == ""})
	}
	return all
}

func (c *call) migrateUp(ctx context.Context, config *pgx.ConnConfig) error {
	applied, err := migrations.Up(ctx, config)
	if err != nil && len(applied) == 0 {
		return err
	}
	printed := c.print(shown(applied), func(out *page) {
		for _, m := range applied {
			out.line("applied %s", m.File)
		}
		if len(applied) == 0 {
			out.line("nothing to do: the schema is up to date")
		}
	})
	if err != nil {
		return errors.Join(err, printed)
	}
	return errors.Join(printed, c.warnOfSuperuser(ctx, config))
}

// warnOfSuperuser warns when functions of the schema run with the rights of a superuser. It is no error: the migration
// that closes a hole must not wait until the owner is another one.
func (c *call) warnOfSuperuser(ctx context.Context, config *pgx.ConnConfig) error {
	owner, err := migrations.SuperuserOwner(ctx, config)
	if err == nil && owner != "" {
		c.warn("the schema is owned by the superuser %s: transfer it to a role without superuser rights, "+
			"as described in migrations/README.md", owner)
	}
	return err
}

func (c *call) migrateStatus(ctx context.Context, config *pgx.ConnConfig) error {
	all, err := migrations.Status(ctx, config)
	if err != nil {
		return err
	}
	if ahead := aheadOf(all); ahead != nil {
		c.warn("%v", ahead)
	}
	return c.print(shown(all), nil)
}

// aheadOf returns an error if a newer program has applied migrations; it is nil if this program has them all.
func aheadOf(all []migrations.Migration) error {
	var applied, latest int64 // numbers of the last one that is applied, and of the last one that this program has
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			applied = m.Number
		}
		if m.File != "" {
			latest = m.Number
		}
	}
	if applied > latest {
		return &migrations.AheadError{Applied: applied, Latest: latest}
	}
	return nil
}

func (c *call) migrateDown(ctx context.Context, config *pgx.ConnConfig, yes bool) error {
	all, err := migrations.Status(ctx, config)
	if err != nil {
		return err
	}
	if ahead := aheadOf(all); ahead != nil {
		return ahead
	}
	var last migrations.Migration
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			last = m
		}
	}
	if last.Number == 0 {
		return errors.New("nothing to revert: no migration is applied")
	}
	losses, err := countLosses(ctx, config, migrations.Tables(last.File))
	if err != nil {
		return fmt.Errorf("revert %s: %w", last.File, err)
	}
	if !yes {
		return wrong("reverting %s deletes %s: use --yes to proceed", last.File,
			cmp.Or(losses, "no table, only the values of columns that it added"))
	}
	undone, err := migrations.Down(ctx, config)
	if err != nil {
		return err
	}
	return c.print(shown([]migrations.Migration{undone}), func(out *page) { out.line("reverted %s", undone.File) })
}

// countLosses returns how many rows tables have. An open candidate in them is an error: without it, what tenants are
// limited by would change without a trace in the audit.
func countLosses(ctx context.Context, config *pgx.ConnConfig, tables []string) (text string, err error) {
	connection, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", fmt.Errorf("count the rows: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close(context.WithoutCancel(ctx))) }()
	losses := make([]string, len(tables))
	for i, table := range tables {
		n, open := 0, ""
		err := connection.QueryRow(ctx, "SELECT count(*) FROM "+pgx.Identifier{"rate_limiter", table}.Sanitize()).Scan(&n)
		if err == nil && table == "candidates" {
			err = connection.QueryRow(ctx,
				`SELECT coalesce(max(name), '') FROM rate_limiter.candidates WHERE state = 'open'`).Scan(&open)
		}
		switch {
		case err != nil:
			return "", fmt.Errorf("count the rows of %s: %w", table, err)
		case open != "":
			return "", fmt.Errorf("candidate %[1]s is open, and this deletes what it changes: promote or drop it first, "+
				"as in ratelimit candidate drop %[1]s", open)
		}
		losses[i] = counted(n, "row") + " of " + table
	}
	return strings.Join(losses, ", "), nil
}

var tidyCommand = &command{
	words: "tidy", brief: "do the housekeeping once: expired overrides, old records, and the usage that nodes report",
	about: `It moves expired overrides to the history, deletes records and events that are past their retention and the
oldest recent denials, unpacks the usage that nodes have reported, sums it up, and makes and drops the partitions of
usage. Where ratelimit serve runs with the rights of keeper, it does all this itself. Otherwise run tidy from cron,
every few minutes; overrides expire on time without it. It works in small batches that do not block other writes, and
reports progress on standard error. Ctrl-C stops it after the current batch. It can run on any number of machines: one
does the work, and the others exit immediately. Idempotency keys of the REST API are deleted after a day.

A silent node may still admit requests. --nodes-after removes it from ratelimit fleet and --wait, so choose a duration
longer than any outage between your nodes and Postgres.`,
	define: func(c *call) action {
		keep := rows.DefaultRetention
		c.flags.Func("overrides-after", "move overrides to the history this `duration` after they end (default 7d)",
			reads(parseSpan, &keep.Overrides))
		c.flags.Func("changes-after",
			"delete change records older than this `duration`; a node disconnected for longer reloads everything (default 7d)",
			reads(parseSpan, &keep.Changes))
		c.flags.Func("nodes-after", "remove nodes that have been silent for this `duration` (default 1d)",
			reads(parseSpan, &keep.Nodes))
		c.databaseFlag()
		c.outputFlag()
		return func(ctx context.Context) error {
			store, closeStore, err := c.open(ctx)
			if err != nil {
				return err
			}
			defer closeStore()
			return c.tidy(ctx, store, c.newLeader(), keep, rows.TidyBatch)
		}
	},
}

type tidied struct {
	rows.Tidied
	Usage usage.Stats `json:"usage"`
}

// newLeader returns a leader for its work once. It logs to standard error.
func (c *call) newLeader() *usage.Leader {
	return usage.NewLeader(usage.Options{
		Lock: rows.TidyLock,
		Log:  slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			config, err := c.connection()
			if err != nil {
				return nil, err
			}
			return pgx.ConnectConfig(ctx, config.ConnConfig)
		},
		Chores: func(ctx context.Context, session *pgx.Conn) (more bool, err error) {
			for more = true; more && err == nil; {
				more, err = outbox.Tidy(ctx, session)
			}
			for more = true; more && err == nil; {
				more, err = rows.DropDenials(ctx, session)
			}
			return false, err
		},
	})
}

// tidy tidies in batches of so many rows, and unpacks usage. Progress goes to standard error, so that the output stays
// one document.
func (c *call) tidy(
	ctx context.Context, s *rows.DB, leader *usage.Leader, keep rows.Retention, list int64,
) error {
	var done tidied
	var err error
	done.Tidied, err = s.Tidy(ctx, keep, list, func(sofar rows.Tidied) {
		c.warn("in progress: %s", lineOf(sofar))
	})
	if err == nil && done.Leader {
		done.Usage, err = leader.Once(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w; before that: %s", err, lineOf(done))
	}
	return c.print(done, nil)
}

// lineOf returns the fields of a value in one line.
func lineOf(value any) string {
	tree, _ := treeOf(value) // it has JSON
	return valueText(tree)
}
