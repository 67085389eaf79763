package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAPatternIsMethodAndPath(t *testing.T) {
	tests := []struct {
		text     string
		method   string
		segments []string
	}{
		{"GET /", "GET", nil},
		{"* /", "", nil},
		{"GET /records", "GET", []string{"records"}},
		{"GET /records/", "GET", []string{"records"}},
		{"M-SEARCH /a_b/c.d/~e", "M-SEARCH", []string{"a_b", "c.d", "~e"}},
		{"POST /records/{id}", "POST", []string{"records", "{}"}},
		{"POST /{a}/{b-c}/{}", "POST", []string{"{}", "{}", "{}"}},
		{"* /files/*", "", []string{"files", "*"}},
		{"* /*", "", []string{"*"}},
		{"GET /a/é/...", "GET", []string{"a", "é", "..."}},
		{"GET /a%2Fb", "GET", []string{"a%2Fb"}},
	}
	for _, test := range tests {
		p, err := ParsePattern(test.text)
		if err != nil || p.method != test.method || !slices.Equal(p.segments, test.segments) || p.String() != test.text {
			t.Errorf("ParsePattern(%q) = %q %q, %v, want %q %q",
				test.text, p.method, p.segments, err, test.method, test.segments)
		}
	}
}

func TestAPatternThatCannotMatchIsAFaultWithItsReason(t *testing.T) {
	tests := []struct{ text, reason string }{
		{"", "must be METHOD /path"},
		{"GET", "must be METHOD /path"},
		{"/records", "must be METHOD /path"},
		{" /records", "must be METHOD /path"},
		{"GET records", "must be METHOD /path"},
		{"GET  /records", "must be METHOD /path"},
		{"GET http://host/records", "must be METHOD /path"},
		{"get /records", "the method must be upper case"},
		{"GET,POST /records", "the method must be upper case"},
		{"** /records", "the method must be upper case"},
		{"GET /a//b", `segment "" is never seen`},
		{"GET /a/./b", `segment "." is never seen`},
		{"GET /a/..", `segment ".." is never seen`},
		{"GET /a/*/b", "* must be the last segment"},
		{"GET /*/*", "* must be the last segment"},
		{"GET /a*", `segment "a*": a parameter is a whole segment`},
		{"GET /**", `segment "**": a parameter is a whole segment`},
		{"GET /a{id}", `segment "a{id}": a parameter is a whole segment`},
		{"GET /{a}{b}", `segment "{a}{b}": a parameter is a whole segment`},
		{"GET /{id", `segment "{id": a parameter is a whole segment`},
		{"GET /a?b", `segment "a?b": a parameter is a whole segment`},
		{"GET /a#b", `segment "a#b": a parameter is a whole segment`},
		{"GET /a b", `segment "a b": a parameter is a whole segment`},
		{"GET //records", "write /records"},
		{"GET /%72ecords", "write /records"},
		{"GET /a%2fb", "write /a%2Fb"},
	}
	for _, test := range tests {
		_, err := ParsePattern(test.text)
		if err == nil || !strings.Contains(err.Error(), test.reason) ||
			!strings.Contains(err.Error(), fmt.Sprintf("%q", test.text)) {
			t.Errorf("ParsePattern(%q): %v, want the pattern and %q", test.text, err, test.reason)
		}
	}
}

