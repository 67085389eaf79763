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

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
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

// parse implements parser.
func (k kongParser) parse(line []byte, add func() *Request) error {
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
func (k kongParser) fill(e *kongEntry, r *Request) (err error) {
	if r.At, err = millis(e.StartedAt); err != nil {
		return err
	}
	r.IP, r.Credential, r.Status = interned(e.ClientIP), interned(e.Credential.ID), e.Response.Status
	r.Method, r.Target = interned(e.Request.Method), e.Request.URI
	if r.Method == "" {
		return errors.New("request.method is missing")
	}
	if c := e.Consumer; c != nil {
		r.Consumer, r.consumer.ID, r.consumer.Username = &r.consumer, interned(c.ID), interned(c.Username)
		r.consumer.CustomID = interned(c.CustomID)
		for _, tag := range c.Tags {
			r.consumer.Tags = append(r.consumer.Tags, interned(tag))
		}
	}
	if route := e.Route; route != nil {
		r.Route, r.route.Name = &r.route, interned(cmp.Or(route.Name, route.ID))
		r.route.GRPC = slices.Contains(route.Protocols, "grpc") || slices.Contains(route.Protocols, "grpcs")
	}
	if e.Service != nil {
		r.Route, r.route.Service = &r.route, interned(cmp.Or(e.Service.Name, e.Service.ID))
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
	return nil
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
	return instant(ms * 1000)
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
	return limit.Micros(math.Round(us)), nil
}
