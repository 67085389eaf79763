package gateway

import (
	"slices"
	"strings"
)

// maxTableHeaders is how many headers OpenResty's table holds unless told
// otherwise.
const maxTableHeaders = 100

// headerVariable is nginx's $http_name: the values of every line whose name,
// in lower case and with underscores for dashes, is name. Kong's template has
// underscores_in_headers on, so X_Org is a line of $http_x_org, too. Lines of
// different spelling are joined in the order of their names: net/http does not
// keep the order of the wire.
func (x *exchange) headerVariable(name string) string {
	switch name {
	case "host":
		return x.host
	case "cookie":
		return strings.Join(x.header["Cookie"], "; ")
	}
	var spellings []string
	for spelling := range x.header {
		if strings.ReplaceAll(strings.ToLower(spelling), "-", "_") == name {
			spellings = append(spellings, spelling)
		}
	}
	slices.Sort(spellings)
	var lines []string
	for _, spelling := range spellings {
		lines = append(lines, x.header[spelling]...)
	}
	return strings.Join(lines, ", ")
}

// requestHeader is kong.request.get_header: nginx's variable, unless that has
// ", " in it, be it two lines or one with a comma. Then it is the first line
// of that name among the headers of OpenResty's table, "" when it is not
// among them.
func (x *exchange) requestHeader(name string) string {
	lower := strings.ToLower(name)
	value := x.headerVariable(strings.ReplaceAll(lower, "-", "_"))
	if !strings.Contains(value, ", ") {
		return value
	}
	table := x.headerTable(maxTableHeaders)
	entry, known := table[lower]
	if !known { // the table's own lookup of a name that it does not hold
		entry = table[strings.ReplaceAll(lower, "_", "-")]
	}
	switch entry := entry.(type) {
	case string:
		return entry
	case []any:
		if first, ok := entry[0].(string); ok {
			return first
		}
	}
	return ""
}

// headerTable is OpenResty's table of headers: lower-case names, a plain
// string for a header that came once.
func (x *exchange) headerTable(limit int) map[string]any {
	names := make([]string, 0, len(x.header))
	for name := range x.header {
		names = append(names, name)
	}
	slices.Sort(names)
	table := make(map[string]any, len(names)+1)
	if x.host != "" {
		table["host"] = x.host
		limit--
	}
	for _, name := range names {
		values := x.header[name]
		if len(values) == 0 || limit <= 0 {
			continue
		}
		values = values[:min(len(values), limit)]
		limit -= len(values)
		table[strings.ToLower(name)] = luaList(values)
	}
	return table
}

func luaList(values []string) any {
	if len(values) == 1 {
		return values[0]
	}
	list := make([]any, len(values))
	for i, value := range values {
		list[i] = value
	}
	return list
}
