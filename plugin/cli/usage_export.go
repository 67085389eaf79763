package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// The formats of usage export.
const (
	exportCSV  = "csv"
	exportJSON = "json"
)

var usageExportCommand = &command{
	words: "usage export", brief: "write what every tenant used in a month, by endpoint and day",
	about: `It writes a row for each tenant, endpoint and day of UTC, ordered by these. A day is closed an hour or more
after its end, when all nodes have reported it, and then its rows do not change. Days that are not closed are left out,
unless --open is given; standard error names them. Days are kept for 3 years.

Without --policy or --by a row counts each request once, and has no cost. The rows of policies have the tokens that each
policy charged; a request is in those of several policies.

Every cell of CSV is quoted. A text that a spreadsheet could take for a formula gets an apostrophe, also after a comma,
semicolon, bar, quote, tab or line break in it. Characters that are not printable are replaced in CSV; JSON has them.

  ratelimit usage export --month 2026-11 --format csv > november.csv
  ratelimit usage export --month 2026-11 --policy tokens --format json`,
	define: func(c *call) action {
		var month monthFlag
		var q rows.UsageExportQuery
		format, by := exportCSV, ""
		c.flags.Var(&month, "month", "the `month` of UTC, such as 2026-11 (required)")
		c.flags.StringVar(&format, "format", format, "the `format`: csv or json (default csv)")
		c.flags.BoolVar(&q.Open, "open", false, "also write days that are not closed, whose rows may still change")
		c.flags.StringVar(&q.Policy, "policy", "", "write what this `policy` did, instead of the requests")
		c.flags.StringVar(&by, "by", "", "also write a row for each `group`: policy")
		c.complete("format", exportCSV, exportJSON)
		c.complete("by", "policy")
		c.check(func() error {
			switch q.ByPolicy = by == "policy"; {
			case month.first.IsZero():
				return wrong("--month: must be given, such as 2026-11")
			case format != exportCSV && format != exportJSON:
				return wrong("--format: %q: must be csv or json", format)
			case by != "" && !q.ByPolicy:
				return wrong("--by: %q: must be policy", by)
			case q.ByPolicy && q.Policy != "":
				return wrong("use either --policy or --by policy, not both")
			}
			return nil
		})
		c.databaseFlag()
		return func(ctx context.Context) error {
			q.From, q.To = month.first, month.first.AddDate(0, 1, 0)
			return c.exportUsage(ctx, q, format)
		}
	},
}

// exportUsage writes the rows of a query while they are read.
func (c *call) exportUsage(ctx context.Context, q rows.UsageExportQuery, format string) error {
	store, closeStore, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer closeStore()
	closed, err := store.UsageClosedUntil(ctx)
	if err != nil {
		return err
	}
	month := q.To
	if !q.Open && closed.Before(month) { // a day that is closed meanwhile is left out too, as the warning says
		q.To = closed
	}
	out := &lineBuffer{to: c.stdout}
	if list := store.UsageExport(ctx, q); format == exportJSON {
		err = showJSON(out, list)
	} else {
		err = writeUsageCSV(out, list)
	}
	if err = errors.Join(err, out.flush()); err != nil {
		return err
	}
	if first := latest(closed, q.From); first.Before(month) {
		effect := "left out: add --open to write them"
		if q.Open {
			effect = "written with closed=false: they may still change"
		}
		c.warn("the days from %s until %s are not closed, and %s", first.Format(time.DateOnly),
			month.AddDate(0, 0, -1).Format(time.DateOnly), effect)
	}
	return nil
}

// latest returns the later of two instants.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// writeUsageCSV writes rows as CSV, below a line with the names that JSON has.
func writeUsageCSV(w io.Writer, list iter.Seq2[rows.UsageExportRow, error]) error {
	line := csvLine("day", "org_id", "endpoint", "policy", "admitted", "soft", "denied", "shadow_denied", "late", "cost",
		"closed", "policy_id", "tier")
	if _, err := io.WriteString(w, line); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	for r, err := range list {
		if err != nil {
			return err
		}
		line := csvLine(r.Day, csvText(r.Tenant), csvText(r.Endpoint), csvText(r.Policy), fmt.Sprint(r.Admitted),
			fmt.Sprint(r.Soft), fmt.Sprint(r.Denied), fmt.Sprint(r.ShadowDenied), fmt.Sprint(r.Late), numberText(r.Cost),
			fmt.Sprint(r.Closed), rowText(r.PolicyID), csvText(r.Tier))
		if _, err := io.WriteString(w, line); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	return nil
}

// rowText returns the id of a policy, or "" for one of a config.
func rowText(id int64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprint(id)
}

// monthFlag is a month of UTC as a flag.
type monthFlag struct{ first time.Time }

func (m *monthFlag) String() string { return m.first.Format("2006-01") }

// Set implements pflag.Value.
func (m *monthFlag) Set(text string) error {
	first, err := time.Parse("2006-01", text)
	if err != nil || first.Year() < 1 {
		return errors.New("must be a month such as 2026-11")
	}
	m.first = first
	return nil
}

// Type implements pflag.Value.
func (m *monthFlag) Type() string { return "month" }

// lineBuffer joins short writes of whole lines to long ones, and keeps them whole, as a screen needs.
type lineBuffer struct {
	to   io.Writer
	text strings.Builder
}

// bufferSize is how many bytes a lineBuffer joins at least.
const bufferSize = 32 << 10

// Write implements io.Writer.
func (b *lineBuffer) Write(text []byte) (int, error) {
	b.text.Write(text)
	if b.text.Len() < bufferSize {
		return len(text), nil
	}
	return len(text), b.flush()
}

// flush writes what is left.
func (b *lineBuffer) flush() error {
	if b.text.Len() == 0 {
		return nil
	}
	text := b.text.String()
	b.text.Reset()
	if _, err := io.WriteString(b.to, text); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
