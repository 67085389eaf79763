package fromkong

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"sync"

	"gopkg.in/yaml.v3"
)

// Difference names a way in which a converted config does not work as before, as in differences.yml.
type Difference string

// Text describes a difference.
type Text struct {
	ID    Difference `json:"id"`
	What  string     `json:"what"`            // in a few words
	Kong  string     `json:"kong,omitempty"`  // what Kong's plugin does
	Envoy string     `json:"envoy,omitempty"` // what envoyproxy/ratelimit does, if the config is one of it
	Here  string     `json:"here"`            // what this plugin does, and what to set for something else
}

//go:embed differences.yml
var differencesFile []byte

// Differences returns the texts of all differences, in the order of reports.
var Differences = sync.OnceValue(func() []Text { return ParseDifferences(differencesFile) })

// ParseDifferences parses a file of differences that the program contains.
func ParseDifferences(file []byte) (texts []Text) {
	decoder := yaml.NewDecoder(bytes.NewReader(file))
	decoder.KnownFields(true)
	if err := decoder.Decode(&texts); err != nil {
		panic(fmt.Sprintf("fromkong: differences.yml: %v", err))
	}
	return texts
}

func (e *entry) differs(ids ...Difference) {
	for _, id := range ids {
		if !slices.ContainsFunc(Differences(), func(t Text) bool { return t.ID == id }) {
			panic(fmt.Sprintf("fromkong: differences.yml lacks %s", id))
		}
		if !slices.Contains(e.differences, id) {
			e.differences = append(e.differences, id)
		}
	}
}
