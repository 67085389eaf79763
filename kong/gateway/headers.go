package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Headers that plugins set are kept as they spelled the names, in an http.Header whose keys need not be canonical. Two
// names that differ in case only are one header.

// spelling returns the key of a header in h, and name if h has none.
func spelling(h http.Header, name string) string {
	for key := range h {
		if strings.EqualFold(key, name) {
			return key
		}
	}
	return name
}

// getHeader returns the first value of a header.
func getHeader(h http.Header, name string) (value string, given bool) {
	if values := h[spelling(h, name)]; len(values) > 0 {
		return values[0], true
	}
	return "", false
}

// setHeader replaces a header, its spelling included.
func setHeader(h http.Header, name string, values ...string) {
	delete(h, spelling(h, name))
	h[name] = values
}

// framing holds the headers that belong to net/http and to the upstream's answer: nginx ignores what a plugin set in
// access.
var framing = map[string]bool{
	"Content-Type": true, "Content-Length": true, "Connection": true, "Transfer-Encoding": true,
}

// mergeHeaders puts headers that plugins set before those of the same name that an upstream sent: the client gets both.
func mergeHeaders(response, set http.Header) {
	for name, values := range set {
		canonical := http.CanonicalHeaderKey(name)
		if framing[canonical] {
			continue
		}
		upstreams := response[canonical]
		delete(response, canonical)
		response[name] = slices.Concat(values, upstreams)
	}
}

// replaceHeaders sets the headers of an answer that Kong itself gives.
func replaceHeaders(response, set http.Header) {
	for name, values := range set {
		canonical := http.CanonicalHeaderKey(name)
		delete(response, canonical)
		if framing[canonical] || canonical == "Date" {
			name = canonical
		}
		response[name] = values
	}
}

// setHeaders sets headers given as Lua values: all of them, or none when a value is not valid.
func setHeaders(h http.Header, given map[string]any) error {
	checked := map[string][]string{}
	for name, value := range given {
		values, err := headerValues(name, value)
		if err != nil {
			return err
		}
		if lower := strings.ToLower(name); lower != "transfer-encoding" { // Kong logs a warning and drops it
			checked[name] = values
		}
	}
	for _, name := range slices.Sorted(maps.Keys(checked)) {
		setHeader(h, name, checked[name]...)
	}
	return nil
}

// headerValues converts a Lua value to header lines as Kong's PDK does: "" becomes a blank, numbers and booleans are
// spelled out, a list may hold strings only.
func headerValues(name string, value any) ([]string, error) {
	list, isList := value.([]any)
	if !isList {
		switch v := value.(type) {
		case float64:
			value = strconv.FormatFloat(v, 'g', 14, 64) // as Lua's tostring (%.14g)
		case bool:
			value = strconv.FormatBool(v)
		}
		list = []any{value}
	}
	values := make([]string, len(list))
	for i, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil, fmt.Errorf("invalid header value for %q: got %T", name, item)
		}
		values[i] = cmp.Or(text, " ")
	}
	return values, nil
}

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
	return firstLine(x.headerTable(), lower)
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
func (x *exchange) headerTable() map[string]any {
	table, limit := make(map[string]any, len(x.header)+1), maxTableHeaders
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
