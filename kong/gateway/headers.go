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
			value = luaNumber(v)
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

// luaNumber formats a number as Lua's tostring does (%.14g).
func luaNumber(v float64) string { return strconv.FormatFloat(v, 'g', 14, 64) }
