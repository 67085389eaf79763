// Package deckfile reads plugin configs out of decK files (Kong's declarative YAML): it resolves aliases and merge keys
// within bounds, and encodes a config as the JSON that Kong gets, with the line of each value. Entities of Kong and the
// settings of plugins are elsewhere.
package deckfile
