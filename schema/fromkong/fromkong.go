// Package fromkong converts the configs of Kong's own rate limiting plugins in a decK file into configs of this plugin:
// rate-limiting, rate-limiting-advanced, response-ratelimiting and ai-rate-limiting-advanced.
//
// Convert never guesses. An entry with a value that this plugin cannot express stays in the file as it is, with a
// Problem that names the value. What works otherwise afterwards is listed as a Difference. The remaining text of the
// file is kept byte by byte where its layout allows that.
//
// What Kong's plugins do is taken from their source (kong/plugins in Kong's repository) and, for the two that are not
// in it, rate-limiting-advanced and ai-rate-limiting-advanced, from Kong's documentation. docs/migrating-from-kong.md
// has the table of differences.
package fromkong

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// Options choose how a file is converted.
type Options struct {
	// SideBySide adds the new entries beside Kong's, in shadow mode and without headers, in place of replacing them.
	SideBySide bool
	// Redis is the host and port of the Redis that counts for entries that count in Kong's database. "": none, and such
	// entries stay.
	Redis string
	// Checks find faults of a converted config beyond its schema, as for [deck.Validate].
	Checks []schema.Check
}

// Result is a converted file.
type Result struct {
	Text    []byte  `json:"-"` // of the file
	Mapping []byte  `json:"-"` // of Envoy's descriptors; nil: the file was Kong's
	Entries []Entry `json:"entries"`
}

// Entry reports on one entry of Kong's plugins.
type Entry struct {
	Plugin      string       `json:"plugin"`
	File        string       `json:"file,omitempty"` // where several can be read
	Line        int          `json:"line"`
	Path        string       `json:"path"`
	For         string       `json:"for"` // whose requests it is for, in words
	Converted   bool         `json:"converted"`
	Namespace   string       `json:"namespace,omitempty"`
	Limits      []string     `json:"limits"` // the converted limits, in words
	Problems    []Problem    `json:"problems"`
	Differences []Difference `json:"differences"`
}

// Problem is a value that this plugin cannot express. Its entry stays as it is.
type Problem struct {
	Line    int    `json:"line"`
	Path    string `json:"path"` // from the root of the file
	Message string `json:"message"`
}

// Converted returns how many entries were converted.
func (r *Result) Converted() int {
	n := 0
	for _, e := range r.Entries {
		if e.Converted {
			n++
		}
	}
	return n
}

// Convert converts the entries of Kong's rate limiting plugins in the text of a decK file. An error is about the file
// as a whole: it cannot be read, or not be written again.
func Convert(text []byte, o Options) (*Result, error) {
	documents, err := deckfile.Documents(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("is not YAML: %w", err)
	}
	f := &file{Options: o, text: text, documents: documents, walk: deckfile.NewWalk()}
	for _, document := range documents {
		if err := f.collect(document); err != nil {
			return nil, err
		}
	}
	f.convert()
	result := &Result{Entries: []Entry{}}
	if result.Text, err = f.write(); err != nil {
		return nil, err
	}
	for _, e := range slices.Concat(f.entries, f.foreign) {
		result.Entries = append(result.Entries, e.report())
	}
	return result, nil
}

type file struct {
	Options
	text      []byte
	documents []*yaml.Node
	walk      *deckfile.Walk // through the configs of the file
	entries   []*entry       // of Kong's rate limiting plugins
	foreign   []*entry       // of those that are never converted
	own       []deck.Plugin  // entries of this plugin that were there before
}

// entry is an entry of one of Kong's plugins that is converted.
type entry struct {
	deck.Plugin
	*document
	options Options
	source  deckfile.Config // the config, of which faults have their lines
	values  map[string]any  // its fields. nil: it cannot be read
	redis   map[string]any  // those of Redis, which count only where an entry counts there

	config      config // the converted one
	settles     bool   // it needs the plugin that settles
	limits      []string
	problems    []Problem
	unknown     []Problem // of fields that are not known; reports list them last
	differences []Difference
}

// document has what the entries of one document of the file share.
type document struct {
	services map[string]string     // by route; "": a route without one
	groups   map[string]bool       // consumer groups that have an entry of rate-limiting-advanced
	settling map[deck.Place]bool   // where the plugin that settles is there already
	partials map[string]*yaml.Node // configs of Redis that entries name, by name and by id

	// info has overridesKey, and is in root: plugins of consumer groups are overrides, as before Kong 3.4. nil: they are
	// not.
	info, root *yaml.Node
}

// converters maps the name of each plugin of Kong to the function that converts its config.
var converters = map[string]func(*entry){
	"rate-limiting":             (*entry).rateLimiting,
	"rate-limiting-advanced":    (*entry).advanced,
	"response-ratelimiting":     (*entry).response,
	"ai-rate-limiting-advanced": (*entry).ai,
}

// unconverted maps the name of each plugin of Kong that limits rates and is never converted to what replaces it.
var unconverted = map[string]string{
	"graphql-rate-limiting-advanced": "a limit whose cost the request names (cost_header)",
	"service-protection":             "a limit with scope global on the service",
}

