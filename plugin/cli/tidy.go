package cli

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
)

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

// tidied is what tidy has done.
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
