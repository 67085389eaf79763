package gateway

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/uri"
)

// serviceMethods are kong.service, kong.service.request and
// kong.service.response; the last looks at the upstream's answer and raises in
// access.
func serviceMethods() map[string]pdkMethod {
	methods := map[string]pdkMethod{
		"kong.service.set_upstream": withString(func(*exchange, string) ([]byte, error) {
			return nil, nil // no upstreams are simulated: "could not find an Upstream"
		}),
		"kong.service.set_target":            setTarget,
		"kong.service.response.get_status":   laterPhase,
		"kong.service.response.get_header":   laterPhase,
		"kong.service.response.get_headers":  laterPhase,
		"kong.service.response.get_raw_body": laterPhase,
	}
	maps.Copy(methods, serviceLineMethods())
	maps.Copy(methods, serviceHeaderMethods())
	return methods
}

func setTarget(x *exchange, arg []byte) ([]byte, error) {
	var target pb.Target
	if err := proto.Unmarshal(arg, &target); err != nil {
		return nil, err
	}
	if target.Port < 0 || target.Port > 65535 {
		return nil, raise("port must be an integer between 0 and 65535: given %d", target.Port)
	}
	x.upstream.host, x.upstream.port, x.upstream.hostHeader = target.Host, int(target.Port), target.Host
	return nil, nil
}

var settableMethods = []string{
	"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "MKCOL", "COPY", "MOVE", "PROPFIND", "PROPPATCH", "LOCK",
	"UNLOCK", "PATCH", "TRACE",
}

// serviceLineMethods change the request line and the body.
func serviceLineMethods() map[string]pdkMethod {
	return map[string]pdkMethod{
		"kong.service.request.set_scheme": withString(func(x *exchange, scheme string) ([]byte, error) {
			if scheme != "http" && scheme != "https" {
				return nil, raise("invalid scheme: %s", scheme)
			}
			x.upstream.scheme = scheme
			return nil, nil
		}),
		"kong.service.request.set_path": withString(func(x *exchange, path string) ([]byte, error) {
			if !strings.HasPrefix(path, "/") {
				return nil, raise("path must start with /")
			}
			x.upstream.path = uri.Escape(path)
			return nil, nil
		}),
		"kong.service.request.set_raw_query": withString(func(x *exchange, query string) ([]byte, error) {
			x.upstream.query = &query
			return nil, nil
		}),
		"kong.service.request.set_query": withStruct(func(x *exchange, args map[string]any) error {
			query, err := encodeQuery(args)
			x.upstream.query = &query
			return err
		}),
		"kong.service.request.set_method": withString(func(x *exchange, method string) ([]byte, error) {
			if !slices.Contains(settableMethods, method) {
				return nil, raise("invalid method: %s", method)
			}
			x.method = method
			return nil, nil
		}),
		"kong.service.request.set_raw_body": withString(func(x *exchange, body string) ([]byte, error) {
			x.upstream.body, x.upstream.hasBody = []byte(body), true
			return nil, nil
		}),
	}
}

func encodeQuery(args map[string]any) (string, error) {
	var pairs []string
	for name, value := range args {
		list, isList := value.([]any)
		if !isList {
			list = []any{value}
		}
		for _, item := range list {
			switch v := item.(type) {
			case bool:
				pairs = append(pairs, url.QueryEscape(name))
			case string:
				pairs = append(pairs, url.QueryEscape(name)+"="+url.QueryEscape(v))
			case float64:
				pairs = append(pairs, url.QueryEscape(name)+"="+luaNumber(v))
			default:
				return "", raise("attempt to use %T as query arg value", item)
			}
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&"), nil
}

// serviceHeaderMethods change the request's headers, for the plugins that
// follow as well as for the service.
func serviceHeaderMethods() map[string]pdkMethod {
	return map[string]pdkMethod{
		"kong.service.request.set_header": withKV(func(x *exchange, name string, value any) error {
			return x.setRequestHeader(name, value, false)
		}),
		"kong.service.request.add_header": withKV(func(x *exchange, name string, value any) error {
			return x.setRequestHeader(name, value, true)
		}),
		"kong.service.request.clear_header": withString(func(x *exchange, name string) ([]byte, error) {
			x.header.Del(name)
			return nil, nil
		}),
		"kong.service.request.set_headers": withStruct(func(x *exchange, headers map[string]any) error {
			return setAll(headers, func(name string, value any) error { return x.setRequestHeader(name, value, false) })
		}),
	}
}

func (x *exchange) setRequestHeader(name string, value any, add bool) error {
	values, err := headerValues(name, value)
	if err != nil {
		return err
	}
	canonical := http.CanonicalHeaderKey(name)
	if canonical == "Host" && len(values) > 0 {
		x.upstream.hostHeader = values[0]
		return nil
	}
	if add {
		values = append(x.header[canonical][:len(x.header[canonical]):len(x.header[canonical])], values...)
	}
	x.header[canonical] = values
	return nil
}
