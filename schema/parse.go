package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Check finds faults that this package cannot see, because they need more than the schema (arithmetic, patterns). It
// gets the config as far as it could be understood, which may have other faults, and returns Faults.
type Check func(Config) error

// Parse reads a config as Kong hands it to the plugin: JSON, possibly with nulls for absent values, {} for an empty
// array, 86400.0 or 1e+15 for an integer, and the keys that Kong adds of its own. Defaults are filled in.
//
// The error, if any, is of type Faults and holds every fault, those of the checks included; the Config is then the
// zero value, and there are no warnings, because those about a faulty config would be guesses.
func Parse(raw []byte, checks ...Check) (Config, []Warning, error) {
	document, faults := decodeDocument(raw)
	if document == nil {
		return Config{}, nil, Faults(faults)
	}
	config, found, order := examine(document)
	faults = append(faults, found...)
	for _, check := range checks {
		faults = appendNew(faults, check(config))
	}
	if len(faults) > 0 {
		inDocumentOrder(faults, func(f Fault) string { return f.Path }, order)
		return Config{}, nil, Faults(faults)
	}
	warnings := config.Warnings()
	inDocumentOrder(warnings, func(w Warning) string { return w.Path }, order)
	return config, warnings, nil
}

// appendNew appends the faults of err, but not those about a value that is known to be faulty: they would be but
// consequences.
func appendNew(faults []Fault, err error) []Fault {
	if err == nil {
		return faults
	}
	var found Faults
	if !errors.As(err, &found) {
		return append(faults, Fault{Message: err.Error()})
	}
	known := faults
	for _, f := range found {
		about := func(k Fault) bool {
			rest, ok := strings.CutPrefix(k.Path, f.Path)
			return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
		}
		if !slices.ContainsFunc(known, about) {
			faults = append(faults, f)
		}
	}
	return faults
}

// Validate reports all faults of c as an error of type Faults, as Parse does. A zero field that has a default counts as
// absent, so a Config built in Go need not spell its defaults out; booleans mean what they say.
func (c Config) Validate() error {
	document := c.document()
	_, faults, order := examine(document)
	if len(faults) == 0 {
		return nil
	}
	inDocumentOrder(faults, func(f Fault) string { return f.Path }, order)
	return Faults(faults)
}

// WithDefaults returns c with the default in every zero field that has one, booleans excepted: false stays false.
// Values that are at fault stay as they are.
func (c Config) WithDefaults() Config {
	config, _, _ := examine(c.document())
	return config
}

func (c Config) document() *node {
	raw, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("schema: a Config cannot be encoded: %v", err)) // it holds only strings, integers and booleans
	}
	document, _ := decodeDocument(raw)
	return document
}

// examine checks document against the Kong schema and beyond, fills in the defaults, and decodes it. The faults are not
// yet sorted; order is what they are to be sorted by. The Config holds what could be understood.
func examine(document *node) (Config, []Fault, map[string]int) {
	order := pathOrder(document)
	c := checker{faulty: map[string]bool{}}
	if !c.value(configField(), document, "") {
		return Config{}, c.faults, order
	}
	var config Config
	if err := json.Unmarshal(document.appendJSON(nil), &config); err != nil {
		return Config{}, append(c.faults, Fault{"", fmt.Sprintf("decode checked config: %v", err)}), order
	}
	faults := c.faults
	for _, f := range config.semanticFaults() {
		if !c.faulty[f.Path] { // else it is but a consequence
			faults = append(faults, f)
		}
	}
	return config, faults, order
}
