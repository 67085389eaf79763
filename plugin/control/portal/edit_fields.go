package portal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// property describes a value in the API's OpenAPI document.
type property struct {
	Ref         string               `json:"$ref"`
	Type        any                  `json:"type"` // a text, or a list of them
	Format      string               `json:"format"`
	Description string               `json:"description"`
	Enum        []any                `json:"enum"`
	Default     any                  `json:"default"`
	Required    []string             `json:"required"`
	Properties  map[string]*property `json:"properties"`
}

// apiParameter is a parameter of an operation.
type apiParameter struct {
	Name        string   `json:"name"`
	In          string   `json:"in"` // path, query or header
	Description string   `json:"description"`
	Schema      property `json:"schema"`
}

// operation is an operation of the API, as its OpenAPI document describes it.
type operation struct {
	Parameters  []apiParameter `json:"parameters"`
	RequestBody struct {
		Content map[string]struct {
			Schema *property `json:"schema"`
		} `json:"content"`
	} `json:"requestBody"`

	Body     map[string]*property `json:"-"` // nil: it has none
	Required []string             `json:"-"` // fields of the body
}

func (o *operation) parameter(name string) *apiParameter {
	i := slices.IndexFunc(o.Parameters, func(p apiParameter) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &o.Parameters[i]
}

// description is the part of an OpenAPI document that forms are made from.
type description struct {
	Paths      map[string]map[string]*operation `json:"paths"` // by path and method
	Components struct {
		Schemas map[string]*property `json:"schemas"`
	} `json:"components"`
}

// operation returns the operation of a method and a path. The document is read once.
func (v *visit) operation(methodAndPath string) (*operation, error) {
	d := v.portal.described.Load()
	if d == nil {
		d = &description{}
		if err := v.get("/openapi.json", nil, d); err != nil {
			return nil, err
		}
		v.portal.described.Store(d)
	}
	method, path, _ := strings.Cut(methodAndPath, " ")
	found := d.Paths[path][strings.ToLower(method)]
	if found == nil {
		return nil, fmt.Errorf("the API does not describe %s", methodAndPath)
	}
	o := *found
	if body := o.RequestBody.Content["application/json"].Schema; body != nil {
		if named := d.Components.Schemas[strings.TrimPrefix(body.Ref, "#/components/schemas/")]; named != nil {
			body = named
		}
		o.Body, o.Required = body.Properties, body.Required
	}
	return &o, nil
}

// field is a field of a form.
type field struct {
	property
	Name, Label, Hint string
	Input             string // text, number, select, check, checks, time, lines or json
	Choices           []choice
	IsRequired        bool
	IsMore            bool     // it is shown on demand
	Of                []string // the kinds that it is for; nil: all
	Values            []string // as they were entered
	Fault             string
}

// fields makes the fields of a form from their names: those of the operation's body, or of its parameters. A ! after a
// name makes the field required; a colon begins the kinds that it is for; those after a | are shown on demand.
func (o *operation) fields(names string) (list []*field, err error) {
	isMore := false
	for name := range strings.FieldsSeq(names) {
		if name == "|" {
			isMore = true
			continue
		}
		name, kinds, isLimited := strings.Cut(name, ":")
		in := &field{IsMore: isMore, Name: strings.TrimSuffix(name, "!")}
		in.IsRequired = in.Name != name || slices.Contains(o.Required, name)
		if isLimited {
			in.Of = strings.Split(kinds, ",")
		}
		described, p := o.Body[in.Name], o.parameter(in.Name)
		switch {
		case described != nil:
			in.property = *described
		case p != nil:
			in.property, in.Description = p.Schema, p.Description
		default:
			return nil, fmt.Errorf("an operation of the API has no field %s", in.Name)
		}
		in.describe()
		list = append(list, in)
	}
	return list, nil
}

var bracedName = regexp.MustCompile(`\{[a-z_]+\}`)

// fill replaces the names in a text or a path, and reports whether each has a value.
func (f *form) fill(v *visit, text string) (filled string, isComplete bool) {
	isComplete = true
	row := fieldsOf(f.now)
	return bracedName.ReplaceAllStringFunc(text, func(braced string) string {
		name := strings.Trim(braced, "{}")
		value := cmp.Or(v.r.PathValue(name), strings.TrimSpace(f.values.Get(name)), v.r.URL.Query().Get(name),
			jsonText(row[name]))
		if name == "org" {
			value = v.org()
		}
		isComplete = isComplete && value != ""
		switch {
		case strings.Contains(text, "="+braced):
			return url.QueryEscape(value)
		case strings.Contains(text, "/"+braced):
			return answers.PathSegment(value)
		}
		return value
	}), isComplete
}

func (f *form) field(name string) *field {
	i := slices.IndexFunc(f.Fields, func(in *field) bool { return in.Name == name })
	if i < 0 {
		return nil
	}
	return f.Fields[i]
}

// entered returns what was entered into a field: of several boxes a line for each.
func (f *form) entered(in *field) string {
	return strings.ReplaceAll(strings.TrimSpace(strings.Join(f.values[in.Name], "\n")), "\r\n", "\n")
}

func (in *field) isOf(kind string) bool { return in.Of == nil || slices.Contains(in.Of, kind) }

// describe sets the input, the label and the hint.
func (in *field) describe() {
	kind := fmt.Sprint(in.Type) // array, or [array null]
	switch {
	case in.Enum != nil:
		in.Input = "select"
		for _, value := range in.Enum {
			in.Choices = append(in.Choices, choice{Value: fmt.Sprint(value)})
		}
	case kind == "boolean":
		in.Input = "check"
	case strings.Contains(kind, "array"):
		in.Input = "lines"
	case kind == "object" || in.Ref != "":
		in.Input = "json"
	case kind == "integer":
		in.Input = "number"
	case in.Format == "date-time":
		in.Input = "time"
	default:
		in.Input = "text"
	}
	words := strings.NewReplacer("_pct", " in percent", "_", " ").Replace(in.Name)
	in.Label = strings.ToUpper(words[:1]) + words[1:]
	if in.Name == "ip" || in.Name == "url" {
		in.Label = strings.ToUpper(words)
	}
	if in.Input == "time" {
		in.Label += ", in UTC"
	}
	// The first sentence, and what an empty field means: the docs have the rest.
	in.Hint, _, _ = strings.Cut(in.Description, ". ")
	if _, otherwise, found := strings.Cut(in.Description, " Default: "); found && !in.IsRequired {
		in.Hint += ". Default: " + otherwise
	}
	if _, use, found := strings.Cut(in.Hint, ": "); found && in.Of != nil { // For custom_limit:
		in.Hint = use
	}
	if another, found := strings.CutPrefix(in.Hint, "Another spelling of "); found {
		_, in.Hint, _ = strings.Cut(another, ", as ")
	}
	if in.Hint = strings.TrimSuffix(in.Hint, "."); in.Hint != "" {
		in.Hint = strings.ToUpper(in.Hint[:1]) + in.Hint[1:]
	}
}

// choose makes the input one of choices. A value that is none of them stays.
func (in *field) choose(list []choice, value string) {
	in.Choices = slices.Clone(list)
	if in.Input == "lines" {
		in.Input = "checks"
		return
	}
	in.Input = "select"
	if value != "" && !slices.ContainsFunc(list, func(c choice) bool { return c.Value == value }) {
		in.Choices = append(in.Choices, choice{Value: value})
	}
}

// HasMore reports whether the form has fields that are shown on demand.
func (f *form) HasMore() bool {
	return slices.ContainsFunc(f.Fields, func(in *field) bool { return in.IsMore })
}

// Context returns the fields of the row that the form is about, if the form does not show them.
func (f *form) Context() []fieldChange {
	if f.Now && f.Changes == nil {
		list, _ := diffRows(nil, f.now)
		return list
	}
	return nil
}

// Value returns what was entered.
func (in *field) Value() string { return strings.Join(in.Values, "\n") }

// Has reports whether a box of a value is checked.
func (in *field) Has(value string) bool { return slices.Contains(in.Values, value) }

// Class returns the classes of a field that is for some kinds.
func (in *field) Class() string {
	if in.Of == nil {
		return ""
	}
	return "of of-" + strings.Join(in.Of, " of-")
}

// pickerLayouts are how browsers send an instant, here in UTC.
var pickerLayouts = []string{"2006-01-02T15:04:05", "2006-01-02T15:04"}

// textOf returns the values of a row's field as the form has them. A reason has none: each change has its own.
func (in *field) textOf(row json.RawMessage) []string {
	fields := fieldsOf(row)
	value := fields[in.Name]
	list, _ := value.([]any)
	at, err := time.Parse(time.RFC3339, jsonText(value))
	switch {
	case in.Name == whyField:
		return nil
	case in.Name == spanField && value == nil:
		return []string{spanText(jsonText(fields[sizeField]))}
	case in.Input == "checks":
		return strings.Fields(linesText(list, "\n"))
	case in.Input == "lines":
		return []string{linesText(list, "\n")}
	case in.Input == "time" && err == nil:
		return []string{at.UTC().Format(pickerLayouts[0])}
	}
	return []string{jsonText(value)}
}

// linesText returns the texts of a list with a separator between them.
func linesText(list []any, separator string) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = jsonText(item)
	}
	return strings.Join(texts, separator)
}

