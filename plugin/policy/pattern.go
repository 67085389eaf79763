package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
)

// Pattern is a parsed endpoint pattern: METHOD /path/{param}/*. The method is upper case, or * for any. {param}
// matches one segment, a final * one or more. A trailing slash of a request's path is ignored, and GET covers HEAD,
// so that neither evades a limit.
type Pattern struct {
	text     string
	method   string   // "" for any
	segments []string // "{}" for a parameter; a final "*" for the rest
}

const (
	anySegment = "{}"
	rest       = "*"
)

// ParsePattern parses one endpoint pattern. Its path must be written as the gateway's router normalises it.
func ParsePattern(text string) (Pattern, error) {
	method, path, ok := strings.Cut(text, " ")
	if !ok || method == "" || !strings.HasPrefix(path, "/") {
		return Pattern{}, fmt.Errorf("pattern %q: must be METHOD /path, with * for any method", text)
	}
	p := Pattern{text: text, method: method}
	if method == rest {
		p.method = ""
	} else if strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != "" {
		return Pattern{}, fmt.Errorf("pattern %q: the method must be upper case letters, or * for any", text)
	}
	trimmed := strings.Trim(path, "/")
	if trimmed == "" {
		return p, nil
	}
	for segment := range strings.SplitSeq(trimmed, "/") {
		if err := p.add(segment); err != nil {
			return Pattern{}, fmt.Errorf("pattern %q: %w", text, err)
		}
	}
	if normal := identity.NormalizePath(path); normal != path {
		return Pattern{}, fmt.Errorf("pattern %q: no request has this path once the router has normalised it: write %s", text, normal)
	}
	return p, nil
}

func (p *Pattern) add(segment string) error {
	if n := len(p.segments); n > 0 && p.segments[n-1] == rest {
		return errors.New("* must be the last segment")
	}
	switch {
	case segment == rest:
	case strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}") && !strings.ContainsAny(segment[1:len(segment)-1], "{}"):
		segment = anySegment
	case segment == "", segment == ".", segment == "..":
		return fmt.Errorf("segment %q is never seen: write the path without empty and dot segments", segment)
	case strings.ContainsAny(segment, "{}*?# "):
		return fmt.Errorf("segment %q: a parameter is a whole segment {name}, and * stands alone at the end", segment)
	}
	p.segments = append(p.segments, segment)
	return nil
}

func (p *Pattern) String() string { return p.text }

// overlap says how the requests of two patterns relate.
type overlap int

const (
	disjoint overlap = iota
	same
	narrower // every request of the first is one of the second, but not the reverse
	wider
	crossing // some requests are in both, and each has some of its own: which is more specific cannot be said
)

// with joins the relation of two parts (method, segments) into the relation of the whole.
func (o overlap) with(other overlap) overlap {
	switch {
	case o == disjoint || other == disjoint:
		return disjoint
	case o == same || o == other:
		return other
	case other == same:
		return o
	}
	return crossing
}

// relate compares the sets of requests that a and b match.
func relate(a, b *Pattern) overlap {
	result := same
	switch {
	case a.method == b.method:
	case a.method == "":
		result = wider
	case b.method == "":
		result = narrower
	case a.method == "GET" && b.method == "HEAD": // GET covers HEAD
		result = wider
	case a.method == "HEAD" && b.method == "GET":
		result = narrower
	default:
		return disjoint
	}
	for i := 0; ; i++ {
		x, y := segmentAt(a, i), segmentAt(b, i)
		if x == "" && y == "" {
			return result
		}
		part := relateSegment(x, y)
		result = result.with(part)
		if result == disjoint || x == rest || y == rest {
			return result
		}
	}
}

// Overlap reports whether one request can match both endpoint patterns. "" matches every request, and a text that is no
// pattern none.
func Overlap(a, b string) bool {
	if a == "" || b == "" {
		return true
	}
	x, err := ParsePattern(a)
	if err != nil {
		return false
	}
	y, err := ParsePattern(b)
	return err == nil && relate(&x, &y) != disjoint
}

func segmentAt(p *Pattern, i int) string {
	if i < len(p.segments) {
		return p.segments[i]
	}
	return ""
}

func relateSegment(x, y string) overlap {
	switch {
	case x == y:
		return same
	case x == "" || y == "":
		return disjoint
	case x == rest:
		return wider
	case y == rest:
		return narrower
	case x == anySegment:
		return wider
	case y == anySegment:
		return narrower
	}
	return disjoint
}

// patterns is a set of patterns compiled into a tree, so that matching takes one walk over the path and allocates
// nothing. Patterns are known by their index in list, most specific first.
type patterns struct {
	list   []Pattern
	byText map[string]int
	root   *node
}

