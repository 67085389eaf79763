package fromkong

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// write returns the text of the file with the converted entries. It replaces the lines of each entry, and compares the
// result with what it must hold. Where the layout does not allow that, it writes the file anew.
func (f *file) write() ([]byte, error) {
	var changed []*entry
	for _, e := range f.entries {
		if len(e.problems) == 0 {
			changed = append(changed, e)
		}
	}
	if len(changed) == 0 {
		return f.text, nil
	}
	removed := f.removeOverridesKey(changed)
	edited, ok := f.replaceLines(changed, removed)
	replaceNodes(changed)
	want, err := canonical(f.documents)
	if err != nil {
		return nil, fmt.Errorf("cannot be written: %w", err)
	}
	if json.Valid(f.text) { // YAML has this form too, but not all programs read it
		var out bytes.Buffer
		if err := json.Indent(&out, []byte(want[0]), "", "  "); err != nil {
			return nil, fmt.Errorf("cannot be written: %w", err)
		}
		out.WriteByte('\n')
		return out.Bytes(), nil
	}
	if ok {
		if got, err := parseCanonical(edited); err == nil && slices.Equal(got, want) {
			return edited, nil
		}
	}
	out, err := encode(f.documents...)
	if err != nil {
		return nil, fmt.Errorf("cannot be written: %w", err)
	}
	if got, err := parseCanonical(out); err != nil || !slices.Equal(got, want) {
		return nil, errors.New("cannot be written with its entries replaced: is a YAML anchor within one of them used " +
			"elsewhere? Write its values out there")
	}
	for _, e := range changed {
		e.differs("rewritten")
	}
	return out, nil
}

// encode returns documents of YAML as a text.
func encode(documents ...*yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	for _, document := range documents {
		if err := encoder.Encode(document); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// canonical returns each document as JSON, to compare what two texts hold.
func canonical(documents []*yaml.Node) ([]string, error) {
	var all []string
	for _, document := range documents {
		if len(document.Content) == 0 {
			all = append(all, "")
			continue
		}
		encoded, err := deckfile.Encode(document.Content[0], deckfile.NewWalk())
		if err != nil {
			return nil, err
		}
		all = append(all, string(encoded.JSON))
	}
	return all, nil
}

func parseCanonical(text []byte) ([]string, error) {
	documents, err := deckfile.Documents(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return canonical(documents)
}

// nodes returns what is written for an entry: the converted one, and the one of the settling plugin if it needs that.
func (e *entry) nodes() []*yaml.Node {
	converted := e.node()
	if !e.settles || e.document.settling[e.Place] {
		return []*yaml.Node{converted}
	}
	return []*yaml.Node{converted, e.settling(converted)}
}

// node returns the converted entry: its own fields, with the name and the config replaced.
func (e *entry) node() *yaml.Node {
	n := mapping("name", textNode(schema.Name))
	for _, p := range deckfile.Pairs(e.Item) {
		switch key := p.Key.Value; {
		case slices.Contains([]string{"name", "config", "partials", "created_at", "updated_at"}, key):
		case key == "_config":
			e.differs("shared-config")
		case key == "id" || key == "instance_name" && e.options.SideBySide:
			e.differs("entry-fields")
		default:
			n.Content = append(n.Content, textNode(key), plainCopy(p.Value))
		}
	}
	n.Content = append(n.Content, textNode("config"), e.config.node())
	return n
}

// plainCopy returns a value without its comments, aliases and anchors.
func plainCopy(n *yaml.Node) *yaml.Node {
	n = deckfile.Resolve(n)
	c := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value, Style: n.Style}
	if n.Kind == yaml.MappingNode {
		for _, p := range deckfile.Pairs(n) {
			c.Content = append(c.Content, textNode(p.Key.Value), plainCopy(p.Value))
		}
		return c
	}
	for _, item := range n.Content {
		c.Content = append(c.Content, plainCopy(item))
	}
	return c
}

// comments returns the comments within a node, in their order, as lines that begin with #.
func comments(n *yaml.Node) []string {
	all := slices.Concat(commentLines(n.HeadComment), commentLines(n.LineComment))
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := *n.Content[i], n.Content[i+1]
			below := key.FootComment // stands after the value
			key.FootComment = ""
			all = slices.Concat(all, comments(&key), comments(value), commentLines(below))
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			all = append(all, comments(item)...)
		}
	}
	return append(all, commentLines(n.FootComment)...)
}

