package portal

import (
	"cmp"
	"encoding/json"
	"html/template"
	"net/url"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// listing is a page that lists rows of one kind, as data, with what makes, changes and deletes them.
type listing struct {
	At, Title, About string
	API              string // the path of its rows
	Filters          string // parameters of it
	read             func(v *visit, path string, query url.Values) (rows any, next string, err error)

	What, Row      string // a row in words, with names in braces, and the field of answers that has it
	Create, Change string // operations; without Change rows are not edited
	Same           string // the query for the row that a new one would be in place of; "": the API finds it
	Key            string // the fields of a new row that do not change later
	Fields, More   string // those that do, and more of a new row
}

func listingPages() (all []page) {
	for i := range listings {
		l := &listings[i]
		all = append(all, page{Pattern: "GET " + home + l.At, For: operators, Serve: l.serve})
	}
	all[0].Nav = "Configuration"
	return all
}

// listOf reads a page of rows.
func listOf[T any](v *visit, path string, query url.Values) (rows any, next string, err error) {
	var found answers.Page[T]
	err = v.get(path, query, &found)
	return found.Items, found.NextCursor, err
}

func (l *listing) serve(v *visit) error {
	o, err := v.operation("GET " + l.API)
	if err != nil {
		return err
	}
	fields, err := o.fields(l.Filters)
	if err != nil {
		return err
	}
	filters := v.filters(strings.Fields(l.Filters)...)
	for _, in := range fields {
		in.Values = filters[in.Name]
	}
	query := v.withPage(filters)
	if o.parameter("every") != nil {
		query.Set("every", "true")
	}
	rows, next, err := l.read(v, l.API, query)
	if err != nil {
		return err
	}
	return v.render("operator_list", l.Title, map[string]any{
		"List": l, "Tabs": listings, "Fields": fields, "Rows": rows, "CanWrite": v.isAdmin(), "IsFiltered": len(filters) > 0,
		"Next": nextPage(v.r.URL.Path, filters, next),
	})
}

// policyWords returns the limit of a policy in words.
func policyWords(p answers.Policy) string {
	l := answers.LimitInForce{Burst: p.Limit.Limit}
	text, _ := json.Marshal(p)   // it was decoded from JSON
	_ = json.Unmarshal(text, &l) // a policy has the fields of its limit
	return limitWords(&l, cmp.Or(p.Tenant, "each tenant"))
}

// keyQuery returns the query that names a policy.
func keyQuery(p *answers.Policy) template.URL {
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
	return template.URL(query.Encode()) // #nosec G203 -- Encode has escaped it
}
