package policy

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// maxArrangements bounds the arrangements of wildcards in a set of patterns that may cross. Of the patterns with one
// method and one arrangement, a request matches at most one. So the bound limits what a request can match, and the
// nodes that a walk visits at each segment, however many patterns there are.
const maxArrangements = 100

// CompileCrossing compiles patterns in the order of texts ("" is none). Unlike patterns of CompilePatterns they may
// cross, and those that match are in no order. Patterns that differ in the names of parameters alone count as one. The
// errors are by index in texts.
func CompileCrossing(texts []string) (*Patterns, map[int]error) {
	set := &Patterns{root: &node{}, byText: map[string]int{}}
	faults := map[int]error{}
	indices := map[string]int{} // of patterns, by what they match
	arrangements := map[string]bool{}
	for i, text := range texts {
		if _, repeated := set.byText[text]; repeated || text == "" {
			continue
		}
		p, err := ParsePattern(text)
		if err != nil {
			faults[i] = err
			continue
		}
		matched := p.method + "/" + strings.Join(p.segments, "/")
		if index, repeated := indices[matched]; repeated {
			set.byText[text] = index
			continue
		}
		if arrangements[p.arrangement()] = true; len(arrangements) > maxArrangements {
			faults[i] = fmt.Errorf("pattern %q: places its wildcards in another way than the %d ways of the patterns before "+
				"it: a request could match too many of them", text, maxArrangements)
			continue
		}
		indices[matched], set.byText[text] = len(set.list), len(set.list)
		set.root.insert(&p, len(set.list))
		set.list = append(set.list, p)
	}
	return set, faults
}

// arrangement returns the number of segments of p, and which of them are wildcards.
func (p *Pattern) arrangement() string {
	kinds := make([]byte, len(p.segments))
	for i, segment := range p.segments {
		switch kinds[i] = '/'; segment {
		case anySegment, wildcard:
			kinds[i] = segment[0]
		}
	}
	return string(kinds)
}

var errAmbiguousPath = errors.New(`matches no request: a path with %, \, ; or # in it is never exempt, because ` +
	`upstreams read it differently`)

// CheckExemptable returns why requests to an endpoint cannot be exempt, or nil if they can.
func CheckExemptable(pattern string) error {
	if _, path, _ := strings.Cut(pattern, " "); !isPlain(path) {
		return errAmbiguousPath
	}
	return nil
}

// IsUnambiguous reports whether all upstreams read a normalised path alike. Some decode what is still escaped, take a
// backslash for a slash, cut off what follows a semicolon, or trim control characters: to them such a path may be that
// of another endpoint.
func IsUnambiguous(id *identity.Identity) bool { return !id.PathDecoded && isPlain(id.Path) }

// isPlain reports whether a path has nothing that upstreams read in different ways.
func isPlain(path string) bool {
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c == 0x7f || c == '%' || c == '\\' || c == ';' || c == '#' {
			return false
		}
	}
	return utf8.ValidString(path) // no overlong slash
}
