package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// serverName is Kong's name in the headers Server and Via.
const serverName = "kong/3.9.3"

// serve handles a request as Kong does: it denies bad requests, routes, runs the plugins by priority, proxies, and runs
// the log phase.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	worker := int(g.counters.requests.Add(1)) % g.options.Workers
	x, ok := g.exchange(r)
	answer := &answerWriter{ResponseWriter: w, x: x}
	if ok {
		x.findRoute()
	} else {
		x.fail(http.StatusBadRequest, "")
		answer.source = sourceError
	}
	if logs := g.access(x, worker); len(logs) > 0 {
		answer.keep(r)
		defer g.startLogs(answer, logs, worker) // the proxy panics when the client has gone
	}
	if x.exit != nil {
		answer.exit()
	} else {
		g.proxy(answer, r)
	}
	if answer.started {
		x.filterBody(nil, true)
	}
}

// access runs the plugins in their order until one ends the request, and returns those that run in the log phase. Only
// the global ones do so for a request that ended before them.
func (g *Gateway) access(x *exchange, worker int) (logs []*externalPlugin) {
	routed := x.exit == nil
	for _, plugin := range x.config.plugins {
		handler := plugin.configs[scope{}]
		if routed {
			handler = plugin.mostSpecific(x)
		}
		if handler == nil {
			continue
		}
		switch handler := handler.(type) {
		case *externalPlugin:
			if slices.Contains(plugin.info.Phases, logPhase) {
				logs = append(logs, handler)
			}
		case *innerPlugin:
			x.callOf(handler) // filters the body even if the request ends before its access phase
		}
		if x.exit != nil {
			continue
		}
		if err := handler.access(x, worker); err != nil {
			g.options.Log.Error("plugin failed", "plugin", plugin.info.Name, "error", err, "request_id", x.requestID)
			x.fail(http.StatusInternalServerError, "")
		}
	}
	return logs
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
	x.config, x.protocol, x.size = g.config.Load(), r.Proto, x.requestSize()
	return x, ok
}

// findRoute finds the route and the service. It ends the request when there is no route, or when the route is for gRPC
// and the request is not.
func (x *exchange) findRoute() {
	m := find(x.config.router, x.hostName(), x.method, x.path)
	if m == nil {
		x.fail(http.StatusNotFound, "no Route matched with those values")
		return
	}
	x.route, x.service, x.upstreamPath = m.Route, m.Service, uri.Escape(m.upstreamPath(x.path))
	if x.route.speaksGRPC() {
		x.denyOtherProtocols()
	}
}

const (
	grpcType = "application/grpc"
	http2    = "HTTP/2.0"
)

// denyOtherProtocols answers a request on a gRPC route that Kong does not take for a gRPC call.
func (x *exchange) denyOtherProtocols() {
	switch {
	case !strings.HasPrefix(x.header.Get("Content-Type"), grpcType):
		x.fail(http.StatusUnsupportedMediaType, "Non-gRPC request matched gRPC route")
	case x.protocol != http2:
		x.fail(http.StatusUpgradeRequired, "Please use HTTP2 protocol", "Connection", "Upgrade", "Upgrade", "HTTP/2")
	}
}
