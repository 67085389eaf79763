package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/router"
)

// serverName is what Kong calls itself in Server and Via.
const serverName = "kong/3.9.3"

// serve is Kong's way of a request: refuse what nginx refuses, route, run the
// plugins by priority, proxy.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	g.counters.requests.Add(1)
	s := g.state.Load()
	x, ok := g.exchange(r)
	answer := &answerWriter{ResponseWriter: w, x: x, counters: &g.counters}
	if !ok {
		x.fail(http.StatusBadRequest, "")
		answer.exit()
		return
	}
	defer func() {
		if err := x.body.discard(); err != nil {
			g.options.Log.Warn("discard request body", "error", err)
		}
	}()
	g.route(s, x)
	worker := int(g.requests.Add(1)-1) % g.options.Workers
	for _, kind := range s.kinds {
		if x.exit != nil {
			break
		}
		config := kind.lookup(x)
		if config == nil {
			continue
		}
		if err := config.access(x, worker); err != nil {
			g.options.Log.Error("plugin failed", "plugin", kind.name, "error", err, "request_id", x.requestID)
			x.exit = nil
			x.fail(http.StatusInternalServerError, "")
		}
	}
	if x.exit != nil {
		answer.exit()
		return
	}
	g.proxy(answer, r, s)
}

// exchange takes the facts from the HTTP request. net/http has removed the
// Host header and made the names canonical; the target is still as sent.
func (g *Gateway) exchange(r *http.Request) (x *exchange, ok bool) {
	request := Request{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, RemoteAddr: r.RemoteAddr, Header: r.Header.Clone(),
	}
	x, ok = newExchange(g.node, request, time.Now())
	var id [16]byte
	rand.Read(id[:]) // never fails
	x.requestID = hex.EncodeToString(id[:])
	x.protocol = r.Proto
	x.body = requestBody{source: r.Body, tempDir: g.node.tempDir}
	return x, ok
}

// route finds the route and service, and answers in their place when there is
// none.
func (g *Gateway) route(s *state, x *exchange) {
	x.match = s.router.Match(router.Request{Method: x.method, Path: x.path, Host: x.host, Header: x.header})
	if x.match == nil {
		x.fail(http.StatusNotFound, "no Route matched with those values")
		return
	}
	x.route, x.service = x.match.Route, x.match.Route.Service
	if x.route.SpeaksGRPC() {
		x.failGRPC()
		return
	}
	if x.route.Allows("http") || x.forwardedTLS() {
		return
	}
	if x.route.RedirectStatus != http.StatusUpgradeRequired {
		x.exit = &exitCall{status: x.route.RedirectStatus}
		x.exit.headers.set("Location", []string{"https://" + x.forwardedHost() + x.requestURI})
		return
	}
	x.fail(http.StatusUpgradeRequired, "Please use HTTPS protocol")
	x.exit.headers.set("Connection", []string{"Upgrade"})
	x.exit.headers.set("Upgrade", []string{"TLS/1.2, HTTP/1.1"})
}

// answerWriter writes the response to the client. Headers that plugins set go
// into whatever answer it is: the upstream's, Kong's own, or a plugin's.
type answerWriter struct {
	http.ResponseWriter
	x        *exchange
	counters *Counters
	started  bool
}

// Unwrap lets net/http flush and hijack the connection.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader completes the headers of a proxied answer.
func (a *answerWriter) WriteHeader(status int) {
	if status >= 200 && !a.started {
		a.started = true
		a.x.response.mergeInto(a.Header())
		a.Header()["X-Kong-Request-Id"] = []string{a.x.requestID}
		a.count(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answerWriter) count(status int) {
	if status >= http.StatusInternalServerError {
		a.counters.serverErrors.Add(1)
	}
}

// exit writes x.exit: its status, body and headers, and no others but those
// that plugins set before and those every answer has.
func (a *answerWriter) exit() {
	header, call := a.Header(), a.x.exit
	header["Content-Type"] = nil // or net/http would guess one
	header["Server"] = []string{serverName}
	header["X-Kong-Request-Id"] = []string{a.x.requestID}
	a.x.response.writeTo(header)
	call.headers.writeTo(header)
	a.count(call.status)
	a.started = true
	a.ResponseWriter.WriteHeader(call.status)
	if _, err := a.Write(call.body); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		a.x.node.log.Debug("write response", "error", err, "request_id", a.x.requestID)
	}
}
