package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Bounds of a config document. They are far above real configs (10,000 tiers with ten limits each fit) and protect the
// process from hostile ones.
const (
	maxDocumentBytes  = 32 << 20
	maxDocumentValues = 1 << 20
	maxDocumentDepth  = 32
)

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
)

// node is one JSON value. Reports of faults need the order of keys, duplicates, and the paths of values of a wrong
// type, which encoding/json would lose.
type node struct {
	kind    kind
	text    string   // of a string: its value; of a number or boolean: its JSON text
	items   []*node  // of an array
	members []member // of an object
}

type member struct {
	key   string
	value *node
}

func (n *node) get(key string) *node {
	for _, m := range n.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// decodeDocument decodes raw as one JSON value. If that fails, the faults have the reason. Else they are duplicate
// keys, of which it keeps the first.
func decodeDocument(raw []byte) (*node, []Fault) {
	if len(raw) > maxDocumentBytes {
		return nil, []Fault{{"", fmt.Sprintf("is %d bytes long, more than %d", len(raw), maxDocumentBytes)}}
	}
	if at := invalidUTF8(raw); at >= 0 {
		return nil, []Fault{{"", fmt.Sprintf("is not valid UTF-8 at byte %d", at)}}
	}
	r := documentReader{decoder: json.NewDecoder(bytes.NewReader(raw))}
	r.decoder.UseNumber()
	root, err := r.value("", 0)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	} else if err == nil {
		if _, err = r.decoder.Token(); err == nil {
			err = errors.New("more text follows it")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		return nil, []Fault{{"", fmt.Sprintf("is not one JSON value: %v at byte %d", err, r.decoder.InputOffset())}}
	}
	return root, r.faults
}

func invalidUTF8(raw []byte) int {
	for at := 0; at < len(raw); {
		r, size := utf8.DecodeRune(raw[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

type documentReader struct {
	decoder *json.Decoder
	values  int
	faults  []Fault
}

func (r *documentReader) value(path string, depth int) (*node, error) {
	r.values++
	if r.values > maxDocumentValues {
		return nil, fmt.Errorf("more than %d values", maxDocumentValues)
	}
	if depth > maxDocumentDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDocumentDepth)
	}
	token, err := r.decoder.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '[' {
			return r.array(path, depth)
		}
		return r.object(path, depth)
	case string:
		return &node{kind: kindString, text: t}, nil
	case json.Number:
		return &node{kind: kindNumber, text: t.String()}, nil
	case bool:
		return &node{kind: kindBool, text: strconv.FormatBool(t)}, nil
	default:
		return &node{kind: kindNull}, nil
	}
}

func (r *documentReader) array(path string, depth int) (*node, error) {
	n := &node{kind: kindArray}
	for r.decoder.More() {
		item, err := r.value(docpath.Item(path, len(n.items)), depth+1)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
	}
	_, err := r.decoder.Token()
	return n, err
}

func (r *documentReader) object(path string, depth int) (*node, error) {
	n := &node{kind: kindObject}
	seen := map[string]bool{}
	for r.decoder.More() {
		token, err := r.decoder.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // the decoder refuses any other key
		keyPath := docpath.Member(path, key)
		value, err := r.value(keyPath, depth+1)
		if err != nil {
			return nil, err
		}
		if seen[key] {
			r.faults = append(r.faults, Fault{keyPath, "is given more than once"})
			continue
		}
		seen[key] = true
		n.members = append(n.members, member{key, value})
	}
	_, err := r.decoder.Token()
	return n, err
}

// pathOrder numbers the paths of all values below n in document order.
func pathOrder(n *node) map[string]int {
	order := map[string]int{}
	var walk func(n *node, path string)
	walk = func(n *node, path string) {
		if _, ok := order[path]; !ok {
			order[path] = len(order)
		}
		for i, item := range n.items {
			walk(item, docpath.Item(path, i))
		}
		for _, m := range n.members {
			walk(m.value, docpath.Member(path, m.key))
		}
	}
	walk(n, "")
	return order
}

func (n *node) appendJSON(b []byte) []byte {
	switch n.kind {
	case kindNull:
		return append(b, "null"...)
	case kindBool, kindNumber:
		return append(b, n.text...)
	case kindString:
		return appendJSONString(b, n.text)
	case kindArray:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendJSON(b)
		}
		return append(b, ']')
	}
	b = append(b, '{')
	for i, m := range n.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendJSONString(b, m.key), ':')
		b = m.value.appendJSON(b)
	}
	return append(b, '}')
}

func appendJSONString(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("schema: a string cannot be encoded: %v", err)) // json.Marshal has no error for strings
	}
	return append(b, quoted...)
}

// show describes n for a message: scalars by their value, others by their kind.
func show(n *node) string {
	switch n.kind {
	case kindNull:
		return "null"
	case kindBool, kindNumber:
		return docpath.Shorten(n.text)
	case kindString:
		return strconv.Quote(docpath.Shorten(n.text))
	case kindArray:
		return "an array"
	default:
		return "an object"
	}
}

// exactInteger parses a JSON number as an integer, in any form: Lua's cjson prints large integers as 1e+15, and some
// encoders print 86400.0. It rejects a fraction and numbers outside of int64.
func exactInteger(number string) (int64, bool) {
	const precision, longest = 256, 400 // bits: the digits of any int64, and some 50 behind its point; and characters
	if len(number) > longest {
		return 0, false // the time to parse it grows with the square of its length
	}
	exact, _, err := big.ParseFloat(number, 10, precision, big.ToNearestEven)
	if err != nil || !exact.IsInt() {
		return 0, false
	}
	value, accuracy := exact.Int64()
	return value, accuracy == big.Exact
}
