package gateway

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// maxTableHeaders bounds OpenResty's table of headers where a caller gives no other bound.
const maxTableHeaders = 100

// headerVariable returns nginx's $http_name: the values of every line whose name, in lower case and with underscores
// for dashes, is name. Kong's template has underscores_in_headers on, so X_Org is a line of $http_x_org, too. Lines of
// different spelling are joined in the order of their names: net/http does not keep the order of the wire.
func (x *exchange) headerVariable(name string) string {
	switch name {
	case "host":
		return x.host
	case "cookie":
		return strings.Join(x.header["Cookie"], "; ")
	}
	var lines []string
	for _, spelling := range slices.Sorted(maps.Keys(x.header)) {
		if strings.ReplaceAll(strings.ToLower(spelling), "-", "_") == name {
			lines = append(lines, x.header[spelling]...)
		}
	}
	return strings.Join(lines, ", ")
}

// requestHeader returns what kong.request.get_header answers: nginx's variable, unless that has ", " in it, be it two
// lines or one with a comma. Then it is the first line of that name in OpenResty's table of headers, "" if the table
// has no such line.
func (x *exchange) requestHeader(name string) string {
	lower := strings.ToLower(name)
	value := x.headerVariable(strings.ReplaceAll(lower, "-", "_"))
	if !strings.Contains(value, ", ") {
		return value
	}
	return firstLine(x.headerTable(maxTableHeaders), lower)
}

// firstLine returns the first line of a header in OpenResty's table of headers, "" if there is none.
func firstLine(table map[string]any, name string) string {
	lower := strings.ToLower(name)
	entry, found := table[lower]
	if !found { // OpenResty looks such a name up with dashes
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

// headerTable returns OpenResty's table of headers: lower-case names, a plain string for a header that came once.
func (x *exchange) headerTable(limit int) map[string]any {
	table := make(map[string]any, len(x.header)+1)
	if x.host != "" {
		table["host"] = x.host
		limit--
	}
	addLines(table, x.header, limit)
	return table
}

// addLines adds at most limit lines of the headers to OpenResty's table of them.
func addLines(table map[string]any, header http.Header, limit int) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		values := header[name]
		if len(values) == 0 || limit <= 0 {
			continue
		}
		values = values[:min(len(values), limit)]
		limit -= len(values)
		var value any = values[0]
		if len(values) > 1 {
			value = luaList(values)
		}
		table[strings.ToLower(name)] = value
	}
}

// luaList converts strings to a Lua list.
func luaList(values []string) []any {
	list := make([]any, len(values))
	for i, value := range values {
		list[i] = value
	}
	return list
}
