package fromkong

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// settings reads the config of one of Kong's plugins. It collects problems, and which fields were read: a field that no
// conversion reads is a problem too, because its effect would be lost.
type settings struct {
	values map[string]any
	path   string // of the record within the config; "": the config itself
	read   map[string]bool
	shared *reading
}

// reading is what the records of one config have in common.
type reading struct {
	config   deckfile.Config
	root     string // path of the config in the file
	problems []Problem
}

func newSettings(config deckfile.Config, root string) (*settings, error) {
	decoder := json.NewDecoder(bytes.NewReader(config.JSON))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return nil, errors.New("is no mapping of fields to values")
	}
	return &settings{values: values, read: map[string]bool{}, shared: &reading{config: config, root: root}}, nil
}

// problem adds a problem of a field; "" is the record itself.
func (s *settings) problem(field, format string, args ...any) {
	path := s.path
	if field != "" {
		path = docpath.Member(s.path, field)
	}
	s.shared.problems = append(s.shared.problems, Problem{
		Line: s.shared.config.Line(path), Path: docpath.Join(s.shared.root, path), Message: fmt.Sprintf(format, args...),
	})
}

// value returns the value of a field; null counts as absent.
func (s *settings) value(field string) (any, bool) {
	s.read[field] = true
	v := s.values[field]
	return v, v != nil
}

// has reports whether a field is present, without reading it.
func (s *settings) has(field string) bool { return s.values[field] != nil }

// ignore marks fields as read that have no counterpart and no effect on what is admitted.
func (s *settings) ignore(fields ...string) (present []string) {
	for _, field := range fields {
		if _, ok := s.value(field); ok {
			present = append(present, docpath.Member(s.path, field))
		}
	}
	return present
}

// isTemplate reports whether decK fills in a text from the environment.
func isTemplate(text string) bool { return strings.Contains(text, "${{") }

// text returns a text, or otherwise if it is absent.
func (s *settings) text(field, otherwise string) string {
	v, ok := s.value(field)
	if !ok {
		return otherwise
	}
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	s.problem(field, "must be a text, got %s", shown(v))
	return otherwise
}

// choice returns a text that must be one of those given; the first is the default.
func (s *settings) choice(field string, values ...string) string {
	text := s.text(field, values[0])
	if !slices.Contains(values, text) {
		s.problem(field, "has the value %s, which is not one of %s", shown(text), strings.Join(values, ", "))
		return values[0]
	}
	return text
}

func (s *settings) flag(field string, otherwise bool) bool {
	v, ok := s.value(field)
	if !ok {
		return otherwise
	}
	truth, isFlag := v.(bool)
	if !isFlag {
		s.problem(field, "must be true or false, got %s%s", shown(v), templateHint(v))
	}
	return truth
}

// number returns a number; present is false if it is absent or no number.
func (s *settings) number(field string) (n json.Number, present bool) {
	v, ok := s.value(field)
	if !ok {
		return "", false
	}
	if n, present = v.(json.Number); !present {
		s.problem(field, "must be a number, got %s%s", shown(v), templateHint(v))
	}
	return n, present
}

// integer returns a whole number within bounds, or otherwise if it is absent.
func (s *settings) integer(field string, otherwise, least, most int64) int64 {
	n, present := s.number(field)
	if !present {
		return otherwise
	}
	whole, ok := wholeNumber(n)
	if !ok || whole < least || whole > most {
		s.problem(field, "is %s, and this plugin takes whole numbers from %d to %d", n, least, most)
		return otherwise
	}
	return whole
}

// list returns a list; texts in place of one are a problem.
func (s *settings) list(field string) []any {
	v, ok := s.value(field)
	if !ok {
		return nil
	}
	switch v := v.(type) {
	case []any:
		return v
	case map[string]any:
		if len(v) == 0 { // Kong writes an empty list so
			return nil
		}
	}
	s.problem(field, "must be a list, got %s%s", shown(v), templateHint(v))
	return nil
}

// texts returns a list of texts.
func (s *settings) texts(field string) []string {
	var all []string
	for _, v := range s.list(field) {
		text, ok := v.(string)
		if !ok {
			s.problem(field, "must be a list of texts, got %s", shown(v))
			return nil
		}
		all = append(all, text)
	}
	return all
}

// record returns a record, which is empty if it is absent.
func (s *settings) record(field string) *settings {
	inner := &settings{path: docpath.Member(s.path, field), read: map[string]bool{}, shared: s.shared}
	v, ok := s.value(field)
	if !ok {
		return inner
	}
	if inner.values, ok = v.(map[string]any); !ok {
		if list, isList := v.([]any); !isList || len(list) > 0 {
			s.problem(field, "must be a record, got %s%s", shown(v), templateHint(v))
		}
	}
	return inner
}

// finish adds a problem for each field that was not read.
func (s *settings) finish() {
	for _, field := range slices.Sorted(maps.Keys(s.values)) {
		if s.values[field] != nil && !s.read[field] {
			s.problem(field, "is not a field that this program knows, so its effect would be lost")
		}
	}
}

// wholeNumber returns a number without a fraction, such as 5 or 5.0.
func wholeNumber(n json.Number) (int64, bool) {
	if whole, err := n.Int64(); err == nil {
		return whole, true
	}
	f, err := n.Float64()
	const exact = 1 << 53
	if err != nil || f != float64(int64(max(min(f, exact), -exact))) {
		return 0, false
	}
	return int64(f), true
}

// shown returns a value for a message.
func shown(v any) string {
	if text, ok := v.(string); ok {
		return strconv.Quote(docpath.Shorten(text))
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T", v)
	}
	return docpath.Shorten(string(raw))
}

// templateHint returns what to do about a value that decK fills in.
func templateHint(v any) string {
	if text, ok := v.(string); ok && isTemplate(text) {
		return ", which decK fills in from the environment: run deck file render first, or write the value"
	}
	return ""
}
