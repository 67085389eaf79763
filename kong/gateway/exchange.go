package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/router"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// Request is what a plugin can ask Kong about: the facts of one request. The
// zero value is a GET of "/" by nobody, without a route.
type Request struct {
	// Method is "GET" when empty.
	Method string
	// Target is the request target as sent, "/" when empty.
	Target string
	// Host is the Host header.
	Host string
	// RemoteAddr is the peer's "ip:port".
	RemoteAddr string
	// Header holds canonical names, without Host. The exchange may change it.
	Header   http.Header
	Route    *Route
	Service  *Service
	Consumer *Consumer
	// CredentialID is the id of the credential the consumer used, "" for none.
	CredentialID string
	// Shared is kong.ctx.shared: nil, bool, float64, string, []any,
	// map[string]any. The exchange may change it.
	Shared map[string]any
}

// Exit is an answer given in place of the upstream's. Names in Header are
// spelled as the plugin spelled them.
type Exit struct {
	Status int
	Body   []byte
	Header http.Header
}

// Outcome is what a plugin made of an event: Exit is nil when the request goes
// on. Header are the response headers it set, spelled as it spelled them.
// Serialized is what it added to the entries of log plugins.
type Outcome struct {
	Exit       *Exit
	Header     http.Header
	Serialized map[string]any
}

// node is what the PDK says about the gateway rather than about a request.
type node struct {
	id       string
	port     int
	realIP   *realIP
	log      *slog.Logger
	state    func() *state
	tempDir  string
	counters *Counters
}

// exchange is one request in Kong's access phase: what plugins ask about, and
// what they change.
type exchange struct {
	node       *node
	started    time.Time
	requestID  string
	method     string
	target     string // as sent
	requestURI string
	path       string // normalised
	host       string // the Host header, or the authority of an absolute form
	protocol   string
	header     http.Header

	peerIP, peerPort           string
	forwardedIP, forwardedPort string

	match        *router.Match
	route        *Route
	service      *Service
	consumer     *Consumer
	credentialID string

	shared map[string]any
	// serialized is what plugins add to the entries of Kong's log plugins.
	serialized map[string]any
	ctx        map[string]any

	responseStatus int
	response       headerLines
	exit           *exitCall
	upstream       upstreamRequest
	body           requestBody
}

// exitCall is the argument of kong.response.exit.
type exitCall struct {
	status  int
	body    []byte
	headers headerLines
}

// upstreamRequest is what plugins made of the request to the service.
type upstreamRequest struct {
	scheme, host, path string
	hostHeader         string
	port               int
	query              *string
	body               []byte
	hasBody            bool
}

// errRaised is a Lua error in a PDK call: it ends in a 500 that the plugin
// cannot stop.
type errRaised struct{ message string }

func (e errRaised) Error() string { return e.message }

func raise(format string, args ...any) error {
	return errRaised{fmt.Sprintf(format, args...)}
}

// newExchange reads the target; ok is false where nginx answers 400.
func newExchange(n *node, request Request, started time.Time) (x *exchange, ok bool) {
	x = &exchange{
		node: n, started: started, method: request.Method, target: request.Target, host: request.Host,
		protocol: "HTTP/1.1", header: request.Header, route: request.Route, service: request.Service,
		consumer: request.Consumer, credentialID: request.CredentialID, shared: request.Shared,
	}
	if x.method == "" {
		x.method = http.MethodGet
	}
	if x.target == "" {
		x.target = "/"
	}
	if x.requestURI, ok = uri.Target(x.target); !ok {
		return x, false
	}
	x.path = uri.Normalize(uri.Path(x.requestURI))
	if x.header == nil {
		x.header = http.Header{}
	}
	x.peerIP, x.peerPort, ok = splitAddr(request.RemoteAddr)
	if !ok {
		x.peerIP, x.peerPort = request.RemoteAddr, "0"
	}
	x.forwardedIP, x.forwardedPort = n.realIP.of(x.peerIP, x.peerPort, x.header)
	return x, true
}

func splitAddr(addr string) (ip, port string, ok bool) {
	ip, port, err := net.SplitHostPort(addr)
	return ip, port, err == nil
}

// hostName is nginx's $host: lower case, without the port.
func (x *exchange) hostName() string {
	host := strings.ToLower(x.host)
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host
}

// trusted reports whether the peer is one of trusted_ips.
func (x *exchange) trusted() bool { return x.node.realIP.trusts(x.peerIP) }

func (x *exchange) logf(level slog.Level, message string) {
	x.node.log.Log(context.Background(), level, message, "request_id", x.requestID)
}

// nginxVar is the subset of nginx's variables that plugins read; "" for one
// that does not exist or has no value.
func (x *exchange) nginxVar(name string) string {
	if header, ok := strings.CutPrefix(name, "http_"); ok {
		return x.headerVariable(header)
	}
	if argument, ok := strings.CutPrefix(name, "arg_"); ok {
		return rawArgument(uri.Query(x.requestURI), argument)
	}
	if cookie, ok := strings.CutPrefix(name, "cookie_"); ok {
		return cookieValue(x.header, cookie)
	}
	switch name {
	case "request":
		return x.method + " " + x.target + " " + x.protocol
	case "request_uri":
		return x.requestURI
	case "request_method":
		return x.method
	case "uri", "document_uri":
		return x.path
	case "args", "query_string":
		return uri.Query(x.requestURI)
	case "is_args":
		if uri.Query(x.requestURI) != "" {
			return "?"
		}
		return ""
	case "host":
		return x.hostName()
	case "scheme":
		return "http"
	case "server_protocol":
		return x.protocol
	case "server_port":
		return strconv.Itoa(x.node.port)
	case "remote_addr":
		return x.forwardedIP
	case "remote_port":
		return x.forwardedPort
	case "realip_remote_addr":
		return x.peerIP
	case "realip_remote_port":
		return x.peerPort
	case "kong_request_id", "request_id":
		return x.requestID
	case "content_type":
		return x.header.Get("Content-Type")
	case "content_length":
		return x.header.Get("Content-Length")
	case "upstream_scheme":
		return x.upstream.scheme
	case "upstream_uri":
		return x.upstream.path
	case "upstream_host":
		return x.upstream.hostHeader
	}
	return ""
}

// rawArgument is nginx's $arg_name: the first value, not decoded.
func rawArgument(query, name string) string {
	for pair := range strings.SplitSeq(query, "&") {
		if key, value, _ := strings.Cut(pair, "="); strings.EqualFold(key, name) {
			return value
		}
	}
	return ""
}

// cookieValue is nginx's $cookie_name: the value as sent.
func cookieValue(header http.Header, name string) string {
	for _, line := range header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			if key, value, _ := strings.Cut(strings.TrimSpace(pair), "="); key == name {
				return value
			}
		}
	}
	return ""
}
