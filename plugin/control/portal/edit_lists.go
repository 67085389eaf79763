package portal

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// listing is a page that lists rows of one kind, as data.
type listing struct {
	At, Title, About string
	Read             string   // the path of the API
	Filters          []string // parameters of it
	Columns          []column
	New              [][2]string // actions that make rows: where they are, and what they are called
	Row              []rowAction
}

// column is a column of a listing. The first one names the row.
type column struct {
	Label, Field string
	Cell         func(row json.RawMessage) any // in place of the field
}

// rowAction is a link of a row to an action.
type rowAction struct {
	Label, At string // At has names of the row's fields in braces
	If        string // only of rows that have this as a field=value; "": of all
}

// tabs are the pages beside each other under one link of the navigation.
var tabs = []*listing{&policyList, &tierList, &costList, &priceList, &webhookList, &tokenList}

func listingPages() (all []page) {
	for _, l := range tabs {
		all = append(all, page{Pattern: "GET " + home + l.At, For: operators, Serve: l.serve})
	}
	all[0].Nav = "Configuration"
	return all
}

// tableRow is a row of a listing, as its page shows it.
type tableRow struct {
	Cells   []any
	Actions [][2]string // links, and what they are called
}

func (l *listing) serve(v *visit) error {
	filters := v.filters(l.Filters...)
	fields, err := v.filterFields(l.Read, filters, l.Filters...)
	if err != nil {
		return err
	}
	query := v.withPage(filters)
	if l == &webhookList {
		query.Set("every", "true")
	}
	var found answers.Page[json.RawMessage]
	if err := v.get(l.Read, query, &found); err != nil {
		return err
	}
	rows := make([]tableRow, len(found.Items))
	for i, item := range found.Items {
		rows[i] = l.row(item, v.isAdmin())
	}
	return v.render("operator_list", l.Title, map[string]any{
		"List": l, "Tabs": tabs, "Fields": fields, "Rows": rows, "CanWrite": v.isAdmin(), "IsFiltered": len(filters) > 0,
		"Next": nextPage(v.r.URL.Path, filters, found.NextCursor),
	})
}

func (l *listing) row(item json.RawMessage, canWrite bool) (row tableRow) {
	fields := fieldsOf(item)
	for _, c := range l.Columns {
		switch value := fields[c.Field]; {
		case c.Cell != nil:
			row.Cells = append(row.Cells, c.Cell(item))
		default:
			row.Cells = append(row.Cells, cellOf(value))
		}
	}
	for _, a := range l.Row {
		name, value, _ := strings.Cut(a.If, "=")
		if canWrite && (a.If == "" || jsonText(fields[name]) == value) {
			path := bracedName.ReplaceAllStringFunc(a.At, func(braced string) string {
				return answers.PathSegment(jsonText(fields[strings.Trim(braced, "{}")]))
			})
			row.Actions = append(row.Actions, [2]string{home + path, a.Label})
		}
	}
	return row
}

// cellOf returns a decoded value for a template: an integer, an instant, a list in words, or a text.
func cellOf(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
	case []any:
		var texts []string
		for _, item := range v {
			texts = append(texts, strings.TrimPrefix(jsonText(item), eventPrefix))
		}
		return strings.Join(texts, ", ")
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil {
			return at
		}
	}
	return jsonText(value)
}

// showCell returns a value of cellOf as a page shows it.
func showCell(value any) (any, error) {
	switch v := value.(type) {
	case int64:
		return number(v)
	case time.Time:
		return when(v)
	}
	return value, nil
}

// limitCell returns the limit of a policy in words.
func limitCell(row json.RawMessage) any {
	var l answers.LimitInForce
	_ = json.Unmarshal(row, &l) // a policy has the fields of its limit
	l.Burst = cmp.Or(l.Burst, l.Limit)
	return limitWords(&l, cmp.Or(jsonText(fieldsOf(row)["tenant"]), "each tenant"))
}

// targetCell returns what a policy is for.
func targetCell(row json.RawMessage) any {
	fields := fieldsOf(row)
	var parts []string
	for _, name := range []string{"for", "tier", "tenant", "user", "credential", "ip"} {
		if value := jsonText(fields[name]); value != "" {
			parts = append(parts, strings.TrimPrefix(name+" "+value, "for "))
		}
	}
	return strings.Join(parts, ", ")
}

// webhookCell returns whether a webhook works.
func webhookCell(row json.RawMessage) any {
	var w answers.Webhook
	_ = json.Unmarshal(row, &w) // it is one
	switch {
	case !w.Enabled:
		return strings.TrimSpace("disabled " + w.DisabledFor)
	case !w.FailingSince.IsZero():
		return "failing since " + minuteTime(w.FailingSince) + ": " + w.LastError
	}
	return "enabled"
}

// chosen returns choices that are always the same.
func chosen(list ...choice) func(*form, *visit) ([]choice, error) {
	return func(*form, *visit) ([]choice, error) { return slices.Clone(list), nil }
}

// keyQuery returns the query that names a policy.
func keyQuery(p *answers.Policy) string {
	key := map[string]string{}
	text, _ := json.Marshal(p.Key()) // it has texts only
	_ = json.Unmarshal(text, &key)
	query := url.Values{}
	for name, value := range key {
		if name == "name" {
			name = "policy"
		}
		if value != "" {
			query.Set(name, value)
		}
	}
	return query.Encode()
}
