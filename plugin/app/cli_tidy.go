package app

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const day = 24 * time.Hour

var tidyCommand = &command{
	words: "tidy", brief: "move expired overrides to the history, and drop what nobody needs any more",
	about: `Expired overrides end at their instant in any case; this only keeps the tables small. The idempotency
keys of the REST API are dropped after a day. It works in small batches, between which others write, until nothing is
left; Ctrl-C ends it after a batch. Run it from time to time, on as many machines as you like: one of them
does it, the others see that and do nothing.

A silent node may still admit requests, and --nodes-after drops its report without looking: after that it counts no longer
against what ratelimit fleet and --wait call enforced. Let it be longer than your nodes are ever cut off from Postgres.`,
	define: func(c *call) action {
		overrides, changes, nodes := spanFlag{length: 7 * day}, spanFlag{length: 7 * day}, spanFlag{length: day}
		c.flags.Var(&overrides, "overrides-after", "an override moves to the history so long after its end, a `duration`; default: 7d")
		c.flags.Var(&changes, "changes-after", "a node that was away for longer than this `duration` loads everything; default: 7d")
		c.flags.Var(&nodes, "nodes-after", "a node that was silent for this `duration` is forgotten; default: 1d")
		return c.reads(func(ctx context.Context, s *pgstore.Store) error {
			done, err := s.Tidy(ctx, pgstore.Retention{Overrides: overrides.length, Changes: changes.length, Nodes: nodes.length})
			if err != nil {
				return fmt.Errorf("%w; before that: %s", err, tidiedText(done))
			}
			return c.print(done, func(out *page) {
				if !done.Leader {
					out.line("another process is at it: nothing was done here")
					return
				}
				out.line("%s", tidiedText(done))
			})
		})
	},
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
