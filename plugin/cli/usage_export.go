package cli

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var usageExportCommand = &command{
	words: "usage export", brief: "write what every tenant used in a month, by endpoint and day",
	about: `It writes a row for each day of UTC, tenant and endpoint, ordered by these. A day is closed an hour or more
after its end, when all nodes have reported it, and then its rows do not change. Days that are not closed are left out,
unless --open is given; standard error names them. Days are kept for 3 years.

Without --policy or --by a row counts each request once, and has no cost. The rows of policies have the tokens that each
policy charged; a request is in those of several policies.

Every cell of CSV is quoted. A text that a spreadsheet could take for a formula gets an apostrophe, also after a comma,
semicolon, bar, quote, tab or line break in it. Characters that are not printable are replaced in CSV; JSON has them.

  ratelimit usage export --month 2026-11 --format csv > november.csv
  ratelimit usage export --month 2026-11 --policy tokens --format json`,
	define: func(c *call) action {
		query := c.queryFlags(api.UsageExportQuery{}, "limit")
		c.flags.Lookup("month").Usage += " (required)"
		format := c.flags.String("format", formatCSV, "the `format`: csv or json (default csv)")
		c.complete("format", formatCSV, formatJSON)
		c.check(func() error {
			switch month, err := time.Parse("2006-01", query.Get("month")); {
			case !c.given("month"):
				return wrong("--month: must be given, such as 2026-11")
			case err != nil || month.Year() < 1:
				return wrong("--month: %q: must be a month such as 2026-11", query.Get("month"))
			case *format != formatCSV && *format != formatJSON:
				return wrong("--format: %q: must be csv or json", *format)
			case query.Has("by") && query.Has("policy"):
				return wrong("use either --policy or --by policy, not both")
			}
			query.Set("limit", "10000")
			return nil
		})
		c.doorFlag()
		return func(ctx context.Context) error {
			return c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
				return c.exportUsage(ctx, rest, query, *format)
			})
		}
	},
}

// exportUsage writes the rows of a query page by page.
func (c *call) exportUsage(ctx context.Context, rest *answers.Client, query url.Values, format string) (err error) {
	var closed time.Time
	list := exportedUsage(ctx, rest, query, &closed)
	if format == formatJSON {
		err = showJSON(c.stdout, list)
	} else {
		err = showCSV(c.stdout, list, "day", "org_id", "endpoint", "policy", "admitted", "soft", "denied", "shadow_denied",
			"late", "cost", "closed", "policy_id", "tier")
	}
	if err != nil {
		return err
	}
	first, _ := time.Parse("2006-01", query.Get("month")) // which is checked
	month := first.AddDate(0, 1, 0)
	if closed.After(first) {
		first = closed
	}
	if first.Before(month) {
		effect := "left out: add --open to write them"
		if open, _ := strconv.ParseBool(query.Get("open")); open {
			effect = "written with closed=false: they may still change"
		}
		c.warn("the days from %s until %s are not closed, and %s", first.Format(time.DateOnly),
			month.AddDate(0, 0, -1).Format(time.DateOnly), effect)
	}
	return nil
}

// exportedUsage yields the rows of a query, and sets the midnight before which days were closed at the begin.
func exportedUsage(
	ctx context.Context, rest *answers.Client, query url.Values, closed *time.Time,
) iter.Seq2[rows.UsageExportRow, error] {
	return func(yield func(rows.UsageExportRow, error) bool) {
		for more := true; more; more = query.Get("cursor") != "" {
			var page answers.UsageExport
			if err := rest.Get(ctx, "/v1/ratelimit/usage/export", query, &page); err != nil {
				yield(rows.UsageExportRow{}, err)
				return
			}
			if closed.IsZero() {
				*closed = page.ClosedUntil
			}
			for _, row := range page.Items {
				if !yield(row, nil) {
					return
				}
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}
