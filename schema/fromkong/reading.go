package fromkong

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

func valuesOf(config deckfile.Config) (map[string]any, error) {
	var values map[string]any
	decoder := json.NewDecoder(bytes.NewReader(config.JSON))
	decoder.UseNumber()
	if err := decoder.Decode(&values); err != nil {
		return nil, errors.New("is no mapping of fields to values")
	}
	if values == nil { // null
		values = map[string]any{}
	}
	return values, nil
}

// fault adds a problem of the value at a path of the config.
func (e *entry) fault(path, format string, args ...any) {
	e.problems = append(e.problems, e.problemAt(path, format, args...))
}

func (e *entry) problemAt(path, format string, args ...any) Problem {
	return Problem{e.source.Line(path), docpath.Join(e.Path+".config", path), fmt.Sprintf(format, args...)}
}

// read sets the fields of a struct to the values of a record, and adds what is wrong with them to the problems. Tags
// declare a field:
//
//	kong     its name. * takes any other
//	of       the texts that it may have, of which the first is the default
//	default  the text that it has if it is absent
//	range    the least and the greatest whole number
//	usual    the value that it has in both plugins if it is absent, which is read as the zero value
//
// A field that the struct does not have is a problem, because its effect would be lost. null counts as absent.
func (e *entry) read(path string, values map[string]any, record any) {
	known := map[string]bool{}
	into := reflect.ValueOf(record).Elem()
	for _, f := range reflect.VisibleFields(into.Type()) {
		name, declared := f.Tag.Lookup("kong")
		if !declared {
			continue
		}
		known[name] = true
		field := into.FieldByIndex(f.Index)
		if values[name] != nil {
			e.readValue(docpath.Member(path, name), values[name], field, f.Tag)
		} else if field.Kind() == reflect.String {
			field.SetString(defaultOf(f.Tag))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] != nil && !known[name] && !known["*"] {
			e.unknown = append(e.unknown, e.problemAt(docpath.Member(path, name),
				"is not a field that this program knows, so its effect would be lost"))
		}
	}
}

func defaultOf(tag reflect.StructTag) string {
	first, _, _ := strings.Cut(tag.Get("of"), " ")
	return first + tag.Get("default")
}

// record returns a value that must be a record, or nil.
func (e *entry) record(path string, v any) (values map[string]any) {
	if v != nil {
		e.readValue(path, v, reflect.ValueOf(&values).Elem(), "")
	}
	return values
}

func (e *entry) readValue(path string, v any, into reflect.Value, tag reflect.StructTag) {
	hint := ""
	if text, ok := v.(string); ok && isTemplate(text) {
		hint = ", which decK fills in from the environment: run deck file render first, or write the value"
	}
	number, isNumber := v.(json.Number)
	list, isList := v.([]any)
	record, isRecord := v.(map[string]any)
	ok, want := true, ""
	switch field := into.Addr().Interface().(type) {
	case *any:
		*field = v
	case *string:
		*field, ok = v.(string)
		if isNumber {
			*field, ok = number.String(), true
		}
		if want, hint = "a text", ""; ok {
			e.checkText(path, field, tag)
		} else {
			*field = defaultOf(tag)
		}
	case *bool:
		*field, ok = v.(bool)
		want = "true or false"
	case **bool:
		truth, isBool := v.(bool)
		*field, ok, want = &truth, isBool, "true or false"
	case *json.Number:
		*field, ok, want = number, isNumber, "a number"
	case *int64:
		if ok, want = isNumber, "a number"; ok {
			*field = e.integer(path, number, tag)
		}
	case *map[string]any: // Kong writes an empty record as a list, and an empty list as a record
		*field, ok, want = record, isRecord || isList && len(list) == 0, "a record"
	default:
		if ok, want = isList || isRecord && len(record) == 0, "a list"; ok {
			e.readList(path, list, into)
		}
	}
	if !ok {
		e.fault(path, "must be %s, got %s%s", want, shown(v), hint)
	}
}

