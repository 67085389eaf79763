package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const documentAbout = `The file lists the active policies of one namespace:

  namespace: default     # optional
  policies:
  - {name: daily, tier: gold, scope: tenant, limit: 1000, window_size: 86400}

A policy has the fields of a limit in the plugin's config, plus tier, tenant, user, credential, ip or for.
Policies that are not in the file are deleted, unless --partial is given. A file that says partial: true requires
--partial.

It may also list the costs and the prices of the namespace, and tenants and overrides, which are of all namespaces. A
list that the file does not have changes nothing; one that it has is complete, as that of policies is:

  costs:
  - {endpoint: POST /exports, cost: 50}
  prices:
  - {model: "gpt-4o*", prompt: "2.50", completion: "10", starts_at: 2026-01-01T00:00:00Z}
  tenants:
  - {id: acme, tier: gold}
  overrides:
  - {kind: multiplier, tenant: acme, factor: 1.5, permanent: true, reason: their contract}

Overrides in the file that have ended are not made. Penalties of detectors are never deleted. An override is identified
by its kind, its subject, its policy and its start.`

var documentCommands = []*command{
	{
		words: "apply", brief: "replace the policies of a namespace with those in a file, in one transaction",
		about: documentAbout + ` Applying the same file again changes nothing.

If rows would be deleted and --yes is not given, apply lists them and writes nothing. A limit shared by all
tenants that is lower than the limit of a single tenant is written only with --force. A cost that a limit can never hold
is written with a warning: that limit denies the requests always. With --config, the limits in the plugin's config are
compared too.`,
		define: func(c *call) action {
			query := url.Values{}
			c.reviewFlags(query)
			d := c.documentFlags(query)
			c.flags.BoolFunc("yes", "allow the deletion of what is not in the file", sets(query, "allow_delete"))
			return c.writes(func() change {
				return change{
					method: http.MethodPut, path: documentPath, query: query, body: d.set, reason: "change_reason",
					what: "applied " + d.file, fault: func(err error) error { return c.declined(d, err) },
					read: func(_ map[string]json.RawMessage, done *written) error {
						if done.Diff.Empty() {
							done.What += " (no changes)"
						}
						return nil
					},
				}
			})
		},
	},
	{
		words: "diff", brief: "show what apply would change",
		about: documentAbout + `

Faults of the file itself need no database: see also ratelimit validate.`,
		trouble: exitWrongCall,
		exits:   "0 no changes, 1 changes, 2 usage error or failure",
		define: func(c *call) action {
			query := url.Values{}
			d := c.documentFlags(query)
			c.check(func() error {
				if c.door.server == "" && !c.hasDatabase() {
					c.warn("%s: no fault of its own; what apply would change depends on the database", d.file)
				}
				return nil
			})
			return c.asks(func(ctx context.Context, rest *answers.Client) error {
				var diff rows.SetDiff
				if err := rest.Do(ctx, http.MethodPost, documentPath+"/diff", query, d.set, &diff); err != nil {
					return d.locateProblem(err)
				}
				if err := c.print(diff, func(out *page) { writeDiff(out, &diff) }); err != nil || diff.Empty() {
					return err
				}
				return exitStatus(exitFailed)
			})
		},
	},
}

const forceUsage = "write a limit shared by all tenants even if it is lower than the limit of a single tenant"

const documentPath = "/v1/ratelimit/document"

// declined returns why a document was not applied: all faults, joined. It shows what would be deleted without --yes.
func (c *call) declined(d *document, err error) error {
	p := answers.ProblemOf(err)
	if p == nil || p.Diff == nil {
		return d.locateProblem(err)
	}
	var declined struct {
		Diff rows.SetDiff `json:"diff"`
	}
	if err := json.Unmarshal(p.Diff, &declined.Diff); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	var faults []error
	for _, f := range p.Errors {
		if f.Location != "query.allow_delete" {
			why := strings.TrimPrefix(f.Message, "must be true for this policy: ")
			faults = append(faults, fmt.Errorf("%s; use --force to write it anyway", why))
			continue
		}
		if err := c.print(declined, func(out *page) { writeDiff(out, &declined.Diff) }); err != nil {
			return err
		}
		faults = append(faults, fmt.Errorf("%s would be deleted: use --yes to delete, or --partial to keep what is not in "+
			"the file", counted(declined.Diff.Deletes(), "row")))
	}
	return errors.Join(faults...)
}

// documentFlags defines which file is read, and reads it before the database is opened. It adds --partial to the query.
func (c *call) documentFlags(query url.Values) *document {
	d := &document{whole: true}
	file := c.flags.StringP("file", "f", "", "the `file` (- reads standard input)")
	partial := c.flags.Bool("partial", false, "keep what is not in the file")
	c.check(func() error {
		if *file == "" {
			return wrong("--file is required, such as -f policies.yaml")
		}
		err := c.readDocument(d, "--file", *file)
		query.Set("partial", strconv.FormatBool(*partial))
		if d.partial && !*partial && err == nil {
			return wrong("--file: %s holds some of the policies only (partial: true): use --partial to keep the others, "+
				"or remove partial from the file to delete them", d.file)
		}
		return err
	})
	return d
}

// readDocument reads the file of policies that a flag names. Faults of its contents are no wrong call.
func (c *call) readDocument(d *document, flag, file string) error {
	text, name, err := c.readAll(file)
	if err != nil {
		return wrong("%s: %v", flag, err)
	}
	return d.read(bytes.NewReader(text), name)
}

// writeDiff writes a diff, one row in each line.
func writeDiff(out *page, d *rows.SetDiff) {
	var counts [4]int
	writeRowDiff(out, &d.Diff, &counts)
	writeRowDiff(out, d.Costs, &counts)
	writeRowDiff(out, d.Prices, &counts)
	writeRowDiff(out, d.Tenants, &counts)
	writeRowDiff(out, d.Overrides, &counts)
	ended := ""
	if d.Overrides != nil && d.Overrides.Ended > 0 {
		ended = fmt.Sprintf(", %d ended", d.Overrides.Ended)
	}
	out.line("%d to create, %d to change, %d to delete, %d unchanged%s", counts[0], counts[1], counts[2], counts[3], ended)
}

// writeRowDiff writes a diff of rows of a kind, and adds its numbers to counts.
func writeRowDiff[T fmt.Stringer](out *page, d *rows.RowDiff[T], counts *[4]int) {
	if d == nil {
		return
	}
	line := func(sign string, row T, before, after map[string]json.RawMessage) {
		out.line("%s %s: %s", sign, row, strings.Join(changedColumns(before, after), ", "))
	}
	for _, row := range d.Create {
		line("+", row, nil, columnsOfRow(row))
	}
	for _, r := range d.Update {
		line("~", r.Before, columnsOfRow(r.Before), columnsOfRow(r.After))
	}
	for _, row := range d.Delete {
		line("-", row, columnsOfRow(row), nil)
	}
	for i, n := range [4]int{len(d.Create), len(d.Update), len(d.Delete), d.Unchanged} {
		counts[i] += n
	}
}