// typed returns what was entered as the API reads it. What is malformed stays a text, so that the API reports it.
func (in *field) typed(entered string) any {
	switch in.Input {
	case "number":
		digits := strings.NewReplacer(",", "", " ", "", "_", "").Replace(entered)
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
			return json.Number(strconv.FormatInt(n, 10))
		}
	case "check":
		return entered == "true"
	case "lines", "checks":
		list := []string{}
		for item := range strings.FieldsFuncSeq(entered, func(r rune) bool { return r == '\n' || r == ',' }) {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		return list
	case "json":
		if json.Valid([]byte(entered)) {
			return json.RawMessage(entered)
		}
	case "time":
		for _, layout := range pickerLayouts {
			if at, err := time.Parse(layout, entered); err == nil {
				return at.Format(time.RFC3339)
			}
		}
	}
	return entered
}

// spanText returns seconds in the largest unit without a rest: 86400 is 1d.
func spanText(seconds string) string {
	n, _ := strconv.ParseInt(seconds, 10, 64) // 0: there is no window
	for _, u := range units {
		if n > 0 && n%u.seconds == 0 {
			return strconv.FormatInt(n/u.seconds, 10) + u.name[:1]
		}
	}
	return ""
}

// fieldsOf returns the fields of a JSON object, with numbers as they are written; nil if it is none.
func fieldsOf(object json.RawMessage) (fields map[string]any) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber()
	_ = decoder.Decode(&fields)
	return fields
}

// jsonText returns a decoded value as a text: a text without quotes, and nothing for null.
func jsonText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	text, _ := json.MarshalIndent(value, "", "  ") // it was decoded from JSON
	return string(text)
}