func (e *entry) readList(path string, list []any, into reflect.Value) {
	if texts, ok := into.Addr().Interface().(*[]string); ok {
		for _, v := range list {
			text, ok := v.(string)
			if !ok {
				e.fault(path, "must be a list of texts, got %s", shown(v))
				return
			}
			*texts = append(*texts, text)
		}
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(list), len(list)))
	for i, v := range list {
		values, ok := v.(map[string]any)
		if !ok {
			e.fault(path, "must be a list of records, got %s", shown(v))
			return
		}
		e.read(docpath.Item(path, i), values, into.Index(i).Addr().Interface())
	}
}

// checkText adds a problem for a text that is not allowed, and empties one that is usual.
func (e *entry) checkText(path string, text *string, tag reflect.StructTag) {
	if allowed := strings.Fields(tag.Get("of")); len(allowed) > 0 && !slices.Contains(allowed, *text) {
		e.fault(path, "has the value %s, which is not one of %s", shown(*text), strings.Join(allowed, ", "))
		*text = allowed[0]
	}
	if *text == tag.Get("usual") {
		*text = ""
	}
}

// integer returns a whole number within its range, or 0.
func (e *entry) integer(path string, n json.Number, tag reflect.StructTag) int64 {
	var least, most int64
	if _, err := fmt.Sscan(tag.Get("range"), &least, &most); err != nil {
		panic(fmt.Sprintf("fromkong: the range of %s: %v", path, err))
	}
	whole, ok := wholeNumber(n)
	if !ok || whole < least || whole > most {
		e.fault(path, "is %s, and this plugin takes whole numbers from %d to %d", n, least, most)
	}
	if strconv.FormatInt(whole, 10) == tag.Get("usual") {
		return 0
	}
	return whole
}

// wholeNumber returns a number without a fraction, such as 5 or 5.0.
func wholeNumber(n json.Number) (int64, bool) {
	f, err := n.Float64()
	whole := int64(f)
	return whole, err == nil && float64(whole) == f
}

// isTemplate reports whether decK fills in a text from the environment.
func isTemplate(text string) bool { return strings.Contains(text, "${{") }

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

func scalar(mapping *yaml.Node, key string) string {
	value := deckfile.Get(mapping, key)
	if value == nil || value.Kind != yaml.ScalarNode {
		return ""
	}
	return value.Value
}

// partialsOf returns the configs of the partials of a document, by name and by id.
func partialsOf(document *yaml.Node) map[string]*yaml.Node {
	partials := map[string]*yaml.Node{}
	list := deckfile.Get(deckfile.Root(document), "partials")
	if list == nil || list.Kind != yaml.SequenceNode {
		return partials
	}
	for _, item := range list.Content {
		for _, name := range [...]string{scalar(item, "name"), scalar(item, "id")} {
			if config := deckfile.Get(item, "config"); name != "" && config != nil {
				partials[name] = config
			}
		}
	}
	return partials
}

// addPartials adds the config of Redis that the entry takes from a partial.
func (e *entry) addPartials(w *deckfile.Walk) error {
	list := deckfile.Get(e.Item, "partials")
	if list == nil {
		return nil
	}
	for _, item := range list.Content {
		name, path := scalar(item, "name")+scalar(item, "id"), scalar(item, "path")
		if path != "" && path != "config.redis" {
			return fmt.Errorf("takes %s from a partial, and only config.redis can be taken from one", path)
		}
		partial := e.partials[name]
		if partial == nil {
			return fmt.Errorf("takes Redis from the partial %s, which is not in this file", shown(name))
		}
		config, err := deckfile.Encode(partial, w)
		if err != nil {
			return err
		}
		redis, err := valuesOf(config)
		if err != nil {
			return err
		}
		if own, ok := e.values["redis"].(map[string]any); ok && len(own) > 0 {
			return errors.New("has a config of Redis beside the one of a partial")
		}
		e.values["redis"] = redis
		e.differs("shared-config")
	}
	return nil
}