func (f *file) collect(root *yaml.Node) error {
	declared, err := deck.Read(root)
	if err != nil {
		return err
	}
	d := &document{
		services: declared.Services, groups: map[string]bool{}, settling: map[deck.Place]bool{}, partials: partialsOf(root),
	}
	d.info, d.root = overridesInfo(root)
	for _, p := range declared.Plugins {
		if p.Name == schema.Name {
			f.own = append(f.own, p)
		}
		if p.Name == schema.SettlingName {
			d.settling[p.Place] = true
		}
		if instead := unconverted[p.Name]; instead != "" {
			e := &entry{Plugin: p}
			e.problem("is not converted: write %s", instead)
			f.foreign = append(f.foreign, e)
		}
		if converters[p.Name] == nil {
			continue
		}
		if p.Name == "rate-limiting-advanced" && p.Place[deck.OfGroup] != "" {
			d.groups[p.Place[deck.OfGroup]] = true
		}
		e := &entry{Plugin: p, document: d, options: f.Options}
		f.entries = append(f.entries, e)
		e.readConfig(f.walk)
	}
	return nil
}

// readConfig reads the config of the entry, and what it takes from partials.
func (e *entry) readConfig(w *deckfile.Walk) {
	err := e.Item.Decode(new(any)) // finds keys that are there twice: readers of YAML differ in which one they take
	if fault := new(yaml.TypeError); errors.As(err, &fault) {
		e.problem("cannot be read: %s", strings.Join(fault.Errors, ", "))
		return
	}
	if e.source, err = e.Config(w); err == nil {
		e.values, err = valuesOf(e.source)
	}
	if err == nil {
		err = e.addPartials(w)
	}
	if err != nil {
		e.values = nil
		e.problem("its config %v", err)
	}
}

func (e *entry) problem(format string, args ...any) {
	e.problems = append(e.problems, Problem{Line: e.Line, Path: e.Path, Message: fmt.Sprintf(format, args...)})
}

// convert converts all entries, and finds those that must stay.
func (f *file) convert() {
	f.mergeOverrides()
	for _, e := range f.entries {
		if e.values == nil {
			continue
		}
		e.redis = maps.Clone(e.values)
		isRedis := func(field string, _ any) bool { return field == "redis" || strings.HasPrefix(field, "redis_") }
		maps.DeleteFunc(e.values, isRedis)
		maps.DeleteFunc(e.redis, func(field string, v any) bool { return !isRedis(field, v) })
		e.differs("fresh-counters")
		converters[e.Name](e)
		e.problems = append(e.problems, e.unknown...)
		if len(e.problems) == 0 {
			e.validate(f.walk)
		}
	}
	f.findShared()
	f.findCollisions()
	f.keepOverlapping()
}

// validate checks the converted config as the plugin does.
func (e *entry) validate(w *deckfile.Walk) {
	encoded, err := deckfile.Encode(e.config.node(), w)
	if err == nil {
		_, _, err = schema.Parse(encoded.JSON, e.options.Checks...)
	}
	var faults schema.Faults
	switch {
	case err == nil:
	case errors.As(err, &faults):
		for _, fault := range faults {
			e.problem("as config of %s, %s: %s", schema.Name, fault.Path, fault.Message)
		}
	default:
		e.problem("its converted config %v", err)
	}
}

// findShared adds a problem to entries that aliases use at several places, because each place needs a namespace of its
// own.
func (f *file) findShared() {
	uses := map[*yaml.Node]int{}
	for _, e := range f.entries {
		uses[deckfile.Resolve(e.Item)]++
	}
	for _, e := range f.entries {
		if n := uses[deckfile.Resolve(e.Item)]; n > 1 {
			e.problem("is at %d places by YAML aliases: write it out at each", n)
		}
	}
}

// findCollisions adds a problem to entries beside which Kong would run another config of this plugin, of which it runs
// only one for a request.
func (f *file) findCollisions() {
	for i, e := range f.entries {
		if !e.Enabled {
			continue
		}
		for _, own := range f.own {
			if own.Enabled && own.Place.Overlaps(e.Place) {
				e.problem("is for the same requests as %s in line %d: Kong runs one config of a plugin for a request; "+
					"add its limits there", own.Name, own.Line)
			}
		}
		for j, other := range f.entries {
			if i == j || !other.Enabled || !other.Place.Overlaps(e.Place) {
				continue
			}
			switch {
			case other.Name != e.Name:
				e.problem("is for the same requests as %s in line %d: Kong runs both, but only one config of %s; "+
					"convert one, and add the limits of the other to it", other.Name, other.Line, schema.Name)
			case other.Place == e.Place:
				e.problem("is for the same requests as line %d: Kong denies two", other.Line)
			}
		}
	}
}

// keepOverlapping lets entries stay that overlap with one that stays: Kong would run that one and the converted one for
// the same requests, where it runs one of them now.
func (f *file) keepOverlapping() {
	for changed := true; changed; {
		changed = false
		for _, e := range f.entries {
			if !e.Enabled || len(e.problems) > 0 {
				continue
			}
			for _, other := range f.entries {
				if other.Enabled && len(other.problems) > 0 && other.Place.Overlaps(e.Place) {
					e.problem("stays because line %d stays: Kong would run both for the same requests", other.Line)
					changed = true
					break
				}
			}
		}
	}
}

func (e *entry) report() Entry {
	r := Entry{
		Plugin: e.Name, Line: e.Line, Path: e.Path, For: e.Place.String(), Converted: len(e.problems) == 0,
		Limits: []string{}, Problems: []Problem{}, Differences: []Difference{},
	}
	if !r.Converted {
		r.Problems = e.problems
		return r
	}
	r.Namespace, r.Limits = e.config.Namespace, append(r.Limits, e.limits...)
	for _, text := range Differences() { // in their order
		if slices.Contains(e.differences, text.ID) {
			r.Differences = append(r.Differences, text.ID)
		}
	}
	return r
}
