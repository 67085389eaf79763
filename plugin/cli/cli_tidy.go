package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const day = 24 * time.Hour

var tidyCommand = &command{
	words: "tidy", brief: "move expired overrides to the history and delete records that are no longer needed",
	about: `Run it from cron to keep the tables small; overrides expire on time without it. It works in small batches
that do not block other writes, and reports progress on standard error. Ctrl-C stops it after the current batch. It
can run on any number of machines: one does the work, and the others exit immediately. Idempotency keys of the REST
API are deleted after a day.

A silent node may still admit requests. --nodes-after removes it from ratelimit fleet and --wait, so choose a duration
longer than any outage between your nodes and Postgres.`,
	define: func(c *call) action {
		overrides, changes, nodes := spanFlag{length: 7 * day}, spanFlag{length: 7 * day}, spanFlag{length: day}
		c.flags.Var(&overrides, "overrides-after",
			"move overrides to the history this `duration` after they end (default 7d)")
		c.flags.Var(&changes, "changes-after",
			"delete change records older than this `duration`; a node disconnected for longer reloads everything (default 7d)")
		c.flags.Var(&nodes, "nodes-after", "remove nodes that have been silent for this `duration` (default 1d)")
		return c.reads(func(ctx context.Context, s *pgstore.Store) error {
			keep := pgstore.Retention{Overrides: overrides.length, Changes: changes.length, Nodes: nodes.length}
			return c.tidy(ctx, s, keep, pgstore.TidyBatch)
		})
	},
}

// tidy tidies in batches of so many rows. Progress goes to standard error, so that the output stays one document.
func (c *call) tidy(ctx context.Context, s *pgstore.Store, keep pgstore.Retention, rows int64) error {
	done, err := s.Tidy(ctx, keep, rows, func(sofar pgstore.Tidied) {
		c.warn("in progress: %s", tidiedText(sofar))
	})
	if err != nil {
		return fmt.Errorf("%w; before that: %s", err, tidiedText(done))
	}
	return c.print(done, func(out *page) {
		if !done.Leader {
			out.line("nothing done: another process is already running tidy")
			return
		}
		out.line("%s", tidiedText(done))
	})
}

// tidiedText returns what was done, and what is left of it.
func tidiedText(done pgstore.Tidied) string {
	text := fmt.Sprintf("moved %d overrides to the history; deleted %d changes, %d nodes and %d idempotency keys",
		done.Overrides, done.Changes, done.Nodes, done.Keys)
	if done.Left > 0 {
		text += fmt.Sprintf("; %d rows remain", done.Left)
	}
	return text
}
