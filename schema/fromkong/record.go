package fromkong

import (
	"fmt"
	"strconv"

	"gopkg.in/yaml.v3"
)

// record is a mapping of the output, in the order in which it is written.
type record []member

type member struct {
	key   string
	value any // text, int64, bool, []string, record or []record
}

func (r *record) add(key string, value any) { *r = append(*r, member{key, value}) }

// addUnless adds a value that is not the default.
func addUnless[T comparable](r *record, key string, value, standard T) {
	if value != standard {
		r.add(key, value)
	}
}

// node returns the record as YAML. Records in lists are written in one line each.
func (r record) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, m := range r {
		n.Content = append(n.Content, textNode(m.key), valueNode(m.value))
	}
	return n
}

func valueNode(value any) *yaml.Node {
	switch v := value.(type) {
	case string:
		return textNode(v)
	case int64:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(v, 10)}
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	case record:
		return v.node()
	case []string:
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
		for _, text := range v {
			list.Content = append(list.Content, textNode(text))
		}
		return list
	case []record:
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range v {
			n := item.node()
			if !item.nested() {
				n.Style = yaml.FlowStyle
			}
			list.Content = append(list.Content, n)
		}
		return list
	}
	panic(fmt.Sprintf("fromkong: no YAML for a %T", value))
}

// nested reports whether a record has records in lists, so that it does not fit one line.
func (r record) nested() bool {
	for _, m := range r {
		if _, ok := m.value.([]record); ok {
			return true
		}
	}
	return false
}

// textNode returns a text as YAML; the encoder quotes it where another reader could take it for something else.
func textNode(text string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(text)
	if isTemplate(text) {
		n.Style = yaml.SingleQuotedStyle // decK replaces it before it parses the file
	}
	return n
}