func mustParse(t interface{ Fatalf(string, ...any) }, text string) *Pattern {
	p, err := ParsePattern(text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &p
}

func TestNoPatternMeansEveryRequestAndATextThatIsNoneNoRequest(t *testing.T) {
	if !Overlap("", "GET /a") || !Overlap("GET /a", "") || !Overlap("", "") {
		t.Error("an endpoint that is not given overlaps with no pattern")
	}
	if Overlap("records", "GET /a") || Overlap("GET /a", "records") {
		t.Error("a text that is no pattern overlaps with one")
	}
}

// matchesNaively reports whether a pattern matches, without a tree: segment by segment.
func matchesNaively(pattern, method, path string) bool {
	patternMethod, patternPath, _ := strings.Cut(pattern, " ")
	switch {
	case patternMethod == "*", patternMethod == method, patternMethod == "GET" && method == "HEAD":
	default:
		return false
	}
	path, _, _ = strings.Cut(path, "#")
	want := strings.FieldsFunc(patternPath, func(r rune) bool { return r == '/' })
	have := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	for i, segment := range want {
		switch {
		case segment == "*":
			return len(have) > i
		case i >= len(have), segment[0] != '{' && segment != have[i]:
			return false
		}
	}
	return len(have) == len(want)
}

var (
	somePattern = rapid.Custom(func(t *rapid.T) string {
		method := rapid.SampledFrom([]string{"*", "GET", "HEAD", "POST"}).Draw(t, "method")
		segments := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "{x}", "{y}"}), 0, 3).Draw(t, "segments")
		if len(segments) < 3 && rapid.Bool().Draw(t, "rest") {
			segments = append(segments, "*")
		}
		return method + " /" + strings.Join(segments, "/") + rapid.SampledFrom([]string{"", "/"}).Draw(t, "slash")
	}).Filter(func(text string) bool { return !strings.HasSuffix(text, "//") })

	// universe is enough requests to distinguish any two of somePattern: a method and a segment that no pattern
	// names, and paths longer than any pattern.
	universe = func() (requests [][2]string) {
		paths := []string{"/"}
		for from, depth := 0, 0; depth < 4; depth++ {
			to := len(paths)
			for _, parent := range paths[from:to] {
				for _, segment := range []string{"a", "b", "c"} {
					paths = append(paths, strings.TrimSuffix(parent, "/")+"/"+segment)
				}
			}
			from = to
		}
		for _, method := range []string{"GET", "HEAD", "POST", "PUT"} {
			for _, path := range paths {
				requests = append(requests, [2]string{method, path})
			}
		}
		return requests
	}()
)

func TestTheRelationIsThatOfTheSetsOfRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := somePattern.Draw(t, "a"), somePattern.Draw(t, "b")
		var onlyA, onlyB, both bool
		for _, r := range universe {
			inA, inB := matchesNaively(a, r[0], r[1]), matchesNaively(b, r[0], r[1])
			onlyA, onlyB, both = onlyA || inA && !inB, onlyB || inB && !inA, both || inA && inB
		}
		want := crossing
		switch {
		case !both:
			want = disjoint
		case !onlyA && !onlyB:
			want = same
		case !onlyA:
			want = narrower
		case !onlyB:
			want = wider
		}
		got := relate(mustParse(t, a), mustParse(t, b))
		require.True(t, got == want, "%s is %d to %s, want %d", a, got, b, want)
		require.Equal(t, both, Overlap(a, b), "a request can match both %s and %s: %t", a, b, both)
	})
}

func TestTheTreeAgreesWithANaiveMatcher(t *testing.T) {
	somePath := rapid.Custom(func(t *rapid.T) string {
		segments := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "{x}", "*", "a#b"}), 0, 5).Draw(t, "segments")
		path := "/" + strings.Join(segments, "/")
		if len(segments) > 0 && rapid.Bool().Draw(t, "slash") {
			path += "/"
		}
		return path
	})
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(somePattern, 0, 12).Draw(t, "patterns")
		method := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT", "", "get"}).Draw(t, "method")
		path := somePath.Draw(t, "path")
		set, _ := CompilePatterns(texts)
		found := set.Match(method, path, nil)
		require.True(t, slices.IsSorted(found), "found %v, which is not in order", found)
		for i := range set.list {
			text := set.list[i].text
			got, want := slices.Contains(found, i), matchesNaively(text, method, path)
			require.True(t, got == want, "%s matches %s %s: %v, want %v (of %q)", text, method, path, got, want, texts)
			for j := range i {
				if relate(&set.list[j], &set.list[i]) == wider {
					t.Fatalf("%s stands before %s, which is more specific", set.list[j].text, text)
				}
			}
		}
	})
}
