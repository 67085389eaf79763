package gateway

import (
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// responseMethods are kong.response. What looks at the upstream's answer
// raises in access.
func responseMethods() map[string]pdkMethod {
	return map[string]pdkMethod{
		"kong.response.get_status":  laterPhase,
		"kong.response.get_header":  laterPhase,
		"kong.response.get_headers": laterPhase,
		"kong.response.get_source":  laterPhase,
		"kong.response.set_status": withInt(func(x *exchange, status int64) ([]byte, error) {
			if status < 100 || status > 599 {
				return nil, raise("code must be a number between 100 and 599")
			}
			x.responseStatus = int(status)
			return nil, nil
		}),
		"kong.response.set_header": withKV(func(x *exchange, name string, value any) error {
			return x.setResponseHeader(name, value, x.response.set)
		}),
		"kong.response.add_header": withKV(func(x *exchange, name string, value any) error {
			return x.setResponseHeader(name, value, x.response.add)
		}),
		"kong.response.clear_header": withString(func(x *exchange, name string) ([]byte, error) {
			x.response.clear(name)
			return nil, nil
		}),
		"kong.response.set_headers": withStruct(func(x *exchange, headers map[string]any) error {
			return setAll(headers, func(name string, value any) error {
				return x.setResponseHeader(name, value, x.response.set)
			})
		}),
		"kong.response.exit": exit,
	}
}

func (x *exchange) setResponseHeader(name string, value any, put func(string, []string)) error {
	values, err := headerValues(name, value)
	if err != nil {
		return err
	}
	if ignored := strings.ToLower(name); ignored == "transfer-encoding" || ignored == "transfer_encoding" {
		return nil // as Kong does, which logs a warning
	}
	put(name, values)
	return nil
}

// setAll checks every header before it sets any, as validate_headers does.
func setAll(headers map[string]any, set func(name string, value any) error) error {
	names := make([]string, 0, len(headers))
	for name, value := range headers {
		if _, err := headerValues(name, value); err != nil {
			return err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := set(name, headers[name]); err != nil {
			return err
		}
	}
	return nil
}

// exit decodes ExitArgs by hand: headers and body are any bytes.
func exit(x *exchange, arg []byte) ([]byte, error) {
	call := &exitCall{body: []byte{}}
	err := eachField(arg, func(number protowire.Number, payload []byte, scalar uint64) error {
		switch number {
		case 1:
			call.status = int(int32(scalar))
		case 2:
			call.body = append([]byte{}, payload...)
		case 3:
			headers, err := readStruct(payload, 0)
			if err != nil {
				return err
			}
			return setAll(headers, func(name string, value any) error {
				values, err := headerValues(name, value)
				if strings.ToLower(name) != "transfer-encoding" {
					call.headers.set(name, values)
				}
				return err
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if call.status < 100 || call.status > 599 {
		return nil, raise("code must be a number between 100 and 599")
	}
	x.completeGRPC(call)
	x.exit = call
	return nil, nil
}

// outcome is the exchange's state for those who drive events without HTTP.
func (x *exchange) outcome() Outcome {
	out := Outcome{Header: x.response.header(), Serialized: x.serialized}
	if x.exit != nil {
		out.Exit = &Exit{Status: x.exit.status, Body: x.exit.body, Header: http.Header(x.exit.headers.header())}
	}
	return out
}
