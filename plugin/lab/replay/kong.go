package replay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

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
		k.headers[strings.ToLower(name)] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return k
}

// logsHeader implements parser. Kong redacts credentials.
func (k *kongParser) logsHeader(name string) bool {
	return name != "Authorization" && name != "Proxy-Authorization"
}

// kongEntry is an entry of a log. A value of another type counts as missing.
type kongEntry struct {
	StartedAt  json.RawMessage      `json:"started_at"`
	ClientIP   string               `json:"client_ip"`
	Consumer   json.RawMessage      `json:"consumer"`
	Credential struct{ ID string }  `json:"authenticated_entity"`
	Route      json.RawMessage      `json:"route"`
	Service    json.RawMessage      `json:"service"`
	Response   struct{ Status int } `json:"response"`
	Request    struct {
		Method, URI string
		Headers     map[string]any // to a string, or a list of them
	} `json:"request"`
}

var errNoEntry = errors.New("is not an entry of Kong's log plugins, which is a JSON object")

// parse implements parser.
func (k *kongParser) parse(line []byte, add func() *Request) error {
	var (
		entries     = make([]kongEntry, 1)
		into    any = &entries[0]
		syntax  *json.SyntaxError
		another *json.UnmarshalTypeError
	)
	if line[0] == '[' {
		into = &entries
	}
	switch err := json.Unmarshal(line, into); {
	case errors.As(err, &syntax):
		return errors.New("is not JSON")
	case errors.As(err, &another) && another.Field == "":
		return errNoEntry
	}
	for i := range entries {
		if err := k.fill(&entries[i], add()); err != nil {
			return err
		}
	}
	return nil
}

// fill sets a request to what an entry says.
func (k *kongParser) fill(e *kongEntry, r *Request) (err error) {
	if r.At, err = millis(e.StartedAt); err != nil {
		return err
	}
	r.IP, r.Credential, r.Status = k.name(e.ClientIP), k.name(e.Credential.ID), e.Response.Status
	r.Method, r.Target = k.name(e.Request.Method), e.Request.URI
	if r.Method == "" {
		return errors.New("request.method is missing")
	}
	if isObject(e.Consumer) {
		r.Consumer = k.consumers.get(e.Consumer)
	}
	if isObject(e.Route) || isObject(e.Service) {
		k.joined = append(append(append(k.joined[:0], e.Route...), '\n'), e.Service...)
		r.Route = k.routes.get(k.joined)
	}
	for logged, name := range k.headers {
		switch value := e.Request.Headers[logged].(type) {
		case string:
			r.addHeader(name, k.name(value))
		case []any:
			for _, line := range value {
				text, _ := line.(string)
				r.addHeader(name, k.name(text))
			}
		}
	}
	return nil
}

func (k *kongParser) name(text string) string { return k.names.get([]byte(text)) }

func isObject(text []byte) bool { return len(text) > 0 && text[0] == '{' }

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
	var c struct {
		ID, Username string
		CustomID     string `json:"custom_id"`
		Tags         []string
	}
	_ = json.Unmarshal([]byte(text), &c) // it is JSON
	return &identity.Consumer{ID: c.ID, Username: c.Username, CustomID: c.CustomID, Tags: c.Tags}
}

// parseRoute returns a route from its JSON and, in the next line, the JSON of its service.
func parseRoute(text string) *Route {
	var route, service struct {
		ID, Name  string
		Protocols []string
	}
	routeText, serviceText, _ := strings.Cut(text, "\n")
	_ = json.Unmarshal([]byte(routeText), &route) // it is JSON, or missing
	_ = json.Unmarshal([]byte(serviceText), &service)
	return &Route{
		Name: cmp.Or(route.Name, route.ID), Service: cmp.Or(service.Name, service.ID),
		GRPC: slices.Contains(route.Protocols, "grpc") || slices.Contains(route.Protocols, "grpcs"),
	}
}
