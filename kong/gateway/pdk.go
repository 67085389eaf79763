package gateway

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"
)

// pdkMethod answers one question: it decodes the argument, acts on the
// exchange and encodes the answer. Methods without a result answer nil, an
// empty frame, and so does every nil result: that is how Kong encodes it.
type pdkMethod func(x *exchange, arg []byte) ([]byte, error)

// pdkMethods are the methods of kong/pluginsocket.proto by the names Kong
// derives from it. What only works in later phases raises in access, as there.
var pdkMethods = func() map[string]pdkMethod {
	all := map[string]pdkMethod{}
	for _, group := range []map[string]pdkMethod{
		clientMethods(), requestMethods(), responseMethods(), serviceMethods(), nginxMethods(),
	} {
		maps.Copy(all, group)
	}
	return all
}()

// answer works through one (method, argument) pair. An error ends the event
// with a 500, but for errExited after kong.response.exit.
func (x *exchange) answer(method string, arg []byte) ([]byte, error) {
	f, known := pdkMethods[method]
	if !known {
		return nil, fmt.Errorf("method %q not found", method)
	}
	x.node.counters.questions.Add(1)
	reply, err := f(x, arg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if x.exit != nil {
		return nil, errExited
	}
	return reply, nil
}

// asks adapts a question without argument.
func asks(f func(x *exchange) []byte) pdkMethod {
	return func(x *exchange, _ []byte) ([]byte, error) { return f(x), nil }
}

// withString adapts a method that takes a String or ByteString.
func withString(f func(x *exchange, s string) ([]byte, error)) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		s, err := readString(arg)
		if err != nil {
			return nil, err
		}
		return f(x, s)
	}
}

// withInt adapts a method that takes an Int or Bool.
func withInt(f func(x *exchange, v int64) ([]byte, error)) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		v, err := readInt(arg)
		if err != nil {
			return nil, err
		}
		return f(x, v)
	}
}

// withKV adapts a method that takes a KV.
func withKV(f func(x *exchange, key string, value any) error) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		key, value, err := readKV(arg, 0)
		if err != nil {
			return nil, err
		}
		return nil, f(x, key, value)
	}
}

// withStruct adapts a method that takes a Struct.
func withStruct(f func(x *exchange, object map[string]any) error) pdkMethod {
	return func(x *exchange, arg []byte) ([]byte, error) {
		object, err := readStruct(arg, 0)
		if err != nil {
			return nil, err
		}
		return nil, f(x, object)
	}
}

// laterPhase is a method that Kong refuses to run in access.
func laterPhase(_ *exchange, _ []byte) ([]byte, error) {
	return nil, raise("function cannot be called in access phase")
}

// message encodes an answer whose strings come from the configuration.
func message(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, raise("encode answer: %v", err)
	}
	return b, nil
}
