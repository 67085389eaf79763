package cli

import (
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const pricesPath = "/v1/ratelimit/prices"

var priceCommands = []*command{
	{
		words: "price list", brief: "list what models cost, and which prices are in force",
		about: `Of each model the price with the state in_force applies to the requests that arrive now. The plugin's config may have
prices too, which are not listed. A row takes precedence over the one with the same model.`,
		define: lists[rows.Price](pricesPath, rows.PriceFilter{}),
	},
	{
		words: "price put", args: "MODEL", brief: "set what a model costs from an instant on",
		about: `MODEL is the name of a model, or the beginning of names with a * behind it. Of several that match the exact name counts,
else the longest one. The price applies to requests that arrive from its start on, by the clock of each node. One with
the same model and start is replaced. Without --starts-at the price begins now, unless it is in force already.

  ratelimit price put "gpt-4o*" --prompt 2.5 --completion 10 --starts-at 2027-01-01T00:00:00Z --reason "new contract"`,
		define: func(c *call) action {
			var price rows.Price
			fieldFlags(c, &price.DatedPrice, "model", "starts_at") // the argument, and a time
			c.flags.Func("starts-at", "begin at this `time`, such as 2027-01-01T00:00:00Z (default: now)",
				reads(parseInstant, &price.StartsAt))
			query := c.overFlag()
			c.wrongIf(func() bool { return !c.given("prompt") || !c.given("completion") },
				"--prompt and --completion are required; 0 makes the tokens free")
			return c.writes(func() change {
				price.Model = c.arg()
				return change{
					method: http.MethodPut, path: pricesPath, query: query, body: price.DatedPrice,
					what: "put the " + price.String(), row: "price",
				}
			})
		},
	},
	{
		words: "price delete", args: "ID", brief: "delete a price; the one before it, or the plugin's config, then sets it",
		define: deletes(pricesPath+"/{}", "deleted price"),
	},
}
