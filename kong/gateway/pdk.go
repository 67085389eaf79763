package gateway

import (
	"errors"
	"fmt"
	"net/http"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// pdkMethod answers one question of a plugin: it decodes the argument, acts on the exchange and encodes the answer.
// Kong sends an empty frame for a nil answer.
type pdkMethod func(x *exchange, arg []byte) ([]byte, error)

// pdkMethods holds the simulated methods of the access phase by the names that Kong derives from
// kong/pluginsocket.proto.
var pdkMethods = map[string]pdkMethod{
	"kong.client.get_consumer":         func(x *exchange, _ []byte) ([]byte, error) { return encodeConsumer(x.consumer) },
	"kong.client.get_credential":       answerString(func(x *exchange) string { return x.credentialID }),
	"kong.client.get_forwarded_ip":     answerString(func(x *exchange) string { return x.forwardedIP }),
	"kong.client.get_ip":               answerString(func(x *exchange) string { return x.peerIP }),
	"kong.ctx.shared.get":              lookupValue(sharedValue),
	"kong.ctx.shared.set":              withKV(func(x *exchange, key string, value any) { put(&x.shared, key, value) }),
	"kong.log.alert":                   logLine,
	"kong.log.crit":                    logLine,
	"kong.log.debug":                   logLine,
	"kong.log.err":                     logLine,
	"kong.log.info":                    logLine,
	"kong.log.notice":                  logLine,
	"kong.log.serialize":               raiseInAccess,
	"kong.log.set_serialize_value":     withKV(setSerializeValue),
	"kong.log.warn":                    logLine,
	"kong.nginx.get_ctx":               lookupValue(nginxCtx),
	"kong.nginx.get_var":               lookupString((*exchange).nginxVar),
	"kong.nginx.req_start_time":        startTime,
	"kong.nginx.set_ctx":               withKV(func(x *exchange, key string, value any) { put(&x.ctx, key, value) }),
	"kong.node.get_id":                 answerString(func(*exchange) string { return nodeID }),
	"kong.request.get_header":          lookupString((*exchange).requestHeader),
	"kong.request.get_headers":         requestHeaders,
	"kong.request.get_host":            answerString((*exchange).hostName),
	"kong.request.get_method":          answerString(func(x *exchange) string { return x.method }),
	"kong.request.get_path":            answerString(func(x *exchange) string { return x.path }),
	"kong.request.get_path_with_query": answerString(func(x *exchange) string { return x.requestURI }),
	"kong.request.get_uri_captures":    uriCaptures,
	"kong.response.exit":               exit,
	"kong.response.set_headers":        setResponseHeaders,
	"kong.router.get_route":            func(x *exchange, _ []byte) ([]byte, error) { return encodeRoute(x.route) },
	"kong.router.get_service":          func(x *exchange, _ []byte) ([]byte, error) { return encodeService(x.service) },
}

// answer runs one method. An error ends the event with a 500, but for errExited after kong.response.exit.
func (x *exchange) answer(method string, arg []byte) ([]byte, error) {
	methods := pdkMethods
	if x.sent != nil {
		methods = logMethods
	}
	run, simulated := methods[method]
	if !simulated {
		return nil, fmt.Errorf("method %q is not simulated", method)
	}
	x.node.counters.questions.Add(1)
	x.logging.Lock()
	defer x.logging.Unlock()
	reply, err := run(x, arg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return reply, nil
}

// answerString adapts a question without an argument. Its answer is a String, or a Credential, whose first field is its
// id.
func answerString(value func(x *exchange) string) pdkMethod {
	return func(x *exchange, _ []byte) ([]byte, error) { return encodeString(value(x)), nil }
}

// lookupString adapts a question that takes a name and answers a String.
func lookupString(value func(x *exchange, name string) string) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		name, err := decodeString(arg)
		if err != nil {
			return nil, err
		}
		return encodeString(value(x, name)), nil
	}
}

// lookupValue adapts a question that takes a key and answers a Value.
func lookupValue(value func(x *exchange, key string) (any, error)) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		key, err := decodeString(arg)
		if err != nil {
			return nil, err
		}
		found, err := value(x, key)
		return encodeValue(found), err
	}
}

// withKV adapts a method that takes a key and a value.
func withKV(run func(x *exchange, key string, value any)) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		key, value, err := decodeKV(arg, 0)
		if err == nil {
			run(x, key, value)
		}
		return nil, err
	}
}

// put stores a value in a Lua table, and drops the entry if the value is nil.
func put(table *map[string]any, key string, value any) {
	if *table == nil {
		*table = map[string]any{}
	}
	if value == nil {
		delete(*table, key)
		return
	}
	(*table)[key] = value
}

// raiseInAccess fails as a method of a later phase does in access: a Lua error, which no plugin can catch.
func raiseInAccess(*exchange, []byte) ([]byte, error) {
	return nil, errors.New("function cannot be called in access phase")
}

