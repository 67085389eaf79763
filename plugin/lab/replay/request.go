package replay

import (
	"context"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"unique"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Request is one request of a log. It implements admit.FactSource.
type Request struct {
	At   limit.Micros // when it started
	Log  *Log         // that has it
	Line int64        // in the log, counted from 1

	Consumer   *identity.Consumer // nil: none
	Caller     *identity.Caller   // of a log that states tenants itself; nil: none
	Route      *Route             // nil: unknown, or the request matched none
	Credential string
	IP         string
	Method     string
	Target     string // as the client wrote it, with its query
	Status     int    // of the response; 0: unknown

	headers []header
}

// Route is the route that a gateway chose for a request.
type Route struct {
	Name    string // or its id, if it has no name
	Service string // the name of its service, or its id
	GRPC    bool   // it has a gRPC protocol
}

// header is a header of a request, with its name as HTTP spells it. Several lines of one header are several.
type header struct{ name, value string }

func (r *Request) where() string { return fmt.Sprintf("%s:%d", r.Log.Name, r.Line) }

func (r *Request) addHeader(name, value string) { r.headers = append(r.headers, header{name, value}) }

func (r *Request) headerLines(name string) (lines []string) {
	for _, h := range r.headers {
		if h.name == name {
			lines = append(lines, h.value)
		}
	}
	return lines
}

// headerValue returns the lines of a header, joined by commas as Kong shows them to the plugin.
func (r *Request) headerValue(name string) string { return strings.Join(r.headerLines(name), ", ") }

// loggedHeader returns the lines of a header, and whether the log has those of each request.
func (r *Request) loggedHeader(name string) (lines []string, logged bool) {
	name = textproto.CanonicalMIMEHeaderKey(name)
	return r.headerLines(name), r.Log.parser.logsHeader(name)
}

// Read implements admit.FactSource. It never fails. Facts that the log lacks are empty.
func (r *Request) Read(_ context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&identity.ConsumerFact != 0 && r.Consumer != nil {
		req.Consumer.Tags = append(req.Consumer.Tags, r.Consumer.Tags...)
		req.Consumer.ID, req.Consumer.Username = r.Consumer.ID, r.Consumer.Username
		req.Consumer.CustomID = r.Consumer.CustomID
	}
	if facts&identity.CallerFacts != 0 && r.Caller != nil {
		req.Caller = *r.Caller
	}
	if facts&identity.CredentialFact != 0 {
		req.CredentialID = r.Credential
	}
	if facts&identity.IPFact != 0 {
		req.IP = r.IP
	}
	if facts&identity.TargetFact != 0 {
		req.Method, req.Path = r.Method, identity.NormalizePath(r.Target)
	}
	if facts&identity.RouteFact != 0 && r.Route != nil {
		req.Route, req.GRPCRoute = r.Route.Name, r.Route.GRPC
	}
	if facts&identity.HeaderFacts != 0 && rules != nil {
		r.readHeaders(rules, req)
	}
	if facts&identity.PreflightFacts != 0 {
		req.Origin, req.RequestedMethod = r.headerValue(originHeader), r.headerValue(preflightHeader)
	}
	return nil
}

const (
	originHeader    = "Origin"
	preflightHeader = "Access-Control-Request-Method"
	hostHeader      = "Host"
)

// readHeaders sets the headers that rules read. As in Kong, a value with a comma may be several values, and counts as
// none.
func (r *Request) readHeaders(rules *identity.Rules, req *identity.Request) {
	req.Headers = slices.Grow(req.Headers[:0], len(rules.Headers))[:len(rules.Headers)]
	for i, name := range rules.Headers {
		value := r.headerValue(name)
		if strings.IndexByte(value, ',') >= 0 {
			value, req.Repeated = "", name
		}
		req.Headers[i] = value
	}
}

// interned returns one copy of texts that come again and again, so that requests that wait share them.
func interned(text string) string { return unique.Make(text).Value() }
