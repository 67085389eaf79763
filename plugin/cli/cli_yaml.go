package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"
)

// writeYAML writes a document. What a terminal would obey is escaped, which YAML reads as the same.
func writeYAML(w io.Writer, value any) error {
	return writeYAMLAfter("", w, value)
}

// writeYAMLAfter writes a document after a text, such as the mark that separates documents.
func writeYAMLAfter(before string, w io.Writer, value any) error {
	text, err := yamlOf(value)
	if err == nil {
		_, err = io.WriteString(w, before+text)
	}
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// yamlOf returns a value as YAML, with the fields that its JSON has, in the same order.
func yamlOf(value any) (string, error) {
	document, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	node, err := yamlNode(decoder)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(node); err != nil {
		return "", err
	}
	return escapeInYAML(b.String()), nil
}

// yamlNode reads the next value of a JSON document.
func yamlNode(from *json.Decoder) (*yaml.Node, error) {
	token, err := from.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.MappingNode}
		if t == '[' {
			node.Kind = yaml.SequenceNode
		}
		for from.More() { // keys of an object are strings between its values
			child, err := yamlNode(from)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		_, err := from.Token() // the end
		return node, err
	case string:
		node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: t}
		if strings.ContainsFunc(t, isUnprintable) {
			node.Style = yaml.DoubleQuotedStyle
		}
		return node, nil
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(token)}, nil // a number or a bool
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// escapeInYAML escapes what is not printable, which is in double quotes, but for the ends of lines.
func escapeInYAML(document string) string {
	var b strings.Builder
	for _, r := range document {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		fmt.Fprintf(&b, `\U%08X`, r)
	}
	return b.String()
}
