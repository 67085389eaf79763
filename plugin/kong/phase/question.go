package phase

import (
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
)

// decoder sets a field of a request from the answer to a question.
type decoder func(answer []byte, interner *wire.Interner, req *identity.Request) error

// question is a question to Kong for one fact.
type question struct {
	fact   identity.Facts
	ask    wire.Question
	decode decoder
}

// questions are the questions for the facts that take a fixed number of them, in the order in which they are sent. None
// of these methods can raise an error in Kong, which would end the request with a 500.
var questions = []question{
	{identity.ConsumerFact, wire.NewQuestion("kong.client.get_consumer", ""), decodeConsumer},
	{identity.CredentialFact, wire.NewQuestion("kong.client.get_credential", ""), decodeCredential},
	{identity.IPFact, wire.NewQuestion("kong.client.get_forwarded_ip", ""), decodeIP},
	{identity.TargetFact, wire.NewQuestion("kong.nginx.get_var", "request"), decodeRequestLine},
	{identity.RouteFact, wire.NewQuestion("kong.router.get_route", ""), decodeRoute},
	{identity.TokenFact, wire.NewQuestion("kong.ctx.shared.get", "authenticated_jwt_token"), decodeToken},
	{identity.ContentTypeFact, wire.NewQuestion("kong.request.get_header", "content-type"), decodeContentType},
	{identity.PreflightFacts, wire.NewQuestion("kong.nginx.get_var", "http_origin"), decodeOrigin},
	{
		identity.PreflightFacts, wire.NewQuestion("kong.nginx.get_var", "http_access_control_request_method"),
		decodeRequestedMethod,
	},
	{identity.RequestIDFact, wire.NewQuestion("kong.nginx.get_var", "kong_request_id"), decodeRequestID},
}

func decodeConsumer(answer []byte, interner *wire.Interner, req *identity.Request) error {
	return wire.DecodeConsumer(answer, interner, (*wire.Consumer)(&req.Consumer))
}

// decodeInto returns the decoder of a text that many requests have.
func decodeInto(field func(*identity.Request) *string) decoder {
	return func(answer []byte, interner *wire.Interner, req *identity.Request) (err error) {
		*field(req), err = wire.DecodeString(answer, interner)
		return err
	}
}

var (
	decodeCredential  = decodeInto(func(r *identity.Request) *string { return &r.CredentialID })
	decodeIP          = decodeInto(func(r *identity.Request) *string { return &r.IP })
	decodeContentType = decodeInto(func(r *identity.Request) *string { return &r.ContentType })
	// decodeOrigin sets all lines of the header, joined by commas, which no origin has.
	decodeOrigin          = decodeInto(func(r *identity.Request) *string { return &r.Origin })
	decodeRequestedMethod = decodeInto(func(r *identity.Request) *string { return &r.RequestedMethod })
)

// decodeRequestLine reads a request line as nginx keeps it ("GET /x?y HTTP/1.1"). It does not intern: too many differ.
func decodeRequestLine(answer []byte, _ *wire.Interner, req *identity.Request) error {
	line, err := wire.DecodeString(answer, nil)
	req.Method, req.Target, _ = strings.Cut(line, " ")
	if i := strings.LastIndexByte(req.Target, ' '); i >= 0 {
		req.Target, req.HTTP2 = req.Target[:i], req.Target[i+1:] == "HTTP/2.0"
	}
	req.Path = identity.NormalizePath(req.Target)
	return err
}

// decodeRoute sets the route to its name, or to its id if it has none.
func decodeRoute(answer []byte, interner *wire.Interner, req *identity.Request) error {
	r, err := wire.DecodeRoute(answer, interner)
	if r.Name == "" {
		r.Name = r.ID
	}
	req.Route, req.GRPCRoute = r.Name, r.GRPC
	return err
}

func decodeToken(answer []byte, _ *wire.Interner, req *identity.Request) (err error) {
	req.Token, err = wire.DecodeStringValue(answer)
	return err
}

// decodeRequestID does not intern: every request has another id.
func decodeRequestID(answer []byte, _ *wire.Interner, req *identity.Request) (err error) {
	req.ID, err = wire.DecodeString(answer, nil)
	return err
}

// headerCache holds the questions for the headers that the rules of a decider read, and for the rules before:
// while a candidate is open, requests are identified by two. The rules change with the decider's policies, which is
// rare.
type headerCache struct {
	last, before atomic.Pointer[headerQuestions]
}

// headerQuestions are the questions for the headers that rules read.
type headerQuestions struct {
	rules     *identity.Rules
	questions []question
	empty     []string // one for each header
}

func (c *headerCache) questionsFor(rules *identity.Rules) *headerQuestions {
	last := c.last.Load()
	if last != nil && last.rules == rules {
		return last
	}
	if before := c.before.Load(); before != nil && before.rules == rules {
		return before
	}
	h := &headerQuestions{rules, newHeaderQuestions(rules.Headers), make([]string, len(rules.Headers))}
	c.before.Store(last)
	c.last.Store(h)
	return h
}

// newHeaderQuestions returns the questions for headers. They read nginx's variable of a header, which joins all its
// lines with ", ". kong.request.get_header costs the same and returns only one line, so that a client could hide the
// others. A value with a comma may therefore be several values, and counts as none. A name of kong.ctx.shared has the
// text that another plugin has put there.
func newHeaderQuestions(names []string) []question {
	list := make([]question, len(names))
	for i, name := range names {
		decode := func(answer []byte, interner *wire.Interner, req *identity.Request) error {
			value, err := wire.DecodeString(answer, interner)
			if strings.IndexByte(value, ',') >= 0 {
				value, req.Repeated = "", name
			}
			req.Headers[i] = value
			return err
		}
		if key, isShared := strings.CutPrefix(name, identity.SharedPrefix); isShared {
			list[i] = question{identity.HeaderFacts, wire.NewQuestion("kong.ctx.shared.get", key), func(
				answer []byte, _ *wire.Interner, req *identity.Request,
			) (err error) {
				req.Headers[i], err = wire.DecodeStringValue(answer)
				return err
			}}
			continue
		}
		variable := "http_" + strings.ReplaceAll(strings.ToLower(name), "-", "_")
		list[i] = question{identity.HeaderFacts, wire.NewQuestion("kong.nginx.get_var", variable), decode}
	}
	return list
}
