package gateway

import (
	"net/url"
	"strconv"
	"strings"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// requestMethods are kong.request.
func requestMethods() map[string]pdkMethod {
	return map[string]pdkMethod{
		"kong.request.get_scheme":          asks(func(*exchange) []byte { return stringAnswer("http") }),
		"kong.request.get_host":            asks(func(x *exchange) []byte { return stringAnswer(x.hostName()) }),
		"kong.request.get_port":            asks(func(x *exchange) []byte { return intAnswer(x.node.port) }),
		"kong.request.get_method":          asks(func(x *exchange) []byte { return stringAnswer(x.method) }),
		"kong.request.get_path":            asks(func(x *exchange) []byte { return stringAnswer(x.path) }),
		"kong.request.get_path_with_query": asks(func(x *exchange) []byte { return stringAnswer(x.requestURI) }),
		"kong.request.get_raw_query": asks(func(x *exchange) []byte {
			return stringAnswer(x.query())
		}),
		"kong.request.get_http_version": asks(func(x *exchange) []byte {
			switch x.protocol {
			case "HTTP/1.0":
				return numberAnswer(1)
			case http2:
				return numberAnswer(2)
			}
			return numberAnswer(1.1)
		}),
		"kong.request.get_forwarded_scheme": asks(func(x *exchange) []byte {
			return stringAnswer(x.forwarded("X-Forwarded-Proto", "http"))
		}),
		"kong.request.get_forwarded_host": asks(func(x *exchange) []byte { return stringAnswer(x.forwardedHost()) }),
		"kong.request.get_forwarded_port": asks(func(x *exchange) []byte { return intAnswer(x.forwardedHostPort()) }),
		"kong.request.get_query_arg":      withString(queryArgument),
		"kong.request.get_query": withInt(func(x *exchange, limit int64) ([]byte, error) {
			if err := checkCount("max_args", limit); err != nil {
				return nil, err
			}
			return appendStruct(nil, decodeQuery(x.query(), int(limit))), nil
		}),
		"kong.request.get_header": withString(func(x *exchange, name string) ([]byte, error) {
			return stringAnswer(x.requestHeader(name)), nil
		}),
		"kong.request.get_headers": withInt(func(x *exchange, limit int64) ([]byte, error) {
			if err := checkCount("max_headers", limit); err != nil {
				return nil, err
			}
			return appendStruct(nil, x.headerTable(int(limit))), nil
		}),
		"kong.request.get_raw_body": func(x *exchange, _ []byte) ([]byte, error) { return message(x.body.result()) },
		"kong.request.get_uri_captures": func(x *exchange, _ []byte) ([]byte, error) {
			return message(x.captures())
		},
	}
}

// checkCount is the PDK's bound on how much one question may bring.
func checkCount(name string, limit int64) error {
	switch {
	case limit < 1:
		return raise("%s must be >= 1", name)
	case limit > 1000:
		return raise("%s must be <= 1000", name)
	}
	return nil
}

func (x *exchange) query() string {
	if x.upstream.query != nil {
		return *x.upstream.query
	}
	return uri.Query(x.requestURI)
}

// decodeQuery is ngx.decode_args: values by name, a list for a name that came
// twice, true for a name without "=".
func decodeQuery(query string, limit int) map[string]any {
	table := map[string]any{}
	for pair := range strings.SplitSeq(query, "&") {
		name, text, hasValue := strings.Cut(pair, "=")
		if name = unescapeArgument(name); name == "" {
			continue
		}
		if limit--; limit < 0 {
			break
		}
		value := any(true)
		if hasValue {
			value = unescapeArgument(text)
		}
		switch earlier := table[name].(type) {
		case nil:
			table[name] = value
		case []any:
			table[name] = append(earlier, value)
		default:
			table[name] = []any{earlier, value}
		}
	}
	return table
}

// unescapeArgument decodes triplets and plus signs; what is no triplet stays.
func unescapeArgument(s string) string {
	if decoded, err := url.QueryUnescape(s); err == nil {
		return decoded
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				out.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		if s[i] == '+' {
			out.WriteByte(' ')
			continue
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func queryArgument(x *exchange, name string) ([]byte, error) {
	value := decodeQuery(x.query(), 100)[name]
	if list, ok := value.([]any); ok {
		value = list[0]
	}
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		return stringAnswer(v), nil
	}
	return nil, raise("string expected for field 'v', got boolean") // "?a" has the value true
}

// forwarded is a trusted proxy's header in lower case, or a fallback.
func (x *exchange) forwarded(name, fallback string) string {
	if value := x.header.Get(name); value != "" && x.trusted() {
		return strings.ToLower(value)
	}
	return fallback
}

func (x *exchange) forwardedHost() string {
	host := x.forwarded("X-Forwarded-Host", "")
	if host == "" {
		return x.hostName()
	}
	if _, after, found := strings.Cut(host, "@"); found {
		host = after
	}
	host, _, _ = strings.Cut(host, ":")
	return host
}

func (x *exchange) forwardedHostPort() int {
	_, inHost, _ := strings.Cut(x.forwarded("X-Forwarded-Host", ""), ":")
	for _, text := range []string{x.forwarded("X-Forwarded-Port", ""), inHost} {
		if port, err := strconv.Atoi(text); err == nil && port >= 1 && port <= 65535 {
			return port
		}
	}
	return x.node.port
}

func (x *exchange) captures() *pb.UriCapturesResult {
	result := &pb.UriCapturesResult{}
	if x.match == nil {
		return result
	}
	for _, capture := range x.match.Unnamed {
		result.Unnamed = append(result.Unnamed, []byte(capture))
	}
	for name, capture := range x.match.Named {
		if result.Named == nil {
			result.Named = map[string][]byte{}
		}
		result.Named[name] = []byte(capture)
	}
	return result
}
