package policy

import (
	"slices"
	"testing"
)

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
		{"GET", "/records", []string{"GET /records", "* /*"}},
		{"GET", "/records/", []string{"GET /records", "* /*"}},
		{"GET", "/records#fragment", []string{"GET /records", "* /*"}},
		{"GET", "/records/#", []string{"GET /records", "* /*"}},
		{"HEAD", "/records", []string{"HEAD /records", "GET /records", "* /*"}},
		{"POST", "/records", []string{"POST /records", "* /*"}},
		{"PUT", "/records", []string{"* /*"}},
		{"get", "/records", []string{"* /*"}},
		{"GET", "/RECORDS", []string{"* /*"}},
		{"GET", "/records/search", []string{"GET /records/search", "GET /records/{id}", "* /*"}},
		{"HEAD", "/records/search", []string{"GET /records/search", "GET /records/{id}", "* /*"}},
		{"GET", "/records/7", []string{"GET /records/{id}", "* /*"}},
		{"GET", "/records/7/", []string{"GET /records/{id}", "* /*"}},
		{"GET", "/records/%2F", []string{"GET /records/{id}", "* /*"}},
		{"DELETE", "/records/7/parts/1", []string{"* /records/{id}/*", "* /*"}},
		{"GET", "/files", []string{"* /*"}}, // * takes one segment or more
		{"GET", "/files/", []string{"* /*"}},
		{"GET", "/files/a", []string{"* /files/*", "* /*"}},
		{"GET", "/files/a/b/c", []string{"* /files/*", "* /*"}},
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
		if !slices.Equal(got, test.want) {
			t.Errorf("%s %s matches %q, want %q", test.method, test.path, got, test.want)
		}
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
		if !slices.Equal(got, test.want) {
			t.Errorf("of %q at fault are %q, want %q", test.texts, got, test.want)
		}
	}
}
