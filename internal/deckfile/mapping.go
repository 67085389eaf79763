package deckfile

import (
	"errors"
	"io"

	"gopkg.in/yaml.v3"
)

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
