package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const day = 24 * time.Hour

var tidyCommand = &command{
	words: "tidy", brief: "move expired overrides to the history, and drop records that are no longer needed",
	about: `Expired overrides end at their instant in any case; this only keeps the tables small. The idempotency
keys of the REST API are dropped after a day. It works in small batches, between which other writes proceed, until
nothing is left; it reports progress on standard error, and Ctrl-C stops it after a batch. Run it from cron, on as many
machines as you like: one of them does the work, and the others exit at once.

A silent node may still admit requests. --nodes-after drops its report all the same, and ratelimit fleet and --wait no
longer count it. Choose a time longer than your nodes are ever cut off from Postgres.`,
	define: func(c *call) action {
		overrides, changes, nodes := spanFlag{length: 7 * day}, spanFlag{length: 7 * day}, spanFlag{length: day}
		c.flags.Var(&overrides, "overrides-after",
			"move an override to the history this `duration` after its end; default: 7d")
		c.flags.Var(&changes, "changes-after",
			"drop the record of changes after this `duration`; a node that was away for longer loads everything; default: 7d")
		c.flags.Var(&nodes, "nodes-after", "forget a node that has been silent for this `duration`; default: 1d")
		return c.reads(func(ctx context.Context, s *pgstore.Store) error {
			keep := pgstore.Retention{Overrides: overrides.length, Changes: changes.length, Nodes: nodes.length}
			return c.tidy(ctx, s, keep, pgstore.TidyBatch)
		})
	},
}

// tidy tidies in batches of so many rows. Progress goes to standard error, so that the output stays one document.
func (c *call) tidy(ctx context.Context, s *pgstore.Store, keep pgstore.Retention, rows int64) error {
	done, err := s.TidyInBatches(ctx, keep, rows, func(sofar pgstore.Tidied) { c.warn("so far: %s", tidiedText(sofar)) })
	if err != nil {
		return fmt.Errorf("%w; before that: %s", err, tidiedText(done))
	}
	return c.print(done, func(out *page) {
		if !done.Leader {
			out.line("another process is tidying: nothing was done here")
			return
		}
		out.line("%s", tidiedText(done))
	})
}

// tidiedText returns what was done, and what is left of it.
func tidiedText(done pgstore.Tidied) string {
	text := fmt.Sprintf("%d overrides moved to the history, %d changes, %d nodes and %d idempotency keys dropped",
		done.Overrides, done.Changes, done.Nodes, done.Keys)
	if done.Left > 0 {
		text += fmt.Sprintf("; %d rows are left", done.Left)
	}
	return text
}
