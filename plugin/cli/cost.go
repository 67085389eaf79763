package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var costCommands = []*command{
	{
		words: "cost list", brief: "list what requests to endpoints cost",
		about:  `The plugin's config may have costs too, which are not listed. A row takes precedence over them.`,
		define: lists(costsPath, rows.CostFilter{}, costList),
	},
	{
		words: "cost put", args: "ENDPOINT", brief: "set what requests to an endpoint cost",
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
			query := url.Values{}
			c.overFlag(query)
			c.knownConfigFlag()
			c.check(func() error {
				if !c.given("cost") {
					return wrong("--cost is required; 0 makes the requests free")
				}
				return nil
			})
			return c.writes(func(ctx context.Context, rest *answers.Client) (written, error) {
				cost.Endpoint = c.arg()
				var done struct{ Cost rows.Cost }
				put := change{method: http.MethodPut, path: costsPath, query: query, body: cost.Cost}
				version, err := c.send(ctx, rest, put, &done)
				return written{What: "put the " + done.Cost.String(), Version: version, Row: done.Cost}, err
			})
		},
	},
	{
		words: "cost delete", args: "ENDPOINT",
		brief: "delete the cost of an endpoint; the plugin's config then sets it",
		define: func(c *call) action {
			query := url.Values{}
			c.overFlag(query)
			namespace := c.flags.String("namespace", "default", "the `namespace` of the cost (default \"default\")")
			return c.writes(func(ctx context.Context, rest *answers.Client) (written, error) {
				of := url.Values{"namespace": {*namespace}, "endpoint": {c.arg()}}
				for row, err := range answers.Each[rows.Cost](ctx, rest, costsPath, of, 1) {
					if err != nil {
						return written{}, err
					}
					remove := change{method: http.MethodDelete, path: fmt.Sprint(costsPath, "/", row.ID), query: query}
					version, err := c.send(ctx, rest, remove, &struct{}{})
					return written{What: "deleted the " + row.String(), Version: version}, err
				}
				return written{}, &rows.NotFoundError{What: "the cost of " + c.arg()}
			})
		},
	},
}

const costsPath = "/v1/ratelimit/costs"

// costList is how costs are shown.
var costList = listing[rows.Cost]{"ID|ENDPOINT|COST|NAMESPACE|REVISION", func(c rows.Cost) []any {
	return []any{c.ID, c.Endpoint, *c.Cost.Cost, c.Namespace, c.Revision}
}}

// costText returns what a cost says of its endpoint, in words.
func costText(c rows.Cost) string { return counted(int(*c.Cost.Cost), "token") }

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
