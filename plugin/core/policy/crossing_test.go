package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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
		if p := set.list[set.Index(text)]; p.method != strings.Fields(text)[0] {
			t.Fatalf("%s is found as %s", text, p.text)
		}
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