// maxPatterns bounds the patterns of a config, which are compared pair by pair.
const maxPatterns = 2000

// node is the place reached after some segments.
type node struct {
	literals map[string]*node
	param    *node
	ends     []methodEnd // patterns whose path ends here
	rests    []methodEnd // patterns that end in * here
}

type methodEnd struct {
	method string
	index  int
}

// patternFault is what is wrong with a pattern, or with the pair that it makes with an earlier one.
type patternFault struct {
	text string
	err  error
}

// compilePatterns parses and sorts texts (of which equal ones count once). The faults tell every pattern that cannot
// be parsed and every pair of which neither is more specific.
func compilePatterns(texts []string) (*patterns, []patternFault) {
	set := &patterns{root: &node{}, byText: make(map[string]int, len(texts))}
	var faults []patternFault
	if len(texts) > maxPatterns {
		return set, []patternFault{{texts[maxPatterns], fmt.Errorf("a config has at most %d endpoint patterns, this one has %d", maxPatterns, len(texts))}}
	}
	for _, text := range texts {
		if _, known := set.byText[text]; known {
			continue
		}
		p, err := ParsePattern(text)
		if err != nil {
			faults = append(faults, patternFault{text, err})
			continue
		}
		for i := range set.list {
			if o := relate(&p, &set.list[i]); o == crossing || o == same {
				faults = append(faults, patternFault{text, fmt.Errorf("pattern %q is ambiguous with %q: both match some requests and neither is more specific", text, set.list[i].text)})
			}
		}
		set.byText[text] = len(set.list)
		set.list = append(set.list, p)
	}
	set.sort()
	for i := range set.list {
		set.byText[set.list[i].text] = i
		set.root.insert(&set.list[i], i)
	}
	return set, faults
}

// sort puts every pattern before those that are wider. Specificity is a partial order, so each pattern is placed
// by how many others are wider than it.
func (s *patterns) sort() {
	depth := make(map[string]int, len(s.list))
	for i := range s.list {
		for j := range s.list {
			if relate(&s.list[i], &s.list[j]) == narrower {
				depth[s.list[i].text]++
			}
		}
	}
	slices.SortStableFunc(s.list, func(a, b Pattern) int {
		if d := depth[b.text] - depth[a.text]; d != 0 {
			return d
		}
		return strings.Compare(a.text, b.text)
	})
}

// index is the index of a pattern by its text; -1 when it is not in the set.
func (s *patterns) index(text string) int {
	if i, ok := s.byText[text]; ok {
		return i
	}
	return -1
}

func (n *node) insert(p *Pattern, index int) {
	for _, segment := range p.segments {
		switch segment {
		case rest:
			n.rests = append(n.rests, methodEnd{p.method, index})
			return
		case anySegment:
			if n.param == nil {
				n.param = &node{}
			}
			n = n.param
		default:
			if n.literals == nil {
				n.literals = map[string]*node{}
			}
			next := n.literals[segment]
			if next == nil {
				next = &node{}
				n.literals[segment] = next
			}
			n = next
		}
	}
	n.ends = append(n.ends, methodEnd{p.method, index})
}

// match appends to found the indices of all patterns that match, most specific (lowest) first. The path must be
// normalised; what follows a # is not looked at, because an upstream would not either.
func (s *patterns) match(method, path string, found []int) []int {
	if len(s.list) == 0 {
		return found
	}
	if i := strings.IndexByte(path, '#'); i >= 0 {
		path = withoutFinalDots(path[:i])
	}
	start := len(found)
	found = s.root.collect(method, strings.Trim(path, "/"), found)
	slices.Sort(found[start:])
	return found
}

// withoutFinalDots resolves a dot segment at the end of a path, which normalisation leaves where a # follows it: an
// upstream that cuts the # off resolves it. Before the end there is none.
func withoutFinalDots(path string) string {
	if strings.HasSuffix(path, "/.") {
		return path[:len(path)-1]
	}
	if parent, ok := strings.CutSuffix(path, "/.."); ok {
		return path[:strings.LastIndexByte(parent, '/')+1]
	}
	return path
}

func (n *node) collect(method, path string, found []int) []int {
	if path == "" {
		return appendEnds(n.ends, method, found)
	}
	found = appendEnds(n.rests, method, found)
	segment, remaining, _ := strings.Cut(path, "/")
	if next := n.literals[segment]; next != nil {
		found = next.collect(method, remaining, found)
	}
	if n.param != nil {
		found = n.param.collect(method, remaining, found)
	}
	return found
}

func appendEnds(ends []methodEnd, method string, found []int) []int {
	for _, end := range ends {
		if end.method == "" || end.method == method || (end.method == "GET" && method == "HEAD") {
			found = append(found, end.index)
		}
	}
	return found
}
