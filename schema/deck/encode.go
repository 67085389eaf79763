package deck

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/internal/docpath"
)

// encodedConfig is a config as JSON, and where its values are in the YAML.
type encodedConfig struct {
	json      []byte
	lines     map[string]int // path in the config → line
	templates []string       // paths of values that decK fills in from the environment: ${{ env "DECK_…" }}
}

func (c encodedConfig) line(path string) int {
	line, _ := docpath.Find(c.lines, path)
	return line
}

// encodeConfig turns the config of e into the JSON that Kong would give the plugin. All configs of a file are on
// one tour, so that its bounds are those of the file.
func encodeConfig(e pluginEntry, t *tour) (encodedConfig, error) {
	enc := encoder{tour: t, config: encodedConfig{lines: map[string]int{"": e.line}}}
	config := e.config
	if e.shared != nil {
		config = withShared(e)
	}
	if config == nil {
		enc.config.json = []byte("{}")
		return enc.config, nil
	}
	if err := enc.value(config, ""); err != nil {
		return encodedConfig{}, fmt.Errorf("cannot be read as JSON: %w", err)
	}
	enc.config.json = enc.out
	enc.config.lines[""] = e.line
	return enc.config, nil
}

// withShared lays the entry's own config over the shared one, key by key, as decK does.
func withShared(e pluginEntry) *yaml.Node {
	both := &yaml.Node{Kind: yaml.MappingNode, Line: e.line}
	own := map[string]bool{}
	if e.config != nil {
		for _, p := range pairs(e.config) {
			both.Content = append(both.Content, p.key, p.value)
			own[p.key.Value] = true
		}
	}
	for _, p := range pairs(e.shared) {
		if !own[p.key.Value] {
			both.Content = append(both.Content, p.key, p.value)
		}
	}
	return both
}

type encoder struct {
	out    []byte
	tour   *tour
	config encodedConfig
}

func (enc *encoder) value(n *yaml.Node, path string) error {
	line := n.Line // of an alias, where it is used
	n = resolve(n)
	if err := enc.tour.enter(n); err != nil {
		return err
	}
	defer enc.tour.leave(n)
	if _, known := enc.config.lines[path]; !known {
		enc.config.lines[path] = line
	}
	switch n.Kind {
	case yaml.MappingNode:
		return enc.mapping(n, path)
	case yaml.SequenceNode:
		return enc.sequence(n, path)
	}
	return enc.scalar(n, path)
}

func (enc *encoder) mapping(n *yaml.Node, path string) error {
	enc.out = append(enc.out, '{')
	for i, p := range pairs(n) {
		if i > 0 {
			enc.out = append(enc.out, ',')
		}
		at := docpath.Member(path, p.key.Value)
		enc.config.lines[at] = p.key.Line
		if err := enc.text(p.key.Value); err != nil {
			return err
		}
		enc.out = append(enc.out, ':')
		if err := enc.value(p.value, at); err != nil {
			return err
		}
	}
	enc.out = append(enc.out, '}')
	return nil
}

func (enc *encoder) sequence(n *yaml.Node, path string) error {
	enc.out = append(enc.out, '[')
	for i, item := range n.Content {
		if i > 0 {
			enc.out = append(enc.out, ',')
		}
		if err := enc.value(item, docpath.Item(path, i)); err != nil {
			return err
		}
	}
	enc.out = append(enc.out, ']')
	return nil
}

func (enc *encoder) scalar(n *yaml.Node, path string) error {
	if strings.Contains(n.Value, "${{") {
		enc.config.templates = append(enc.config.templates, path)
	}
	switch n.ShortTag() {
	case "!!null":
		enc.out = append(enc.out, "null"...)
		return nil
	case "!!bool":
		var truth bool
		if err := n.Decode(&truth); err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		return enc.encoded(truth)
	case "!!int":
		return enc.integer(n)
	case "!!float":
		var f float64
		if err := n.Decode(&f); err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return enc.text(n.Value) // refused by its type, with what the author wrote
		}
		enc.out = strconv.AppendFloat(enc.out, f, 'g', -1, 64)
		return nil
	}
	return enc.text(n.Value)
}

// integer writes an integer in any of YAML's notations; one that does not fit an int64 is written as it stands.
func (enc *encoder) integer(n *yaml.Node) error {
	var i int64
	if err := n.Decode(&i); err == nil {
		enc.out = strconv.AppendInt(enc.out, i, 10)
		return nil
	}
	if json.Valid([]byte(n.Value)) {
		enc.out = append(enc.out, n.Value...)
		return nil
	}
	return enc.text(n.Value)
}

func (enc *encoder) text(s string) error { return enc.encoded(s) }

func (enc *encoder) encoded(v any) error {
	encoded, err := json.Marshal(v)
	enc.out = append(enc.out, encoded...)
	return err
}
