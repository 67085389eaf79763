package deckfile

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Config is a plugin's config as JSON, with the lines of its values in the YAML.
type Config struct {
	JSON      []byte
	Lines     map[string]int // by path in the config; "" is the config itself
	Templates []string       // paths of values that decK fills in from the environment: ${{ env "DECK_…" }}
}

// Line returns the line of the value at path, or of the innermost value around it.
func (c Config) Line(path string) int {
	line, _ := docpath.Find(c.Lines, path)
	return line
}

// Encode converts a config to the JSON that Kong gets for it; a nil config is an empty object. All configs of a file
// share one walk, so that its bounds are those of the file.
func Encode(config *yaml.Node, w *Walk) (Config, error) {
	enc := encoder{walk: w, config: Config{Lines: map[string]int{}}}
	if config == nil {
		enc.out = append(enc.out, "{}"...)
	} else if err := enc.value(config, ""); err != nil {
		return Config{}, fmt.Errorf("cannot be read as JSON: %w", err)
	}
	enc.config.JSON = enc.out
	return enc.config, nil
}

type encoder struct {
	out    []byte
	walk   *Walk
	config Config
}

func (enc *encoder) value(n *yaml.Node, path string) error {
	line := n.Line // of an alias, where it is used
	n = Resolve(n)
	if err := enc.walk.Enter(n); err != nil {
		return err
	}
	defer enc.walk.Leave(n)
	if _, hasLine := enc.config.Lines[path]; !hasLine {
		enc.config.Lines[path] = line
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
	for i, p := range Pairs(n) {
		if i > 0 {
			enc.out = append(enc.out, ',')
		}
		at := docpath.Member(path, p.Key.Value)
		enc.config.Lines[at] = p.Key.Line
		if err := enc.marshal(p.Key.Value); err != nil {
			return err
		}
		enc.out = append(enc.out, ':')
		if err := enc.value(p.Value, at); err != nil {
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
		enc.config.Templates = append(enc.config.Templates, path)
	}
	switch n.ShortTag() {
	case "!!null":
		return enc.marshal(nil)
	case "!!bool":
		var truth bool
		if err := n.Decode(&truth); err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		return enc.marshal(truth)
	case "!!int":
		return enc.integer(n)
	case "!!float":
		var f float64
		if err := n.Decode(&f); err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return enc.marshal(n.Value) // the type check denies it and quotes the text
		}
		enc.out = strconv.AppendFloat(enc.out, f, 'g', -1, 64)
		return nil
	}
	return enc.marshal(n.Value)
}

// integer writes an integer in any of YAML's notations. It copies an integer that does not fit an int64.
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
	return enc.marshal(n.Value)
}

func (enc *encoder) marshal(v any) error {
	encoded, err := json.Marshal(v)
	enc.out = append(enc.out, encoded...)
	return err
}
