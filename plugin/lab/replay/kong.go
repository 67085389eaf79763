package replay

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/textproto"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// kongParser reads the entries that Kong's file-log and http-log plugins write: one JSON object in a line, or a list of
// them, as http-log sends batches. It has the headers that are read, as HTTP spells them, by their names in logs.
type kongParser map[string]string

func newKongParser(headers []string) kongParser {
	k := kongParser{}
	for _, name := range headers {
		k[strings.ToLower(name)] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return k
}

// logsHeader implements parser. Kong redacts credentials.
func (k kongParser) logsHeader(name string) bool {
	return name != "Authorization" && name != "Proxy-Authorization"
}

// kongEntry is an entry of a log. A value of another type counts as missing: Kong writes an empty list as {}.
type kongEntry struct {
	StartedAt json.RawMessage `json:"started_at"`
	ClientIP  string          `json:"client_ip"`
	Consumer  *struct {
		ID, Username string
		CustomID     string `json:"custom_id"`
		Tags         []string
	} `json:"consumer"`
	Credential struct{ ID string } `json:"authenticated_entity"`
	Route      *struct {
		ID, Name  string
		Protocols []string
	} `json:"route"`
	Service  *struct{ ID, Name string } `json:"service"`
	Response struct{ Status int }       `json:"response"`
	Request  struct {
		Method, URI string
		Headers     map[string]any // to a string, or a list of them
	} `json:"request"`
}

var errNoEntry = errors.New("is not an entry of Kong's log plugins, which is a JSON object")

func (k kongParser) parse(line []byte) (all []*Request, err error) {
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
		return nil, errors.New("is not JSON")
	case errors.As(err, &another) && another.Field == "":
		return nil, errNoEntry
	}
	for i := range entries {
		r, err := k.request(&entries[i])
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (k kongParser) request(e *kongEntry) (*Request, error) {
	at, err := parseInstant(string(e.StartedAt))
	if err != nil {
		return nil, err
	}
	if e.Request.Method == "" {
		return nil, errors.New("request.method is missing")
	}
	r := &Request{
		At: at, IP: interned(e.ClientIP), Credential: interned(e.Credential.ID), Status: e.Response.Status,
		Method: interned(e.Request.Method), Target: e.Request.URI,
	}
	if c := e.Consumer; c != nil {
		r.Consumer = &identity.Consumer{
			ID: interned(c.ID), Username: interned(c.Username), CustomID: interned(c.CustomID),
		}
		for _, tag := range c.Tags {
			r.Consumer.Tags = append(r.Consumer.Tags, interned(tag))
		}
	}
	if e.Route != nil || e.Service != nil {
		r.Route = new(Route)
	}
	if route := e.Route; route != nil {
		r.Route.Name = interned(cmp.Or(route.Name, route.ID))
		r.Route.GRPC = slices.Contains(route.Protocols, "grpc") || slices.Contains(route.Protocols, "grpcs")
	}
	if e.Service != nil {
		r.Route.Service = interned(cmp.Or(e.Service.Name, e.Service.ID))
	}
	for logged, name := range k {
		switch value := e.Request.Headers[logged].(type) {
		case string:
			r.addHeader(name, interned(value))
		case []any:
			for _, line := range value {
				text, _ := line.(string)
				r.addHeader(name, interned(text))
			}
		}
	}
	return r, nil
}
