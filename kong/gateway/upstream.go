package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// newTransport makes the connections to a service, with its timeouts. Upstream
// certificates are not verified, which is Kong's default (tls_verify off).
func newTransport(s *Service) *http.Transport {
	dialer := &net.Dialer{Timeout: time.Duration(s.ConnectTimeout) * time.Millisecond}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!s.SpeaksGRPC())
	protocols.SetUnencryptedHTTP2(s.Protocol == "grpc")
	protocols.SetHTTP2(s.Protocol == "grpcs")
	return &http.Transport{
		Protocols:             protocols,
		DialContext:           dialer.DialContext,
		ResponseHeaderTimeout: time.Duration(s.ReadTimeout) * time.Millisecond,
		TLSClientConfig:       &tls.Config{InsecureSkipVerify: true},
		MaxIdleConnsPerHost:   512, // upstream_keepalive_pool_size
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true,
	}
}

// proxy sends the request to the service and its answer to the client.
func (g *Gateway) proxy(answer *answerWriter, r *http.Request, s *state) {
	x := answer.x
	if x.service == nil {
		x.fail(http.StatusServiceUnavailable, "name resolution failed")
		answer.exit()
		return
	}
	target := x.upstreamTarget()
	var transport http.RoundTripper = s.transports[x.service]
	if handler, within := g.options.Upstreams[target.host]; within {
		transport = handlerTransport{handler}
	}
	proxy := httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(p *httputil.ProxyRequest) { x.rewrite(p.Out, target) },
		ModifyResponse: func(response *http.Response) error {
			response.Header["Via"] = append(response.Header["Via"], "1.1 "+serverName)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { answer.upstreamFailed(err) },
		ErrorLog:     slog.NewLogLogger(g.options.Log.Handler(), slog.LevelDebug),
	}
	r.Body = x.body.reader()
	proxy.ServeHTTP(answer, r)
}

// upstreamTarget is where and as what the request goes on.
type upstreamTarget struct {
	scheme, host, address, hostHeader, path, query string
}

func (x *exchange) upstreamTarget() upstreamTarget {
	t := upstreamTarget{
		scheme: x.service.Protocol, host: x.service.Host, path: uri.Escape(x.match.UpstreamPath), query: x.query(),
	}
	port := x.service.Port
	if x.upstream.scheme != "" {
		t.scheme = x.upstream.scheme
	}
	if x.upstream.host != "" {
		t.host, port = x.upstream.host, x.upstream.port
	}
	if x.upstream.path != "" {
		t.path = x.upstream.path
	}
	t.address = net.JoinHostPort(t.host, strconv.Itoa(port))
	switch t.hostHeader = t.address; {
	case x.upstream.hostHeader != "":
		t.hostHeader = x.upstream.hostHeader
	case x.route.PreserveHost:
		t.hostHeader = x.host
	case t.scheme == "http" && port == 80, t.scheme == "https" && port == 443:
		t.hostHeader = t.host
	}
	return t
}

// rewrite makes the upstream's request of the client's: the headers as plugins
// left them, and Kong's X-Forwarded-*.
func (x *exchange) rewrite(out *http.Request, t upstreamTarget) {
	out.Method = x.method
	out.URL.Scheme, out.URL.Host, out.Host = strings.Replace(t.scheme, "grpc", "http", 1), t.address, t.hostHeader
	out.URL.Path, out.URL.RawPath, out.URL.Opaque = "", "", t.path
	if strings.HasPrefix(t.path, "//") { // Opaque would be taken for an authority
		out.URL.Opaque, out.URL.Path = "", t.path
	}
	out.URL.RawQuery = t.query
	out.URL.ForceQuery = t.query == "" && strings.HasSuffix(x.requestURI, "?")
	hopByHop := out.Header
	out.Header = x.header.Clone()
	for _, name := range strings.Split(strings.Join(x.header["Connection"], ","), ",") {
		out.Header.Del(strings.TrimSpace(name))
	}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy",
	} {
		delete(out.Header, name)
		if kept, ok := hopByHop[name]; ok { // an upgrade that ReverseProxy arranges
			out.Header[name] = kept
		}
	}
	if x.service.SpeaksGRPC() {
		out.Header.Set("Te", "trailers")
	}
	x.forwardHeaders(out.Header)
	if x.upstream.hasBody {
		out.Body = io.NopCloser(bytes.NewReader(x.upstream.body))
		out.ContentLength = int64(len(x.upstream.body))
	}
}

func (x *exchange) forwardHeaders(header http.Header) {
	chain := x.forwardedIP
	if earlier := x.header["X-Forwarded-For"]; len(earlier) > 0 {
		chain = strings.Join(earlier, ", ") + ", " + x.peerIP
	}
	prefix := x.match.Prefix
	if !x.route.StripPath || prefix == "/" {
		prefix = ""
	}
	for name, value := range map[string]string{
		"X-Forwarded-For": chain, "X-Forwarded-Proto": x.forwarded("X-Forwarded-Proto", "http"),
		"X-Forwarded-Host": x.forwardedHost(), "X-Forwarded-Port": strconv.Itoa(x.forwardedHostPort()),
		"X-Forwarded-Path": uri.Path(x.requestURI), "X-Forwarded-Prefix": prefix,
		"X-Real-Ip": x.forwardedIP, "X-Kong-Request-Id": x.requestID,
		"Via": strings.Join(append(x.header["Via"], "1.1 "+serverName), ", "),
	} {
		if value == "" {
			header.Del(name)
			continue
		}
		header[name] = []string{value}
	}
}

// upstreamFailed answers for an upstream that did not, with Kong's status.
func (a *answerWriter) upstreamFailed(err error) {
	if errors.Is(err, context.Canceled) {
		return // the client is gone
	}
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &dns):
		a.x.fail(http.StatusServiceUnavailable, "name resolution failed")
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		a.x.fail(http.StatusGatewayTimeout, "")
	default:
		a.x.fail(http.StatusBadGateway, "")
	}
	a.x.node.log.Error("upstream failed", "error", err, "request_id", a.x.requestID)
	a.exit()
}
