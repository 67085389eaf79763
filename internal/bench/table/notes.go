package main

import (
	"strings"
	"unicode"
)

// notes holds the texts of notes files.
type notes struct {
	preface  []string
	sections map[string]section // by the benchmark's name
}

// section is the text about one benchmark.
type section struct{ title, text string }

// add reads one notes file.
func (n *notes) add(text string) {
	parts := strings.Split("\n"+text, "\n## ")
	if preface := strings.TrimSpace(parts[0]); preface != "" {
		n.preface = append(n.preface, preface)
	}
	for _, part := range parts[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		name, title, _ := strings.Cut(strings.TrimSpace(heading), " ")
		n.sections[name] = section{title, strings.TrimSpace(body)}
	}
}

// section returns the text about a benchmark. Without a title its name in words is the title.
func (n *notes) section(benchmark string) section {
	s := n.sections[benchmark]
	if s.title == "" {
		s.title = words(strings.TrimPrefix(benchmark, "Benchmark"))
	}
	return s
}

// words returns a camel-case name as a title: "Hot key" for HotKey, "HTTP over socket" for HTTPOverSocket.
func words(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		ordinary := i+1 < len(runes) && unicode.IsLower(runes[i+1]) // the first letter of a word, not of an abbreviation
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
