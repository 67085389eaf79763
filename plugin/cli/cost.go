package cli

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var costCommands = []*command{
	{
		words: "cost list", brief: "list what requests to endpoints cost",
		about: `The plugin's config may have costs too, which are not listed. A row takes precedence over them.`,
		define: func(c *call) action {
			var f rows.CostFilter
			c.flags.StringVar(&f.Namespace, "namespace", "", "only costs of this `namespace`")
			c.flags.StringVar(&f.Endpoint, "endpoint", "", "only the cost of this `pattern`")
			c.afterFlag(&f.After)
			c.pageFlag(&f.Max)
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				return costList.show(c, s.EachCost(ctx, f))
			})
		},
	},
	{
		words: "cost put", args: "ENDPOINT", brief: "set what requests to an endpoint cost", least: 1, most: 1,
		about: `The endpoint is a pattern, as that of a policy. Of several that match a request the most specific one counts,
before the costs in the plugin's config. A cost that the request itself states (cost_header) goes before both, and a
policy with a cost of its own ignores all of them. A cost that a limit can never hold is written with a warning: that
limit denies the requests always. With --config, the limits in the plugin's config are compared too.

  ratelimit cost put "POST /exports" --cost 50 --reason "exports are slow"`,
		define: func(c *call) action {
			var cost rows.Cost
			fields := schema.FieldsWithout(schema.CostFields(), "endpoint") // the argument
			for i := range fields {
				fieldFlag(c, &fields[i], &cost.Cost)
			}
			c.revisionFlag(&cost.Revision)
			config := c.knownConfigFlag()
			c.check(func() error {
				if !c.given("cost") {
					return wrong("--cost is required; 0 makes the requests free")
				}
				return nil
			})
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				cost.Endpoint = c.arg()
				row, version, err := s.PutCost(ctx, by, cost)
				if err == nil {
					c.warnOfWrite(s.CostWarnings(ctx, config.plan, row))
				}
				return written{What: "put the " + cost.String(), Version: version, Row: row}, err
			})
		},
	},
	{
		words: "cost delete", args: "ENDPOINT", least: 1, most: 1,
		brief: "delete the cost of an endpoint; the plugin's config then sets it",
		define: func(c *call) action {
			var revision int64
			c.revisionFlag(&revision)
			var namespace string
			c.flags.StringVar(&namespace, "namespace", "", "the `namespace` of the cost (default \"default\")")
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				row, err := s.Cost(ctx, namespace, c.arg())
				if err != nil {
					return written{}, err
				}
				version, err := s.DeleteCost(ctx, by, row.ID, revision)
				return written{What: "deleted the " + row.String(), Version: version}, err
			})
		},
	},
}

// costList is how costs are shown.
var costList = listing[rows.Cost]{"ID|ENDPOINT|COST|NAMESPACE|REVISION", func(c rows.Cost) []any {
	return []any{c.ID, c.Endpoint, *c.Cost.Cost, c.Namespace, c.Revision}
}}

// costText returns what a cost says of its endpoint, in words.
func costText(c rows.Cost) string { return counted(int(*c.Cost.Cost), "token") }

// costDocumentFields are the fields that a cost of a document may have: its namespace is the document's.
var costDocumentFields = schema.FieldsWithout(schema.CostFields(), "namespace")

// explainedCost returns what a request costs, and where that is set; "" for an exempt one, and for the default.
func explainedCost(e *resolve.ExplainedCost) string {
	if e == nil {
		return ""
	}
	text := "a request costs " + counted(int(e.Tokens), "token")
	switch {
	case e.ID > 0:
		return text + fmt.Sprintf(", by cost %d of %s", e.ID, e.Endpoint)
	case e.Endpoint != "":
		return text + ", by the config's cost of " + e.Endpoint
	case e.From == resolve.RequestsOwn.String():
		return text + ", as it states itself"
	}
	return "" // the default
}
