package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/router"
)

// serverName is Kong's name in the headers Server and Via.
const serverName = "kong/3.9.3"

// serve handles a request as Kong does: it denies bad requests, routes, runs the plugins by priority, and proxies.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	worker := int(g.counters.requests.Add(1)) % g.options.Workers
	config := g.config.Load()
	x, ok := g.exchange(r)
	answer := &answerWriter{ResponseWriter: w, x: x}
	if !ok {
		x.fail(http.StatusBadRequest, "")
		answer.exit()
		return
	}
	g.route(config, x)
	for _, plugin := range config.plugins {
		handler := plugin.mostSpecific(x)
		if x.exit != nil || handler == nil {
			continue
		}
		if err := handler.access(x, worker); err != nil {
			g.options.Log.Error("plugin failed", "plugin", plugin.info.Name, "error", err, "request_id", x.requestID)
			x.fail(http.StatusInternalServerError, "")
		}
	}
	if x.exit != nil {
		answer.exit()
		return
	}
	g.proxy(answer, r, config)
}

// exchange reads the facts from the HTTP request. net/http has removed the Host header and made the names canonical;
// the target is still as sent.
func (g *Gateway) exchange(r *http.Request) (x *exchange, ok bool) {
	x, ok = newExchange(g.node, Request{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, RemoteAddr: r.RemoteAddr, Header: r.Header,
	})
	var id [16]byte
	rand.Read(id[:]) // never fails
	x.requestID = hex.EncodeToString(id[:])
	x.protocol = r.Proto
	return x, ok
}

// route finds the route and the service. It ends the request when there is no route, or when the route does not take
// the request's protocol.
func (g *Gateway) route(config *compiledConfig, x *exchange) {
	x.match = config.router.Match(router.Request{Method: x.method, Path: x.path, Host: x.host})
	if x.match == nil {
		x.fail(http.StatusNotFound, "no Route matched with those values")
		return
	}
	x.route, x.service = x.match.Route, x.match.Route.Service
	switch {
	case x.route.SpeaksGRPC():
		x.denyOtherProtocols()
	case !x.route.Allows("http"):
		x.fail(httpsRedirectStatus, "Please use HTTPS protocol", "Connection", "Upgrade", "Upgrade", "TLS/1.2, HTTP/1.1")
	}
}

// answerWriter writes the response to the client. Headers that plugins set go into any answer: the upstream's, Kong's
// own, or a plugin's.
type answerWriter struct {
	http.ResponseWriter
	x       *exchange
	started bool
}

// Unwrap lets net/http flush and hijack the connection.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader completes the headers of a proxied answer.
func (a *answerWriter) WriteHeader(status int) {
	if status >= 200 && !a.started {
		a.started = true
		mergeHeaders(a.Header(), a.x.responseHeader)
		a.Header()["X-Kong-Request-Id"] = []string{a.x.requestID}
		a.count(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answerWriter) count(status int) {
	if status >= http.StatusInternalServerError {
		a.x.node.counters.serverErrors.Add(1)
	}
}

// exit writes x.exit: its status, body and headers, and no others but those that plugins set before and those that
// every answer has.
func (a *answerWriter) exit() {
	header, answer := a.Header(), a.x.exit
	header["Content-Type"] = nil // net/http would guess one
	header["Server"] = []string{serverName}
	header["X-Kong-Request-Id"] = []string{a.x.requestID}
	replaceHeaders(header, a.x.responseHeader)
	replaceHeaders(header, answer.Header)
	a.count(answer.Status)
	a.started = true
	a.ResponseWriter.WriteHeader(answer.Status)
	if _, err := a.Write(answer.Body); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		a.x.node.log.Debug("write response", "error", err, "request_id", a.x.requestID)
	}
}
