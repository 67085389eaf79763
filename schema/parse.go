package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Check finds faults that need more than the schema, such as arithmetic or patterns, and returns Faults. Its config may
// have other faults, and lacks the values that cannot be decoded.
type Check func(Config) error

// Parse decodes a config from Kong and fills in defaults. The JSON may have null for an absent value, {} for an empty
// array, 86400.0 or 1e+15 for an integer, and keys that Kong adds.
//
// An error is of type Faults and holds all faults, including those of the checks. Then the Config is the zero value,
// and there are no warnings.
func Parse(raw []byte, checks ...Check) (Config, []Warning, error) {
	return parse(raw, checks, checker{faulty: map[string]bool{}})
}

// ParseNew decodes a config that Kong has yet to accept, as [Parse] does those that Kong has accepted. The nulls for
// which Kong denies a config are faults: those in maps, and those of fields that are required or unknown.
func ParseNew(raw []byte, checks ...Check) (Config, []Warning, error) {
	return parse(raw, checks, checker{faulty: map[string]bool{}, nulls: true})
}

func parse(raw []byte, checks []Check, c checker) (Config, []Warning, error) {
	document, faults := decodeDocument(raw)
	if document == nil {
		return Config{}, nil, Faults(faults)
	}
	config, found, order := examine(document, c)
	faults = append(faults, found...)
	for _, check := range checks {
		faults = AppendNew(faults, check(config))
	}
	if len(faults) > 0 {
		inDocumentOrder(faults, order)
		return Config{}, nil, Faults(faults)
	}
	warnings := config.Warnings()
	inDocumentOrder(warnings, order)
	return config, warnings, nil
}

// AppendNew appends the faults of err, except those of values that already have a fault, which are consequences.
func AppendNew(faults []Fault, err error) []Fault {
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

// Validate returns all faults of c as an error of type Faults, as Parse does. A zero field with a default counts as
// absent, so a Config built in Go may omit defaults, except those of booleans.
func (c Config) Validate() error {
	_, faults, order := examine(c.document(), checker{faulty: map[string]bool{}})
	inDocumentOrder(faults, order)
	return Faults(faults).OrNil()
}

// WithDefaults returns c with the defaults of zero fields, except booleans: false stays false. Faulty values stay.
func (c Config) WithDefaults() Config {
	config, _, _ := examine(c.document(), checker{faulty: map[string]bool{}})
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

// examine checks document against the Kong schema and the rules beyond it, fills in the defaults, and decodes it. The
// faults are unsorted; the map has the order of their paths. The Config lacks values that cannot be decoded.
func examine(document *node, c checker) (Config, []Fault, map[string]int) {
	order := pathOrder(document)
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
