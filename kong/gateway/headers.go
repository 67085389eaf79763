package gateway

import (
	"net/http"
	"strconv"
	"strings"
)

// headerLines are response headers in the order and the spelling a plugin gave
// them. Names are compared without regard to case.
type headerLines []headerLine

type headerLine struct {
	name   string
	values []string
}

func (h headerLines) index(name string) int {
	for i := range h {
		if strings.EqualFold(h[i].name, name) {
			return i
		}
	}
	return -1
}

// get is the first value of a header.
func (h headerLines) get(name string) (value string, given bool) {
	if i := h.index(name); i >= 0 && len(h[i].values) > 0 {
		return h[i].values[0], true
	}
	return "", false
}

func (h *headerLines) set(name string, values []string) {
	if i := h.index(name); i >= 0 {
		(*h)[i] = headerLine{name, values}
		return
	}
	*h = append(*h, headerLine{name, values})
}

func (h *headerLines) add(name string, values []string) {
	if i := h.index(name); i >= 0 {
		(*h)[i].values = append((*h)[i].values[:len((*h)[i].values):len((*h)[i].values)], values...)
		return
	}
	*h = append(*h, headerLine{name, values})
}

func (h *headerLines) clear(name string) {
	if i := h.index(name); i >= 0 {
		*h = append((*h)[:i:i], (*h)[i+1:]...)
	}
}

// header gives the lines as a map whose keys keep their spelling.
func (h headerLines) header() http.Header {
	out := make(http.Header, len(h))
	for _, line := range h {
		out[line.name] = line.values
	}
	return out
}

// framing are the headers that belong to net/http and to the upstream's
// answer: nginx ignores what a plugin set in access.
var framing = map[string]bool{"Content-Type": true, "Content-Length": true, "Connection": true, "Transfer-Encoding": true}

// mergeInto puts the lines before lines of the same name that an upstream
// sent: the client gets both, ours first.
func (h headerLines) mergeInto(response http.Header) {
	for _, line := range h {
		canonical := http.CanonicalHeaderKey(line.name)
		if framing[canonical] {
			continue
		}
		theirs := response[canonical]
		delete(response, canonical)
		response[line.name] = append(line.values[:len(line.values):len(line.values)], theirs...)
	}
}

// writeTo sets the lines of an answer that Kong itself gives.
func (h headerLines) writeTo(response http.Header) {
	for _, line := range h {
		canonical := http.CanonicalHeaderKey(line.name)
		delete(response, canonical)
		if framing[canonical] || canonical == "Date" {
			response[canonical] = line.values
			continue
		}
		response[line.name] = line.values
	}
}

// headerValues turns a Lua value into header lines, as Kong's PDK does: "" is
// a blank, numbers and booleans are spelled out, anything else raises.
func headerValues(name string, value any) ([]string, error) {
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	values := make([]string, 0, len(list))
	for _, item := range list {
		switch v := item.(type) {
		case string:
			if v == "" {
				v = " "
			}
			values = append(values, v)
			continue
		case float64:
			if !isList {
				values = append(values, luaNumber(v))
				continue
			}
		case bool:
			if !isList {
				values = append(values, strconv.FormatBool(v))
				continue
			}
		}
		return nil, raise("invalid header value for %q: got %T", name, item)
	}
	return values, nil
}

// luaNumber is Lua's tostring of a number (%.14g).
func luaNumber(v float64) string {
	return strconv.FormatFloat(v, 'g', 14, 64)
}
