package gateway

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// Request holds the facts of one request that a plugin can ask Kong about. The zero value is a GET of "/" without a
// route and without a consumer.
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
	Consumer *Consumer
	// CredentialID is the id of the credential that the consumer used, "" for none.
	CredentialID string
	// Shared is kong.ctx.shared before the event: nil, bool, float64, string, []any and map[string]any by key. The
	// exchange may change it.
	Shared map[string]any
	// Response is what the client got (required in the log phase).
	Response *Response
}

// Response is the response to a request, as the log phase reads it.
type Response struct {
	Status int
	// Source is "service", "exit" or "error". The upstream was called unless it is "exit".
	Source string
	Header http.Header
}

// Outcome holds the effects of a plugin on a request. The plugin's spelling of headers is kept.
type Outcome struct {
	// Exit is the answer in place of the upstream's; nil when the request goes on.
	Exit *Exit
	// Header are the response headers that the plugin set.
	Header http.Header
	// Serialized holds the fields that the plugin added to the entries of Kong's log plugins.
	Serialized map[string]any
	// Shared is kong.ctx.shared after the event.
	Shared map[string]any
}

// Exit is the answer of kong.response.exit or of Kong itself.
type Exit struct {
	Status int
	Body   []byte
	Header http.Header
}

// exchange is one request in Kong: the facts that plugins read, and the state that they change.
type exchange struct {
	node       *node
	config     *compiledConfig // when the request began; nil without a gateway
	began      time.Time
	size       int64 // of the request, in bytes
	requestID  string
	method     string
	target     string // as sent
	requestURI string
	query      string // of the request URI
	path       string // normalised
	host       string // the Host header, or the authority of an absolute form
	protocol   string
	header     http.Header

	peerIP      string
	forwardedIP string

	route        *Route
	service      *Service
	upstreamPath string // escaped
	consumer     *Consumer
	credentialID string

	shared     map[string]any // kong.ctx.shared: Lua values by key
	serialized []keyValue     // the additions to Kong's log entries

	responseHeader http.Header // as plugins spelled the names
	exit           *Exit
	calls          []*PluginCall // in the order of the plugins

	sent    *sentResponse // nil before the log phase
	logging sync.Mutex    // held while a question is answered: the events of the log phase run in parallel
}

// keyValue is a Lua value with its key.
type keyValue struct {
	key   string
	value any
}

// newExchange parses the target. It returns false if nginx answers 400.
func newExchange(n *node, request Request) (x *exchange, ok bool) {
	x = &exchange{
		node: n, began: time.Now(), method: cmp.Or(request.Method, http.MethodGet),
		target: cmp.Or(request.Target, "/"), host: request.Host, protocol: "HTTP/1.1",
		header: request.Header, route: request.Route, consumer: request.Consumer, credentialID: request.CredentialID,
		shared: request.Shared, responseHeader: http.Header{},
	}
	if x.requestURI, ok = uri.Target(x.target); !ok {
		return x, false
	}
	path, query, _ := strings.Cut(x.requestURI, "?")
	x.path, x.query = uri.Normalize(path), query
	if x.header == nil {
		x.header = http.Header{}
	}
	if x.route != nil {
		x.service = x.route.Service
	}
	x.peerIP = hostWithoutPort(request.RemoteAddr)
	x.forwardedIP = n.trusted.clientIP(x.peerIP, x.header)
	return x, true
}

// hostName returns nginx's $host: lower case, without the port.
func (x *exchange) hostName() string { return hostWithoutPort(strings.ToLower(x.host)) }

func hostWithoutPort(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// queryArguments returns the query's arguments by name, without those that cannot be decoded.
func (x *exchange) queryArguments() url.Values {
	return (&url.URL{RawQuery: x.query}).Query()
}

// nginxVar returns one of the nginx variables that are simulated, and "" for any other, as nginx does for one that has
// no value.
func (x *exchange) nginxVar(name string) string {
	if header, ok := strings.CutPrefix(name, "http_"); ok {
		return x.headerVariable(header)
	}
	switch name {
	case "request":
		return x.method + " " + x.target + " " + x.protocol
	case "kong_request_id":
		return x.requestID
	}
	return ""
}

// trustedProxies holds Kong's trusted_ips. Its real_ip_header is the default X-Real-IP here, real_ip_recursive is off.
type trustedProxies []netip.Prefix

func parseTrusted(texts []string) (trustedProxies, error) {
	var all trustedProxies
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil {
				return nil, fmt.Errorf("trusted IPs: %w", err)
			}
			network = netip.PrefixFrom(addr, addr.BitLen())
		}
		all = append(all, network.Masked())
	}
	return all, nil
}

// clientIP returns the last address in X-Real-IP if the peer is trusted and sent one, else the peer's.
func (t trustedProxies) clientIP(peerIP string, header http.Header) string {
	peer, _ := netip.ParseAddr(peerIP) // no network contains the zero address
	if !slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(peer.Unmap()) }) {
		return peerIP
	}
	sent := strings.Join(header["X-Real-Ip"], ",")
	addr, err := netip.ParseAddr(strings.TrimSpace(sent[strings.LastIndexByte(sent, ',')+1:]))
	if err != nil {
		return peerIP
	}
	return addr.String()
}
