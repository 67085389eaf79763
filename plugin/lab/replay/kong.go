package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/textproto"
	"slices"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/jsonwalk"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// kongParser reads the entries that Kong's file-log and http-log plugins write: one JSON object in a line, or a list of
// them, as http-log sends batches.
type kongParser struct {
	names     *interner[string]
	consumers *interner[*identity.Consumer] // by their JSON
	routes    *interner[*Route]             // by the JSON of route and service
	headers   map[string]string             // those that are read, as HTTP spells them, by their names in logs
	joined    []byte
}

func newKongParser(headers []string) *kongParser {
	k := &kongParser{
		names: newNames(), consumers: newInterner(parseConsumer), routes: newInterner(parseRoute),
		headers: map[string]string{},
	}
	for _, name := range headers {
		k.headers[string(bytes.ToLower([]byte(name)))] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return k
}

// logsHeader implements parser. Kong redacts credentials.
func (k *kongParser) logsHeader(name string) bool {
	return name != "Authorization" && name != "Proxy-Authorization"
}

// parse implements parser.
func (k *kongParser) parse(line []byte, add func() *Request) error {
	if !json.Valid(line) {
		return errors.New("is not JSON")
	}
	c := jsonwalk.Cursor{Text: line}
	c.SkipSpace()
	switch line[c.At] {
	case '{':
		return k.entry(&c, add())
	case '[':
		var err error
		c.EachItem(func() {
			if line[c.At] != '{' {
				c.SkipValue()
				err = errNoEntry
				return
			}
			if problem := k.entry(&c, add()); problem != nil {
				err = problem
			}
		})
		return err
	}
	return errNoEntry
}

var errNoEntry = errors.New("is not an entry of Kong's log plugins, which is a JSON object")

// entry reads the entry that comes next.
func (k *kongParser) entry(c *jsonwalk.Cursor, r *Request) error {
	var (
		started, route, service []byte
		err                     error
	)
	c.EachMember(func(key []byte) {
		switch string(key) {
		case "started_at":
			started = value(c)
		case "client_ip":
			r.IP = k.text(c)
		case "consumer":
			if object := value(c); isObject(object) {
				r.Consumer = k.consumers.get(object)
			}
		case "authenticated_entity":
			k.object(c, func(key []byte) bool { return k.member(c, key, "id", &r.Credential) })
		case "route":
			route = value(c)
		case "service":
			service = value(c)
		case "request":
			k.object(c, func(key []byte) bool { return k.request(c, key, r) })
		case "response":
			k.object(c, func(key []byte) bool { return string(key) == "status" && readStatus(value(c), &r.Status) })
		default:
			c.SkipValue()
		}
	})
	if r.At, err = millis(started); err != nil {
		return err
	}
	if isObject(route) || isObject(service) {
		k.joined = append(append(append(k.joined[:0], route...), '\n'), service...)
		r.Route = k.routes.get(k.joined)
	}
	if r.Method == "" {
		return errors.New("request.method is missing")
	}
	return nil
}

// request reads a member of the object request, and reports whether it did.
func (k *kongParser) request(c *jsonwalk.Cursor, key []byte, r *Request) bool {
	switch string(key) {
	case "method":
		r.Method = k.text(c)
	case "uri":
		r.Target = copied(c)
	case "headers":
		k.object(c, func(key []byte) bool {
			name, wanted := k.headers[string(key)]
			if wanted {
				k.header(c, name, r)
			}
			return wanted
		})
	default:
		return false
	}
	return true
}

// header reads the lines of a header: a string, or a list of them.
func (k *kongParser) header(c *jsonwalk.Cursor, name string, r *Request) {
	if c.Text[c.At] != '[' {
		r.addHeader(name, k.text(c))
		return
	}
	c.EachItem(func() { r.addHeader(name, k.text(c)) })
}

// object calls read with each key of the object that comes next. It skips other values, and members for which read
// returns false.
func (k *kongParser) object(c *jsonwalk.Cursor, read func(key []byte) bool) {
	if c.Text[c.At] != '{' {
		c.SkipValue()
		return
	}
	c.EachMember(func(key []byte) {
		if !read(key) {
			c.SkipValue()
		}
	})
}

// member reads the member of a name, and reports whether the key is that name.
func (k *kongParser) member(c *jsonwalk.Cursor, key []byte, name string, to *string) bool {
	if string(key) != name {
		return false
	}
	*to = k.text(c)
	return true
}

// value returns the value that comes next, as it is written.
func value(c *jsonwalk.Cursor) []byte {
	from := c.At
	c.SkipValue()
	return c.Text[from:c.At]
}

func isObject(text []byte) bool { return len(text) > 0 && text[0] == '{' }

// text returns the string that comes next, and "" for another value.
func (k *kongParser) text(c *jsonwalk.Cursor) string { return k.names.get(stringBytes(c)) }

// copied returns the string that comes next. Such strings differ from request to request.
func copied(c *jsonwalk.Cursor) string { return string(stringBytes(c)) }

// stringBytes returns the bytes of the string that comes next.
func stringBytes(c *jsonwalk.Cursor) []byte {
	text := value(c)
	if len(text) < 2 || text[0] != '"' {
		return nil
	}
	return jsonwalk.Unescaped(text[1 : len(text)-1])
}

// readStatus reads an HTTP status.
func readStatus(text []byte, to *int) bool {
	if n, err := strconv.Atoi(string(text)); err == nil {
		*to = n
	}
	return true
}

// millis reads an instant in milliseconds since 1970.
func millis(text []byte) (limit.Micros, error) {
	if len(text) == 0 {
		return 0, errors.New("started_at is missing")
	}
	ms, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, fmt.Errorf("started_at: %.40q: must be a number of milliseconds since 1970", text)
	}
	return instant(math.Round(ms * 1000))
}

