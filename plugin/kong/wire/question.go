package wire

import "google.golang.org/protobuf/encoding/protowire"

// Question is a call of one of Kong's PDK methods with fixed arguments, encoded once: the frame of the method's name
// and the frame of its arguments.
type Question []byte

// NewQuestion returns the question that calls a method with one string as its argument, or with none if it is "".
func NewQuestion(method, argument string) Question {
	return appendFrame(appendFrame(nil, []byte(method)), appendString(nil, 1, argument))
}

// NewNumberQuestion returns a question whose method takes an integer argument, such as kong.response.get_headers.
func NewNumberQuestion(method string, argument int32) Question {
	message := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(argument))
	return appendFrame(appendFrame(nil, []byte(method)), message)
}

var (
	setHeadersMethod = appendFrame(nil, []byte("kong.response.set_headers"))
	setSharedMethod  = appendFrame(nil, []byte("kong.ctx.shared.set"))
	exitMethod       = appendFrame(nil, []byte("kong.response.exit"))
)

// Header is one header of a response.
type Header struct {
	Name  string
	Value []byte
}
