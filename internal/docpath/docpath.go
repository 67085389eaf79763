// Package docpath spells the paths of values in a config document, for packages that report faults.
package docpath

import (
	"strconv"
	"strings"
)

// ShownBytes bounds the part of an input that a path or a message quotes.
const ShownBytes = 64

// Item returns the path of the i-th item of the array at path.
func Item(path string, i int) string {
	return path + "[" + strconv.Itoa(i) + "]"
}

// Member returns the path of a key of the object at path: .key for a plain word, else quoted as in costs["POST
// /search"].
func Member(path, key string) string {
	if !plainWord(key) {
		return path + "[" + strconv.Quote(Shorten(key)) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Join returns the path from the root for a path inner that is relative to outer.
func Join(outer, inner string) string {
	if outer == "" || inner == "" || inner[0] == '[' {
		return outer + inner
	}
	return outer + "." + inner
}

// Find returns the place of path, or of its longest prefix that has a place: a missing field has the place of its
// parent.
func Find(places map[string]int, path string) (int, bool) {
	for {
		if place, ok := places[path]; ok {
			return place, true
		}
		if path == "" {
			return 0, false
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

// Shorten cuts s to the length that a message may quote.
func Shorten(s string) string {
	if len(s) <= ShownBytes {
		return s
	}
	return s[:ShownBytes] + "…"
}

func plainWord(key string) bool {
	for _, c := range []byte(key) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '_' && c != '-' && c != '$' {
			return false
		}
	}
	return key != "" && len(key) <= ShownBytes
}
