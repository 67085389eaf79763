package main

import (
	"strings"
	"unicode"
)

// notes holds the remarks about benchmarks.
type notes struct {
	preface  []string
	sections map[string]section // by the benchmark's name
}

// section is what is said about one benchmark.
type section struct{ title, text string }

// add reads one notes file.
func (n *notes) add(text string) {
	parts := strings.Split("\n"+text, "\n## ")
	if preface := strings.TrimSpace(parts[0]); preface != "" {
		n.preface = append(n.preface, preface)
	}
	for _, part := range parts[1:] {
		heading, rest, _ := strings.Cut(part, "\n")
		name, title, _ := strings.Cut(strings.TrimSpace(heading), " ")
		n.sections[name] = section{title, strings.TrimSpace(rest)}
	}
}

// of is what is said about a benchmark. One without a title is called by its name in words.
func (n *notes) of(benchmark string) section {
	s := n.sections[benchmark]
	if s.title == "" {
		s.title = words(strings.TrimPrefix(benchmark, "Benchmark"))
	}
	return s
}

// words is a name of words that begin with capitals as a title: HotKey is "Hot key", HTTPOverSocket "HTTP over socket".
func words(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		ordinary := i+1 < len(runes) && unicode.IsLower(runes[i+1]) // not one of a row of capitals
		if i > 0 && unicode.IsUpper(r) && (ordinary || !unicode.IsUpper(runes[i-1])) {
			b.WriteRune(' ')
			if ordinary {
				r = unicode.ToLower(r)
			}
		}
		b.WriteRune(r)
	}
	return b.String()
}
