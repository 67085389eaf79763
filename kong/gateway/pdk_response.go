package gateway

import (
	"fmt"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
)

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