// commentLines returns the lines of a comment without their indentation.
func commentLines(comment string) []string {
	var all []string
	for line := range strings.Lines(comment) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// replaceNodes replaces the entries in the tree of the file, or adds the converted ones after them.
func replaceNodes(changed []*entry) {
	for _, e := range slices.Backward(changed) {
		converted := e.nodes()
		at := slices.Index(e.List.Content, e.Item)
		e.List.Style &^= yaml.FlowStyle
		if e.options.SideBySide {
			e.List.Content = slices.Insert(e.List.Content, at+1, converted...)
			continue
		}
		converted[0].HeadComment = strings.Join(comments(e.Item), "\n")
		e.List.Content = slices.Replace(e.List.Content, at, at+1, converted...)
	}
}

// replaceLines replaces the lines of the entries, or adds those of the converted ones after them. It reports false for
// an entry whose lines cannot be found. Lines in removed are left out.
func (f *file) replaceLines(changed []*entry, removed []int) (text []byte, ok bool) {
	lines := strings.SplitAfter(string(f.text), "\n")
	for _, i := range removed {
		lines[i] = ""
	}
	byLine := func(a, b *entry) int { return a.Line - b.Line }
	for _, e := range slices.Backward(slices.SortedFunc(slices.Values(changed), byLine)) {
		first, end, ok := span(lines, e)
		if !ok {
			return nil, false
		}
		block, err := e.block(strings.Join(lines[first:end], ""))
		if err != nil {
			return nil, false
		}
		if f.SideBySide {
			first = end
		}
		if first > 0 && !strings.HasSuffix(lines[first-1], "\n") {
			lines[first-1] += "\n"
		}
		lines = slices.Replace(lines, first, end, block...)
	}
	return []byte(strings.Join(lines, "")), true
}

// span returns the lines of an entry in a list that has one entry a line: from its dash to the last line that is
// indented further.
func span(lines []string, e *entry) (first, end int, ok bool) {
	dash := e.List.Column - 1
	if e.List.Style&yaml.FlowStyle != 0 || e.Item.Kind == yaml.AliasNode {
		return 0, 0, false
	}
	for first = e.Item.Line - 1; ; first-- {
		if first < 0 || first >= len(lines) || first+1 < e.List.Line {
			return 0, 0, false
		}
		if isDash(lines[first], dash) {
			break
		}
	}
	end = first + 1
	for i := end; i < len(lines); i++ {
		trimmed := strings.TrimSpace(lines[i])
		if trimmed == "" {
			continue
		}
		if len(lines[i])-len(strings.TrimLeft(lines[i], " ")) <= dash {
			break
		}
		end = i + 1
	}
	return first, end, true
}

// isDash reports whether a line begins an item of a list: spaces, and a dash in that column.
func isDash(line string, column int) bool {
	indent, item, found := strings.Cut(line, "-")
	return found && len(indent) == column && strings.Trim(indent, " ") == "" && strings.TrimLeft(item, " \r\n") != item
}

// block returns the lines of the converted entry, after the comments within the text that it replaces.
func (e *entry) block(replaced string) ([]string, error) {
	indent := strings.Repeat(" ", e.List.Column-1)
	var lines []string
	if !e.options.SideBySide {
		for _, comment := range comments(e.Item) {
			if strings.Contains(replaced, comment) { // else it is above the entry or below it, and stays there
				lines = append(lines, indent+comment+"\n")
			}
		}
	}
	for _, n := range e.nodes() {
		text, err := encode(n)
		if err != nil {
			return nil, err
		}
		lead := "- "
		for line := range strings.Lines(string(text)) {
			lines = append(lines, indent+lead+line)
			lead = "  "
		}
	}
	if strings.Contains(replaced, "\r\n") {
		for i := range lines {
			lines[i] = strings.TrimSuffix(lines[i], "\n") + "\r\n"
		}
	}
	return lines, nil
}
