package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"time"
)

// newTransport makes the connections to a service, with Kong's timeouts.
func newTransport(s *Service) *http.Transport {
	dialer := &net.Dialer{Timeout: serviceTimeout * time.Millisecond}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(s.Protocol == "http")
	protocols.SetUnencryptedHTTP2(s.Protocol == "grpc")
	return &http.Transport{
		Protocols:             protocols,
		DialContext:           dialer.DialContext,
		ResponseHeaderTimeout: time.Duration(s.ReadTimeout) * time.Millisecond,
		MaxIdleConnsPerHost:   512, // upstream_keepalive_pool_size
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true,
	}
}

// proxy sends the request to the service and its answer to the client.
func (g *Gateway) proxy(answer *answerWriter, r *http.Request) {
	x := answer.x
	if x.service == nil {
		x.fail(http.StatusServiceUnavailable, "name resolution failed")
		answer.exit()
		return
	}
	var transport http.RoundTripper = x.config.transports[x.service]
	if handler, within := g.options.Upstreams[x.service.Host]; within {
		transport = handlerTransport{handler}
	}
	answer.proxied = time.Now()
	proxy := httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(p *httputil.ProxyRequest) { x.rewrite(p.Out) },
		ModifyResponse: func(response *http.Response) error {
			answer.answered = time.Now()
			response.Header["Via"] = append(response.Header["Via"], "1.1 "+serverName)
			if response.Header["Server"] == nil {
				response.Header["Server"] = []string{serverName}
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { answer.upstreamFailed(err) },
		ErrorLog:     slog.NewLogLogger(g.options.Log.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(answer, r)
}

// rewrite turns the client's request into the upstream's: the service's address and path, and Kong's X-Forwarded-*.
func (x *exchange) rewrite(out *http.Request) {
	s, path := x.service, x.upstreamPath
	out.URL.Scheme = "http"
	out.URL.Host = net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
	out.Host = strings.TrimSuffix(out.URL.Host, ":80")
	out.URL.Path, out.URL.RawPath, out.URL.Opaque = "", "", path
	if strings.HasPrefix(path, "//") { // net/http would read Opaque as an authority
		out.URL.Opaque, out.URL.Path = "", path
	}
	out.URL.RawQuery = x.query
	out.URL.ForceQuery = x.query == "" && strings.HasSuffix(x.requestURI, "?")
	if s.Protocol == "grpc" {
		out.Header.Set("Te", "trailers")
	}
	out.Header.Del("Proxy")
	chain := x.forwardedIP
	if earlier := x.header["X-Forwarded-For"]; len(earlier) > 0 {
		chain = strings.Join(earlier, ", ") + ", " + x.peerIP
	}
	replaceRequestHeaders(out.Header, map[string]string{
		"X-Forwarded-For": chain, "X-Forwarded-Proto": "http",
		"X-Forwarded-Host": x.hostName(), "X-Forwarded-Port": x.node.port,
		"X-Real-Ip": x.forwardedIP, "X-Kong-Request-Id": x.requestID,
		"Via": strings.Join(append(x.header["Via"], "1.1 "+serverName), ", "),
	})
}

// statusClientClosed is nginx's status for a request whose client has gone.
const statusClientClosed = 499

// upstreamFailed answers with Kong's status for an error of the upstream.
func (a *answerWriter) upstreamFailed(err error) {
	if errors.Is(err, context.Canceled) {
		a.status = statusClientClosed
		return
	}
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &dns):
		a.proxied = time.Time{} // Kong resolves the name before
		a.x.fail(http.StatusServiceUnavailable, "name resolution failed")
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		a.source = sourceError
		a.x.fail(http.StatusGatewayTimeout, "")
	default:
		a.source = sourceError
		a.x.fail(http.StatusBadGateway, "")
	}
	a.x.node.log.Error("upstream failed", "error", err, "request_id", a.x.requestID)
	a.exit()
}