// requestHeaders answers kong.request.get_headers, whose argument bounds how many headers are returned.
func requestHeaders(x *exchange, arg []byte) ([]byte, error) {
	const highest = 1000
	var limit pb.Int
	if err := proto.Unmarshal(arg, &limit); err != nil {
		return nil, err
	}
	if limit.V < 1 || limit.V > highest {
		return nil, fmt.Errorf("max_headers must be 1 to %d, got %d", highest, limit.V)
	}
	return encodeStruct(x.headerTable(int(limit.V))), nil
}

func setSerializeValue(x *exchange, key string, value any) {
	x.serialized = append(x.serialized, keyValue{key, value})
}

// logLine answers kong.log.notice and its like: it writes the values to the error log.
func logLine(x *exchange, arg []byte) ([]byte, error) {
	values, err := decodeList(arg, 0)
	if err == nil {
		x.node.log.Info(fmt.Sprint(values...), "request_id", x.requestID)
	}
	return nil, err
}

// startTime answers kong.nginx.req_start_time: seconds, to a millisecond.
func startTime(x *exchange, _ []byte) ([]byte, error) {
	return encodeMessage(&pb.Number{V: float64(x.began.UnixMilli()) / 1000})
}

// uriCaptures answers kong.request.get_uri_captures for a path that is no regular expression.
func uriCaptures(x *exchange, _ []byte) ([]byte, error) {
	if x.match != nil && x.match.IsRegex {
		return nil, errors.New("captures of a regular expression are not simulated")
	}
	return nil, nil
}

func sharedValue(x *exchange, key string) (any, error) { return x.shared[key], nil }

// nginxCtx returns a field of ngx.ctx: what plugins set, and Kong's own consumer.
func nginxCtx(x *exchange, key string) (any, error) {
	switch value, set := x.ctx[key]; {
	case set:
		return value, nil
	case key == "plugins":
		return nil, errors.New("cannot encode a value of type function")
	case key == "authenticated_consumer" && x.consumer != nil:
		return consumerTable(x.consumer), nil
	}
	return nil, nil
}

// setResponseHeaders answers kong.response.set_headers.
func setResponseHeaders(x *exchange, arg []byte) ([]byte, error) {
	headers, err := decodeStruct(arg, 0)
	if err != nil {
		return nil, err
	}
	return nil, setHeaders(x.responseHeader, headers)
}

// exit carries out kong.response.exit, which has no answer. It decodes ExitArgs by hand, because headers and body are
// any bytes.
func exit(x *exchange, arg []byte) ([]byte, error) {
	answer := &Exit{Body: []byte{}, Header: http.Header{}}
	err := eachField(arg, func(number protowire.Number, payload []byte, scalar uint64) error {
		switch number {
		case 1:
			answer.Status = int(int32(scalar))
		case 2:
			answer.Body = append([]byte{}, payload...)
		case 3:
			headers, err := decodeStruct(payload, 0)
			if err != nil {
				return err
			}
			return setHeaders(answer.Header, headers)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if answer.Status < 100 || answer.Status > 599 {
		return nil, fmt.Errorf("code must be a number between 100 and 599, got %d", answer.Status)
	}
	x.completeGRPC(answer)
	x.exit = answer
	return nil, errExited
}

// Kong's defaults for settings of routes and services that the decK reader does not take.
const (
	httpsRedirectStatus = 426
	serviceTimeout      = 60_000 // ms: to connect and to write
)

func encodeConsumer(c *Consumer) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	return encodeMessage(&pb.Consumer{
		Id: c.ID, CreatedAt: c.CreatedAt, Username: c.Username, CustomId: c.CustomID, Tags: c.Tags,
	})
}

func encodeRoute(r *Route) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	answer := &pb.Route{
		Id: r.ID, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Name: r.Name, Protocols: r.Protocols,
		Methods: r.Methods, Hosts: r.Hosts, Paths: r.Paths, HttpsRedirectStatusCode: httpsRedirectStatus,
		StripPath: r.StripPath, Tags: r.Tags,
	}
	if r.Service != nil {
		answer.Service = &pb.ServiceKey{Id: r.Service.ID}
	}
	return encodeMessage(answer)
}

func encodeService(s *Service) ([]byte, error) {
	if s == nil {
		return nil, nil
	}
	return encodeMessage(&pb.Service{
		Id: s.ID, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, Name: s.Name, Retries: int32(s.Retries),
		Protocol: s.Protocol, Host: s.Host, Port: int32(s.Port), Path: s.Path, ConnectTimeout: serviceTimeout,
		WriteTimeout: serviceTimeout, ReadTimeout: int32(s.ReadTimeout), Tags: s.Tags,
	})
}

// encodeMessage encodes an answer whose strings come from the decK file.
func encodeMessage(m proto.Message) ([]byte, error) {
	encoded, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return encoded, nil
}

// consumerTable returns the consumer as the Lua table that Kong keeps of it.
func consumerTable(c *Consumer) map[string]any {
	table := map[string]any{"id": c.ID, "created_at": float64(c.CreatedAt), "updated_at": float64(c.UpdatedAt)}
	if c.Username != "" {
		table["username"] = c.Username
	}
	if c.CustomID != "" {
		table["custom_id"] = c.CustomID
	}
	if len(c.Tags) > 0 {
		table["tags"] = luaList(c.Tags)
	}
	return table
}
