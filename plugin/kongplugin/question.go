package kongplugin

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
)

// question is one call into Kong's PDK, encoded once: the frame of the method's name and the frame of its arguments.
type question struct {
	fact   identity.Facts
	frames []byte
	decode func(answer []byte, known *names, req *identity.Request) error
}

func newQuestion(fact identity.Facts, method, argument string, decode func([]byte, *names, *identity.Request) error) question {
	frames := appendFrame(nil, []byte(method))
	return question{fact: fact, frames: appendFrame(frames, appendString(nil, 1, argument)), decode: decode}
}

// methodFrame is the frame of a method whose arguments differ from call to call.
func methodFrame(method string) []byte { return appendFrame(nil, []byte(method)) }

var (
	setHeadersMethod = methodFrame("kong.response.set_headers")
	exitMethod       = methodFrame("kong.response.exit")
)

// questions are those for the facts that are one question each, in the order in which they are asked. None of them
// can raise an error in Kong, which would end the request with a 500.
var questions = []question{
	newQuestion(identity.ConsumerFact, "kong.client.get_consumer", "", func(answer []byte, known *names, req *identity.Request) error {
		return decodeConsumer(answer, known, &req.Consumer)
	}),
	newQuestion(identity.CredentialFact, "kong.client.get_credential", "", func(answer []byte, known *names, req *identity.Request) (err error) {
		req.CredentialID, err = decodeString(answer, known) // the id is field 1, as a String's text is
		return err
	}),
	newQuestion(identity.IPFact, "kong.client.get_forwarded_ip", "", func(answer []byte, known *names, req *identity.Request) (err error) {
		req.IP, err = decodeString(answer, known)
		return err
	}),
	newQuestion(identity.TargetFact, "kong.nginx.get_var", "request", func(answer []byte, _ *names, req *identity.Request) error {
		line, err := decodeString(answer, nil) // there are too many
		req.Method, req.Path, req.HTTP2 = parseRequestLine(line)
		return err
	}),
	newQuestion(identity.RouteFact, "kong.router.get_route", "", func(answer []byte, known *names, req *identity.Request) (err error) {
		req.Route, req.GRPCRoute, err = decodeRoute(answer, known)
		return err
	}),
	newQuestion(identity.TokenFact, "kong.ctx.shared.get", "authenticated_jwt_token", func(answer []byte, _ *names, req *identity.Request) (err error) {
		req.Token, err = decodeStringValue(answer)
		return err
	}),
	newQuestion(identity.ContentTypeFact, "kong.request.get_header", "content-type", func(answer []byte, known *names, req *identity.Request) (err error) {
		req.ContentType, err = decodeString(answer, known)
		return err
	}),
	newQuestion(identity.RequestIDFact, "kong.nginx.get_var", "kong_request_id", func(answer []byte, _ *names, req *identity.Request) (err error) {
		req.ID, err = decodeString(answer, nil) // no two are alike
		return err
	}),
}

// headers are the questions for the headers that rules read. They are encoded when rules are seen for the first time:
// a path's rules change with its policies, but seldom.
type headers struct{ last atomic.Pointer[headersOf] }

type headersOf struct {
	rules     *identity.Rules
	questions []question
	empty     []string
}

// of are the questions that rules need.
func (h *headers) of(rules *identity.Rules) *headersOf {
	if last := h.last.Load(); last != nil && last.rules == rules {
		return last
	}
	made := &headersOf{rules, headerQuestions(rules.Headers), make([]string, len(rules.Headers))}
	h.last.Store(made)
	return made
}

// headerQuestions returns the questions for the headers that a config's rules read. They ask for nginx's variable of a
// header, in which all its lines are joined by ", ". kong.request.get_header costs the same and answers only one line:
// a client can hide the others from it. A value with a comma therefore may be several, and counts as none.
func headerQuestions(wanted []string) []question {
	list := make([]question, len(wanted))
	for i, name := range wanted {
		list[i] = newQuestion(identity.HeaderFacts, "kong.nginx.get_var", headerVariable(name), func(answer []byte, known *names, req *identity.Request) error {
			value, err := decodeString(answer, known)
			if strings.IndexByte(value, ',') >= 0 {
				value, req.Repeated = "", name
			}
			req.Headers[i] = value
			return err
		})
	}
	return list
}

// headerVariable returns the name of nginx's variable that holds a header.
func headerVariable(name string) string {
	return "http_" + strings.ReplaceAll(strings.ToLower(name), "-", "_")
}

// parseRequestLine reads method, normalised path and whether it is HTTP/2 from a request line as nginx keeps it
// ("GET /x?y HTTP/1.1").
func parseRequestLine(line string) (method, path string, http2 bool) {
	method, target, _ := strings.Cut(line, " ")
	if i := strings.LastIndexByte(target, ' '); i >= 0 {
		target, http2 = target[:i], target[i+1:] == "HTTP/2.0"
	}
	return method, identity.NormalizePath(target), http2
}

// Ask puts all questions for facts in one write and reads their answers in one go. It implements admit.Facts.
func (c *conn) Ask(_ context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&identity.RouteFact != 0 && c.instance.knowsRoute(req, c.began) {
		facts &^= identity.RouteFact
	}
	c.asked = c.asked[:0]
	for i := range questions {
		if facts&questions[i].fact != 0 {
			c.asked = append(c.asked, &questions[i])
		}
	}
	if facts&identity.HeaderFacts != 0 {
		headers := c.instance.headers.of(rules)
		req.Headers = append(req.Headers[:0], headers.empty...)
		for i := range headers.questions {
			c.asked = append(c.asked, &headers.questions[i])
		}
	}
	if len(c.asked) == 0 {
		return nil
	}
	for _, q := range c.asked {
		c.out = append(c.out, q.frames...)
	}
	c.due += len(c.asked)
	if err := c.flush(); err != nil {
		return err
	}
	c.server.counters.Questions.Add(uint64(len(c.asked)))
	var failed error
	for _, q := range c.asked {
		answer, err := c.answer()
		if err == nil {
			err = q.decode(answer, c.known, req)
		}
		switch {
		case c.lost != nil:
			return c.lost
		case isTimeout(err):
			return err // the answers still owed are read past before the next call
		case err != nil && failed == nil:
			failed = err
		}
	}
	if failed == nil && facts&identity.RouteFact != 0 {
		c.instance.learnRoute(req, c.began)
	}
	return failed
}
