package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

var auditCommand = &command{
	words: "audit", brief: "show who changed what, when and why, newest first",
	define: func(c *call) action {
		query, most := c.queryFlags(rows.AuditFilter{}), 100
		c.flags.Lookup("since").Usage += ": RFC 3339, or a duration ago such as 2h or 30d"
		c.flags.Lookup("until").Usage += ", in the same formats as --since"
		c.flags.Func("kind", "only changes of this `kind`: "+rows.AuditKindsText(), sets(query, "kind"))
		c.complete("kind", rows.AuditKinds...)
		c.flags.Func("limit", "show at most this `number` of entries (default 100)",
			func(text string) error { return process.ParseInt(text, 1, &most) })
		c.flags.Func("before", "only entries older than this `id`, to show the next page", func(text string) error {
			query.Set("cursor", answers.Cursor(text))
			return parseCount(text, new(int64))
		})
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			var entries []rows.AuditEntry
			for e, err := range answers.Each[rows.AuditEntry](ctx, rest, "/v1/ratelimit/audit", query, most+1) {
				if err != nil {
					return err
				}
				entries = append(entries, e)
			}
			return c.audit(entries, most)
		})
	},
}

// auditLine is an entry in a table: what has changed is in place of the rows before and after.
type auditLine struct {
	rows.AuditEntry
	Change string    `json:"change"`
	Before *struct{} `json:"before,omitempty"`
	After  *struct{} `json:"after,omitempty"`
}

// audit shows at most so many entries, and says if there is another one.
func (c *call) audit(entries []rows.AuditEntry, most int) error {
	next := int64(0)
	if len(entries) > most {
		entries = entries[:most]
		next = entries[most-1].ID
	}
	found := struct {
		Entries []rows.AuditEntry `json:"entries"`
		Next    int64             `json:"next,omitempty"`
	}{listed(entries), next}
	return c.print(found, func(out *page) {
		lines := []auditLine{}
		for _, e := range entries {
			lines = append(lines, auditLine{AuditEntry: e, Change: entryText(e)})
		}
		out.show(lines)
		if next > 0 {
			out.line("more entries: add --before %d to see older ones", next)
		}
	})
}

// entryText returns the columns that an entry changed, before and after; of an action, what it records.
func entryText(e rows.AuditEntry) string {
	before, errBefore := rowColumns(e.Before)
	after, errAfter := rowColumns(e.After)
	if errors.Join(errBefore, errAfter) != nil {
		return string(e.After) // of an action
	}
	return strings.Join(changedColumns(before, after), " ")
}

// changedColumns returns how two rows differ; of a single row, its columns.
func changedColumns(before, after map[string]json.RawMessage) []string {
	names := maps.Clone(before)
	if names == nil {
		names = map[string]json.RawMessage{}
	}
	maps.Copy(names, after)
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is := before[name], after[name]
		switch {
		case bytes.Equal(was, is) || slices.Contains(omitted, name) || (absent(was) && absent(is)):
		case len(before) == 0:
			parts = append(parts, fmt.Sprintf("%s=%s", name, is))
		case len(after) == 0:
			parts = append(parts, fmt.Sprintf("%s=%s", name, was))
		default:
			parts = append(parts, fmt.Sprintf("%s: %s → %s", name, orDash(was), orDash(is)))
		}
	}
	return parts
}

func orDash(value json.RawMessage) string { return cmp.Or(plainText(string(value)), "-") }

// omitted lists the columns that an entry shows elsewhere, or that always change.
var omitted = []string{"id", "revision", "tenant", "reason", "author", "created_at"}

// rowColumns returns the columns of a row. Without a row it returns none.
func rowColumns(row json.RawMessage) (map[string]json.RawMessage, error) {
	if len(row) == 0 {
		return nil, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(row, &all); err != nil {
		return nil, fmt.Errorf("read the row: %w", err)
	}
	return all, nil
}

func absent(value json.RawMessage) bool {
	return slices.Contains([]string{"", "null", `""`, "false"}, string(value))
}
