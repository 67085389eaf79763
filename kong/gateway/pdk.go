package gateway

import (
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
	"kong.client.get_consumer":     func(x *exchange, _ []byte) ([]byte, error) { return encodeConsumer(x.consumer) },
	"kong.client.get_credential":   answerString(func(x *exchange) string { return x.credentialID }),
	"kong.client.get_forwarded_ip": answerString(func(x *exchange) string { return x.forwardedIP }),
	"kong.ctx.shared.get":          sharedValue,
	"kong.ctx.shared.set":          withKV(func(x *exchange, key string, value any) { put(&x.shared, key, value) }),
	"kong.log.set_serialize_value": withKV(setSerializeValue),
	"kong.nginx.get_var":           lookupString((*exchange).nginxVar),
	"kong.request.get_header":      lookupString((*exchange).requestHeader),
	"kong.request.get_path":        answerString(func(x *exchange) string { return x.path }),
	"kong.response.exit":           exit,
	"kong.response.set_headers":    setResponseHeaders,
	"kong.router.get_route":        func(x *exchange, _ []byte) ([]byte, error) { return encodeRoute(x.route) },
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

func setSerializeValue(x *exchange, key string, value any) {
	x.serialized = append(x.serialized, keyValue{key, value})
}

// sharedValue answers kong.ctx.shared.get.
func sharedValue(x *exchange, arg []byte) ([]byte, error) {
	key, err := decodeString(arg)
	return encodeValue(x.shared[key]), err
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

// encodeMessage encodes an answer whose strings come from the decK file.
func encodeMessage(m proto.Message) ([]byte, error) {
	encoded, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return encoded, nil
}
