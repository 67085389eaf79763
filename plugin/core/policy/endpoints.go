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
	depth    map[string]int // number of wider patterns, by pattern
	patterns *Patterns
	fresh    map[string]*Pattern // acquired since patterns was compiled; nil when nothing can be acquired
}

func newEndpoints() *endpointSet {
	return &endpointSet{
		uses:     map[string]int{},
		depth:    map[string]int{},
		patterns: &Patterns{root: &node{}},
		fresh:    map[string]*Pattern{},
	}
}

// clone returns a copy with uses that can be changed.
func (e *endpointSet) clone() *endpointSet {
	return &endpointSet{uses: maps.Clone(e.uses), depth: e.depth, patterns: e.patterns, fresh: map[string]*Pattern{}}
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

// release drops one use of a pattern.
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
	var kept, fresh []Pattern
	for text := range e.uses {
		if e.patterns.Index(text) >= 0 {
			kept = append(kept, *e.parsed(text))
		} else {
			fresh = append(fresh, *e.parsed(text))
		}
	}
	e.fresh = nil
	if len(fresh) == 0 && len(kept) == len(e.patterns.list) {
		return
	}
	e.depth = maps.Clone(e.depth)
	for i := range e.patterns.list {
		if unused := &e.patterns.list[i]; e.uses[unused.text] == 0 {
			e.addDepth(kept, unused, -1)
			delete(e.depth, unused.text)
		}
	}
	for i := range fresh {
		for j := range kept {
			if relate(&fresh[i], &kept[j]) == narrower {
				e.depth[fresh[i].text]++
			}
		}
		e.addDepth(kept, &fresh[i], 1)
		kept = append(kept, fresh[i])
	}
	e.patterns = compileSorted(kept, e.depth)
}

// addDepth adds n to the depth of those patterns of a list that are narrower than p.
func (e *endpointSet) addDepth(list []Pattern, p *Pattern, n int) {
	for i := range list {
		if relate(&list[i], p) == narrower {
			e.depth[list[i].text] += n
		}
	}
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
