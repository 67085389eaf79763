package deckfile

import (
	"errors"

	"gopkg.in/yaml.v3"
)

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
