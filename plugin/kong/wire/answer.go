package wire

import "google.golang.org/protobuf/encoding/protowire"

// DecodeString returns the text of the answer of a method that returns a string, "" for nil. The id of
// kong.client.get_credential is encoded likewise.
func DecodeString(answer []byte, n *Interner) (string, error) {
	text, err := DecodeBytes(answer)
	return n.String(text), err
}

// DecodeInt returns the number of the answer of a method that returns an integer, such as kong.response.get_status, and
// 0 for nil.
func DecodeInt(answer []byte) (int, error) {
	number := 0
	err := decodeFields(answer, func(field protowire.Number, value []byte, n uint64) {
		if field == 1 && value == nil {
			number = int(int32(n))
		}
	})
	return number, err
}

// DecodeBytes returns the text of the answer of a method that returns a string, nil for nil. It is a part of answer:
// for long texts, such as the JSON of kong.log.serialize.
func DecodeBytes(answer []byte) ([]byte, error) {
	var text []byte
	err := decodeFields(answer, func(field protowire.Number, value []byte, _ uint64) {
		if field == 1 && value != nil {
			text = value
		}
	})
	return text, err
}

// Consumer is the answer of kong.client.get_consumer. All fields are empty if the request has no consumer.
type Consumer struct {
	ID, Username, CustomID string
	Tags                   []string
}

// DecodeConsumer sets c from the answer of kong.client.get_consumer. It reuses the memory of Tags.
func DecodeConsumer(answer []byte, n *Interner, c *Consumer) error {
	c.ID, c.Username, c.CustomID, c.Tags = "", "", "", c.Tags[:0]
	return decodeFields(answer, func(field protowire.Number, value []byte, _ uint64) {
		if value == nil {
			return
		}
		switch field {
		case 1:
			c.ID = n.String(value)
		case 3:
			c.Username = n.String(value)
		case 4:
			c.CustomID = n.String(value)
		case 5:
			c.Tags = append(c.Tags, n.String(value))
		}
	})
}

// Route is a part of the answer of kong.router.get_route.
type Route struct {
	ID, Name string
	GRPC     bool // grpc or grpcs is one of its protocols
}

// DecodeRoute returns the route of the answer of kong.router.get_route.
func DecodeRoute(answer []byte, n *Interner) (Route, error) {
	var r Route
	err := decodeFields(answer, func(field protowire.Number, value []byte, _ uint64) {
		if value == nil {
			return
		}
		switch field {
		case 1:
			r.ID = n.String(value)
		case 4:
			r.Name = n.String(value)
		case 5:
			r.GRPC = r.GRPC || string(value) == "grpc" || string(value) == "grpcs"
		}
	})
	return r, err
}
