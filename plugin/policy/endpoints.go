package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// endpoints are the patterns that rows name, each once, and how often. Unlike a config's they come and go one at a
// time, so adding one compares it with the others once, instead of all with all.
type endpoints struct {
	uses     map[string]int // rows by pattern
	depth    map[string]int // how many patterns are wider, by pattern
	patterns *patterns
	fresh    map[string]*Pattern // acquired since patterns was compiled; nil when nothing can be acquired
}

func newEndpoints() *endpoints {
	return &endpoints{uses: map[string]int{}, depth: map[string]int{}, patterns: &patterns{root: &node{}}, fresh: map[string]*Pattern{}}
}

// copied is a copy whose uses can be changed.
func (e *endpoints) copied() *endpoints {
	return &endpoints{uses: maps.Clone(e.uses), depth: e.depth, patterns: e.patterns, fresh: map[string]*Pattern{}}
}

// acquire counts a use of a pattern ("" is none). It is refused when it makes no sense, or when it and another one
// match some requests and neither is more specific. Two that differ in the names of parameters only are welcome: they
// are different people's, and match the same.
func (e *endpoints) acquire(text string) error {
	if text == "" || e.uses[text] > 0 {
		e.count(text, 1)
		return nil
	}
	if len(e.uses) >= maxPatterns {
		return fmt.Errorf("there are %d endpoint patterns in use, and there cannot be more", maxPatterns)
	}
	p, err := ParsePattern(text)
	if err != nil {
		return err
	}
	for other := range e.uses {
		if relate(&p, e.parsed(other)) == crossing {
			return fmt.Errorf("pattern %q is ambiguous with %q: both match some requests and neither is more specific", text, other)
		}
	}
	e.fresh[text] = &p
	e.count(text, 1)
	return nil
}

// release takes one use back.
func (e *endpoints) release(text string) { e.count(text, -1) }

func (e *endpoints) count(text string, n int) {
	if text == "" {
		return
	}
	if e.uses[text] += n; e.uses[text] <= 0 {
		delete(e.uses, text)
	}
}

// parsed is a pattern that is in use: compiled already, or parsed when it was acquired.
func (e *endpoints) parsed(text string) *Pattern {
	if i := e.patterns.index(text); i >= 0 {
		return &e.patterns.list[i]
	}
	return e.fresh[text]
}

// compile makes the patterns those that are in use now. It changes nothing when these are the same as before.
func (e *endpoints) compile() {
	var kept, fresh []Pattern
	for text := range e.uses {
		if e.patterns.index(text) >= 0 {
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
		if gone := &e.patterns.list[i]; e.uses[gone.text] == 0 {
			e.deepen(kept, gone, -1)
			delete(e.depth, gone.text)
		}
	}
	for i := range fresh {
		for j := range kept {
			if relate(&fresh[i], &kept[j]) == narrower {
				e.depth[fresh[i].text]++
			}
		}
		e.deepen(kept, &fresh[i], 1)
		kept = append(kept, fresh[i])
	}
	e.patterns = arrange(kept, e.depth)
}

// deepen counts that those of list that are narrower than p have n more patterns above them.
func (e *endpoints) deepen(list []Pattern, p *Pattern, n int) {
	for i := range list {
		if relate(&list[i], p) == narrower {
			e.depth[list[i].text] += n
		}
	}
}

// arrange compiles a list of patterns of which no two cross; depth tells how many are wider than each.
func arrange(list []Pattern, depth map[string]int) *patterns {
	set := &patterns{root: &node{}, list: list, byText: make(map[string]int, len(list))}
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