// The instants that a log may have: from 1980 to 2262. Others are mistakes, such as seconds in place of milliseconds.
const (
	earliest = 315532800e6
	latest   = 9214646400e6
)

// instant checks an instant in microseconds.
func instant(us float64) (limit.Micros, error) {
	if !(us >= earliest && us <= latest) { // NaN fails too
		return 0, errors.New("started_at: must be an instant from 1980 to 2261, in milliseconds since 1970")
	}
	return limit.Micros(us), nil
}

// parseConsumer returns a consumer from its JSON. What has another type counts as missing: Kong writes an empty list as
// {}.
func parseConsumer(text string) *identity.Consumer {
	var fields struct {
		ID       any `json:"id"`
		Username any `json:"username"`
		CustomID any `json:"custom_id"`
		Tags     any `json:"tags"`
	}
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil // unreachable: it was checked
	}
	c := &identity.Consumer{ID: asText(fields.ID), Username: asText(fields.Username), CustomID: asText(fields.CustomID)}
	tags, _ := fields.Tags.([]any)
	for _, tag := range tags {
		c.Tags = append(c.Tags, asText(tag))
	}
	return c
}

// parseRoute returns a route from its JSON and, in the next line, that of its service.
func parseRoute(text string) *Route {
	type entity struct {
		ID        any `json:"id"`
		Name      any `json:"name"`
		Protocols any `json:"protocols"`
	}
	var route, service entity
	at := bytes.IndexByte([]byte(text), '\n')
	for part, to := range map[string]*entity{text[:at]: &route, text[at+1:]: &service} {
		if err := json.Unmarshal([]byte(part), to); err != nil {
			*to = entity{} // it is missing, or no object
		}
	}
	protocols, _ := route.Protocols.([]any)
	return &Route{
		Name:    firstText(route.Name, route.ID),
		Service: firstText(service.Name, service.ID),
		GRPC:    slices.ContainsFunc(protocols, func(p any) bool { return p == "grpc" || p == "grpcs" }),
	}
}

func asText(value any) string {
	text, _ := value.(string)
	return text
}

// firstText returns the first of the values that is a text and not empty.
func firstText(values ...any) string {
	for _, value := range values {
		if text := asText(value); text != "" {
			return text
		}
	}
	return ""
}
