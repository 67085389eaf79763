package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// endpointSet holds the patterns that rows name, each once, with the number of rows. They change one at a time, unlike
// patterns of a config, so adding one compares it with each of the others once.
type endpointSet struct {
	uses     map[string]int // rows by pattern
	patterns *Patterns
	fresh    map[string]*Pattern // acquired since patterns was compiled; nil when nothing can be acquired
}

func newEndpoints() *endpointSet {
	return &endpointSet{
		uses:     map[string]int{},
		patterns: &Patterns{root: &node{}},
		fresh:    map[string]*Pattern{},
	}
}

// clone returns a copy with uses that can be changed.
func (e *endpointSet) clone() *endpointSet {
	return &endpointSet{uses: maps.Clone(e.uses), patterns: e.patterns, fresh: map[string]*Pattern{}}
}

// acquire counts a use of a pattern ("" is none). It returns an error for a pattern that does not parse, and for one
// that crosses another: both match some requests and neither is more specific. Two patterns may differ in the names of
// parameters only.
func (e *endpointSet) acquire(text string) error {
	if text == "" || e.uses[text] > 0 {
		e.count(text, 1)
		return nil
	}
	if len(e.uses) >= maxPatterns {
		return fmt.Errorf("at most %d endpoint patterns can be in use: remove one first", maxPatterns)
	}
	p, err := ParsePattern(text)
	if err != nil {
		return err
	}
	for other := range e.uses {
		if relate(&p, e.parsed(other)) == crossing {
			return ambiguous(text, other)
		}
	}
	e.fresh[text] = &p
	e.count(text, 1)
	return nil
}

func (e *endpointSet) release(text string) { e.count(text, -1) }

func (e *endpointSet) count(text string, n int) {
	if text == "" {
		return
	}
	if e.uses[text] += n; e.uses[text] <= 0 {
		delete(e.uses, text)
	}
}

// parsed returns a pattern in use: the compiled one, or the one that acquire parsed.
func (e *endpointSet) parsed(text string) *Pattern {
	if i := e.patterns.Index(text); i >= 0 {
		return &e.patterns.list[i]
	}
	return e.fresh[text]
}

// compile rebuilds the patterns from those in use, unless they are the same as before.
func (e *endpointSet) compile() {
	changed := len(e.uses) != len(e.patterns.list)
	list := make([]Pattern, 0, len(e.uses))
	for text := range e.uses {
		list = append(list, *e.parsed(text))
		changed = changed || e.patterns.Index(text) < 0
	}
	if e.fresh = nil; !changed {
		return
	}
	depth := make(map[string]int, len(list)) // how many others are wider
	for i := range list {
		for j := range i {
			switch relate(&list[i], &list[j]) {
			case narrower:
				depth[list[i].text]++
			case wider:
				depth[list[j].text]++
			}
		}
	}
	e.patterns = compileSorted(list, depth)
}

// compileSorted compiles patterns of which no two cross; depth holds how many are wider than each. Specificity is a
// partial order: this order puts every pattern before those that are wider.
func compileSorted(list []Pattern, depth map[string]int) *Patterns {
	set := &Patterns{root: &node{}, list: list, byText: make(map[string]int, len(list))}
	slices.SortFunc(list, func(a, b Pattern) int {
		if d := depth[b.text] - depth[a.text]; d != 0 {
			return d
		}
		return strings.Compare(a.text, b.text)
	})
	for i := range list {
		set.byText[list[i].text] = i
		set.root.insert(&list[i], i)
	}
	return set
}
