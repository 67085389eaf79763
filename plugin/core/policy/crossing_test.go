package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPatternsThatDifferInTheNamesOfParametersMatchAsOne(t *testing.T) {
	var texts []string
	for i := range 10_000 {
		texts = append(texts, fmt.Sprintf("GET /exports/{id%d}", i), fmt.Sprintf("POST /exports/{id%d}/", i))
	}
	set, faults := CompileCrossing(texts)
	if found := set.Match("GET", "/exports/7", nil); len(faults) > 0 || len(set.list) != 2 || len(found) != 1 {
		t.Errorf("%d patterns, of which %d match (%v)", len(set.list), len(found), faults)
	}
	for _, text := range texts {
		p := set.list[set.Index(text)]
		require.True(t, p.method == strings.Fields(text)[0], "%s is found as %s", text, p.text)
	}
}

func TestPatternsThatCrossInTooManyWaysAreAFault(t *testing.T) {
	texts := allArrangements(8) // 256 patterns that match one path
	set, faults := CompileCrossing(texts)
	if len(faults) != len(texts)-maxArrangements || len(set.list) != maxArrangements {
		t.Errorf("%d of %d patterns are compiled, with %d faults", len(set.list), len(texts), len(faults))
	}
	const want = `pattern "GET /a/a/a/a/a/a/a/{x}": places its wildcards in another way than the 100 ways of the ` +
		`patterns before it: a request could match too many of them`
	_, faults = CompileCrossing(append(texts[:maxArrangements:maxArrangements], "GET /b/b", "GET /a/a/a/a/a/a/a/{x}"))
	if len(faults) != 2 || faults[maxArrangements+1].Error() != want {
		t.Errorf("the faults are %v, want %s", faults, want)
	}
}

// allArrangements returns a pattern for each choice of literals and parameters in so many segments. All match one path.
func allArrangements(segments int) []string {
	var texts []string
	for mask := range 1 << segments {
		text := "GET "
		for i := range segments {
			text += [...]string{"/a", "/{x}"}[mask>>i&1]
		}
		texts = append(texts, text)
	}
	return texts
}

func TestCrossingPatternsMatchWhatEachOfThemMatchesAlone(t *testing.T) {
	segment := rapid.SampledFrom([]string{"a", "b", "{x}", "{y}"})
	somePattern := rapid.Custom(func(t *rapid.T) string {
		text := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "*"}).Draw(t, "method") + " /" +
			strings.Join(rapid.SliceOfN(segment, 0, 3).Draw(t, "segments"), "/")
		if rapid.Bool().Draw(t, "wildcard") {
			text = strings.TrimSuffix(text, "/") + "/*"
		}
		return text
	})
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(somePattern, 0, 20).Draw(t, "patterns")
		method := rapid.SampledFrom([]string{"GET", "HEAD", "POST"}).Draw(t, "method")
		path := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 4).Draw(t, "path"), "/")
		set, faults := CompileCrossing(texts)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		found := set.Match(method, path, nil)
		for _, text := range texts {
			alone, _ := CompileCrossing([]string{text})
			if want := len(alone.Match(method, path, nil)) > 0; slices.Contains(found, set.Index(text)) != want {
				t.Fatalf("%s %s: %s matches %v alone, and not so among %q", method, path, text, want, texts)
			}
		}
	})
}

var apiPatterns = []string{
	"* /*", "* /", "GET /records", "HEAD /records", "POST /records", "GET /records/{id}", "GET /records/search",
	"* /records/{id}/*",
	"* /files/*", "GET /é", "* /%2Fraw",
}

func TestTheMostSpecificPatternMatchesFirst(t *testing.T) {
	set, faults := CompilePatterns(append(apiPatterns, "GET /records")) // one of them twice
	if len(faults) > 0 || len(set.list) != len(apiPatterns) {
		t.Fatalf("%d patterns with faults %v, want %d without", len(set.list), faults, len(apiPatterns))
	}
	tests := []struct {
		method, path string
		want         []string
	}{
		{"GET", "/", []string{"* /"}},
		{"GET", "", []string{"* /"}},
		{"GET", "/#fragment", []string{"* /"}},
		{"GET", "/records#fragment", []string{"GET /records", "* /*"}},
		{"GET", "/records/#", []string{"GET /records", "* /*"}},
		{"get", "/records", []string{"* /*"}},
		{"GET", "/RECORDS", []string{"* /*"}},
		{"GET", "/records/%2F", []string{"GET /records/{id}", "* /*"}},
		{"GET", "/files", []string{"* /*"}}, // * takes one segment or more
		{"GET", "/files/", []string{"* /*"}},
		{"GET", "/é", []string{"GET /é", "* /*"}},
		{"GET", "/%2Fraw", []string{"* /%2Fraw", "* /*"}},
		{"GET", "/{id}", []string{"* /*"}},
		// What an upstream resolves once it has cut the # off.
		{"GET", "/records/.#", []string{"GET /records", "* /*"}},
		{"GET", "/records/7/..#x", []string{"GET /records", "* /*"}},
		{"GET", "/x/..#", []string{"* /"}},
		{"GET", "/..#", []string{"* /"}},
		{"GET", "/.#", []string{"* /"}},
		{"GET", "/files/...#", []string{"* /files/*", "* /*"}},
	}
	for _, test := range tests {
		var got []string
		for _, i := range set.Match(test.method, test.path, nil) {
			got = append(got, set.list[i].text)
		}
		assert.Equal(t, test.want, got, "%s %s matches", test.method, test.path)
	}
}

func TestMatchingAppendsWithoutAllocation(t *testing.T) {
	set, _ := CompilePatterns(apiPatterns)
	found := make([]int, 1, 8)
	found[0] = 99
	for _, path := range []string{"/records/search", "/files/a/b/c/d/e", "/none#x", "/"} {
		allocations := testing.AllocsPerRun(100, func() { found = set.Match("GET", path, found[:1]) })
		if allocations != 0 || found[0] != 99 || len(found) < 2 {
			t.Errorf("match of %s: %v allocations and %v, want 0 and something after 99", path, allocations, found)
		}
	}
}

func TestOnlyPatternsThatCannotBeRankedAreAmbiguous(t *testing.T) {
	tests := []struct {
		texts []string
		want  []string // the patterns at fault
	}{
		{[]string{"GET /a/{x}", "GET /{y}/b"}, []string{"GET /{y}/b"}},
		{[]string{"GET /{x}", "* /a"}, []string{"* /a"}},
		{[]string{"GET /a/{x}", "GET /a/{y}"}, []string{"GET /a/{y}"}},
		{[]string{"GET /a", "GET /a/"}, []string{"GET /a/"}},
		{[]string{"GET /a", "GET /a"}, nil},
		{[]string{"GET /a/{x}", "POST /{y}/b", "GET /*", "* /*", "GET /a/b"}, nil},
		{
			[]string{"GET /a/{x}", "GET /{y}/b", "GET /{z}/*", "GET /a/{w}"}, []string{"GET /{y}/b", "GET /a/{w}", "GET /a/{w}"},
		},
		{[]string{"bad", "GET /ok", "GET /a*"}, []string{"bad", "GET /a*"}},
	}
	for _, test := range tests {
		_, faults := CompilePatterns(test.texts)
		var got []string
		for _, fault := range faults {
			got = append(got, fault.Text)
		}
		assert.Equal(t, test.want, got, "of %q at fault", test.texts)
	}
}
