package deck

import (
	"errors"

	"gopkg.in/yaml.v3"
)

// maxValues bounds how many values of a file are looked at, aliases followed, and maxDepth how deep they are nested.
// Both are more than any honest file has; a few lines of nested aliases can stand for billions.
const (
	maxValues = 1 << 20
	maxDepth  = 64
)

var errTooLarge = errors.New("has too many values (are there nested aliases?)")

// tour is a bounded walk through YAML values. It also ends where an alias leads back into what it is part of.
type tour struct {
	left int
	open map[*yaml.Node]bool // the values that the walk is inside of
}

func newTour() tour {
	return tour{left: maxValues, open: map[*yaml.Node]bool{}}
}

// enter takes one step, into n; every enter without an error needs a leave.
func (t *tour) enter(n *yaml.Node) error {
	t.left--
	if t.left < 0 || len(t.open) >= maxDepth || t.open[n] {
		return errTooLarge
	}
	t.open[n] = true
	return nil
}

func (t *tour) leave(n *yaml.Node) { delete(t.open, n) }

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}
