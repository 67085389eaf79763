// Package deckfile reads plugin configs out of decK files (Kong's declarative YAML): it resolves aliases and merge keys
// within bounds, and encodes a config as the JSON that Kong gets, with the line of each value. Entities of Kong and the
// settings of plugins are elsewhere.
package deckfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Resolve follows an alias to the value that it stands for.
func Resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Documents returns the documents of a text. Beside an error they are those before it.
func Documents(r io.Reader) (documents []*yaml.Node, err error) {
	for decoder := yaml.NewDecoder(r); ; {
		document := new(yaml.Node)
		err := decoder.Decode(document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return documents, err
		}
		documents = append(documents, document)
	}
}

// Root returns the value of a document, resolved; an empty one has the zero Node.
func Root(document *yaml.Node) *yaml.Node {
	if document.Kind != yaml.DocumentNode || len(document.Content) == 0 {
		return new(yaml.Node)
	}
	return Resolve(document.Content[0])
}

// Get returns the value of key in a mapping, resolved, or nil.
func Get(n *yaml.Node, key string) *yaml.Node {
	for _, p := range Pairs(n) {
		if p.Key.Value == key {
			return Resolve(p.Value)
		}
	}
	return nil
}

// Pair is a key of a mapping with its value.
type Pair struct{ Key, Value *yaml.Node }

// Pairs returns the keys and values of a mapping in order, then those that its merge keys (<<) add. It returns none for
// any other value. A duplicate key is in the result twice, so that callers can report it.
func Pairs(n *yaml.Node) []Pair {
	m := merger{own: map[string]bool{}, seen: map[*yaml.Node]bool{}}
	m.add(n)
	return m.pairs
}

type merger struct {
	pairs []Pair
	own   map[string]bool     // keys of the mappings before the one being added
	seen  map[*yaml.Node]bool // mappings already added: a merge can lead back to one
}

func (m *merger) add(n *yaml.Node) {
	n = Resolve(n)
	if n.Kind != yaml.MappingNode || m.seen[n] {
		return
	}
	m.seen[n] = true
	var sources []*yaml.Node
	start := len(m.pairs)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.ShortTag() == "!!merge" {
			sources = append(sources, value)
		} else if !m.own[key.Value] {
			m.pairs = append(m.pairs, Pair{key, value})
		}
	}
	for _, p := range m.pairs[start:] {
		m.own[p.Key.Value] = true
	}
	for _, source := range sources {
		if list := Resolve(source); list.Kind == yaml.SequenceNode {
			for _, item := range list.Content {
				m.add(item)
			}
			continue
		}
		m.add(source)
	}
}

// maxValues bounds how many values of a file are visited, aliases followed, and maxDepth how deep they are nested. Both
// exceed those of usual files. A few lines of nested aliases can stand for billions of values.
const (
	maxValues = 1 << 20
	maxDepth  = 64
)

var errTooLarge = errors.New("has too many values (are there nested aliases?)")

// Walk bounds a walk through the values of a file. It also ends where an alias leads back to a value that holds it.
type Walk struct {
	left int
	open map[*yaml.Node]bool // the values that the walk is inside of
}

// NewWalk returns a walk that has visited no values.
func NewWalk() *Walk {
	return &Walk{left: maxValues, open: map[*yaml.Node]bool{}}
}

// Enter takes one step, into n. Every Enter without an error needs a Leave.
func (w *Walk) Enter(n *yaml.Node) error {
	w.left--
	if w.left < 0 || len(w.open) >= maxDepth || w.open[n] {
		return errTooLarge
	}
	w.open[n] = true
	return nil
}

// Leave ends the step into n.
func (w *Walk) Leave(n *yaml.Node) { delete(w.open, n) }
