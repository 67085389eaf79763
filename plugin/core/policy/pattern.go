package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// Pattern holds a parsed endpoint pattern: METHOD /path/{param}/*. The method is upper case, or * for any. {param}
// matches one segment, a final * one or more. A trailing slash of a request's path is ignored, and GET covers HEAD:
// neither evades a limit.
type Pattern struct {
	text     string
	method   string   // "" for any
	segments []string // "{}" for a parameter; a final "*" for all further segments
}

const (
	anySegment = "{}"
	wildcard   = "*"
)

// ParsePattern parses one endpoint pattern. The path must be in the form to which the gateway's router normalises it.
func ParsePattern(text string) (Pattern, error) {
	method, path, ok := strings.Cut(text, " ")
	if !ok || method == "" || !strings.HasPrefix(path, "/") {
		return Pattern{}, fmt.Errorf("pattern %q: must be METHOD /path, with * for any method", text)
	}
	p := Pattern{text: text, method: method}
	if method == wildcard {
		p.method = ""
	} else if strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != "" {
		return Pattern{}, fmt.Errorf("pattern %q: the method must be upper case letters, or * for any", text)
	}
	trimmed := strings.Trim(path, "/")
	if trimmed == "" {
		return p, nil
	}
	for segment := range strings.SplitSeq(trimmed, "/") {
		if err := p.addSegment(segment); err != nil {
			return Pattern{}, fmt.Errorf("pattern %q: %w", text, err)
		}
	}
	if normal := identity.NormalizePath(path); normal != path {
		return Pattern{}, fmt.Errorf("pattern %q: the router normalises this path: write %s", text, normal)
	}
	return p, nil
}

func (p *Pattern) addSegment(segment string) error {
	if n := len(p.segments); n > 0 && p.segments[n-1] == wildcard {
		return errors.New("* must be the last segment")
	}
	switch {
	case segment == wildcard:
	case isParameter(segment):
		segment = anySegment
	case segment == "", segment == ".", segment == "..":
		return fmt.Errorf("segment %q is never seen: write the path without empty and dot segments", segment)
	case strings.ContainsAny(segment, "{}*?# "):
		return fmt.Errorf("segment %q: a parameter is a whole segment {name}, and * stands alone at the end", segment)
	}
	p.segments = append(p.segments, segment)
	return nil
}

// isParameter reports whether a segment is {name}.
func isParameter(segment string) bool {
	name, opened := strings.CutPrefix(segment, "{")
	name, closed := strings.CutSuffix(name, "}")
	return opened && closed && !strings.ContainsAny(name, "{}")
}

func (p *Pattern) String() string { return p.text }

// overlap describes how the requests of two patterns relate.
type overlap int

const (
	disjoint overlap = iota
	same
	narrower // every request of the first is one of the second, but not the reverse
	wider
	crossing // some requests are in both, and each has some of its own: neither is more specific
)

// combine joins the relation of two parts (method, segments) into the relation of the whole.
func (o overlap) combine(other overlap) overlap {
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
		x, y := segmentOf(a, i), segmentOf(b, i)
		if x == "" && y == "" {
			return result
		}
		part := relateSegment(x, y)
		result = result.combine(part)
		if result == disjoint || x == wildcard || y == wildcard {
			return result
		}
	}
}

// Overlap reports whether one request can match both endpoint patterns. "" matches every request; a text that does not
// parse matches none.
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

func segmentOf(p *Pattern, i int) string {
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
	case x == wildcard:
		return wider
	case y == wildcard:
		return narrower
	case x == anySegment:
		return wider
	case y == anySegment:
		return narrower
	}
	return disjoint
}

// Patterns holds a set of patterns compiled into a tree. Matching takes one walk over the path and allocates nothing.
// A pattern is identified by its index in list, most specific first.
type Patterns struct {
	list   []Pattern
	byText map[string]int
	root   *node
}

// maxPatterns bounds the patterns of a config, which are compared pair by pair.
const maxPatterns = 2000

// node holds what follows after some segments of a path.
type node struct {
	literals  map[string]*node
	param     *node
	ends      []methodEnd // patterns whose path ends here
	wildcards []methodEnd // patterns that end in * here
}

type methodEnd struct {
	method string
	index  int
}

// PatternFault holds what is wrong with a pattern, or with the pair of it and an earlier one.
type PatternFault struct {
	Text string
	Err  error
}

// CompilePatterns parses and sorts texts (equal ones count once). It returns a fault for every pattern that does not
// parse, and for every pair of which neither is more specific.
func CompilePatterns(texts []string) (*Patterns, []PatternFault) {
	if len(texts) > maxPatterns {
		err := fmt.Errorf("a config has at most %d endpoint patterns, this one has %d", maxPatterns, len(texts))
		return compileSorted(nil, nil), []PatternFault{{texts[maxPatterns], err}}
	}
	var list []Pattern
	var faults []PatternFault
	depth := make(map[string]int, len(texts)) // how many others are wider
	for _, text := range texts {
		if _, repeated := depth[text]; repeated {
			continue
		}
		p, err := ParsePattern(text)
		if err != nil {
			faults = append(faults, PatternFault{text, err})
			continue
		}
		depth[text] = 0
		for i := range list {
			switch relate(&p, &list[i]) {
			case crossing, same:
				faults = append(faults, PatternFault{text, ambiguous(text, list[i].text)})
			case narrower:
				depth[text]++
			case wider:
				depth[list[i].text]++
			}
		}
		list = append(list, p)
	}
	return compileSorted(list, depth), faults
}

// ambiguous returns the error for two patterns of which neither is more specific.
func ambiguous(a, b string) error {
	return fmt.Errorf("pattern %q is ambiguous with %q: both match some requests and neither is more specific", a, b)
}

// Len returns the number of patterns.
func (s *Patterns) Len() int { return len(s.list) }

// Text returns the pattern with an index.
func (s *Patterns) Text(i int) string { return s.list[i].text }

// IsNarrower reports whether pattern i is more specific than pattern j of another set.
func (s *Patterns) IsNarrower(i int, other *Patterns, j int) bool {
	return relate(&s.list[i], &other.list[j]) == narrower
}

// Index returns the index of a pattern by its text, or -1 for one that is not in the set.
func (s *Patterns) Index(text string) int {
	if i, ok := s.byText[text]; ok {
		return i
	}
	return -1
}

func (n *node) insert(p *Pattern, index int) {
	for _, segment := range p.segments {
		switch segment {
		case wildcard:
			n.wildcards = append(n.wildcards, methodEnd{p.method, index})
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

// Match appends to found the indices of all patterns that match, most specific (lowest) first. The path must be
// normalised. Match ignores what follows a #, as upstreams do.
func (s *Patterns) Match(method, path string, found []int) []int {
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

// withoutFinalDots resolves a dot segment at the end of a path. Normalisation leaves one there before a #, and an
// upstream that cuts the # off resolves it. Normalisation has resolved all others.
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
	found = appendEnds(n.wildcards, method, found)
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
