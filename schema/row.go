package schema

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

//go:embed row_schema.json
var rowSchema []byte

// Field describes one declared field of a row of type T.
type Field[T any] struct {
	Name        string // in JSON, YAML and the database
	Aliases     string // other names in the REST API, separated by commas
	Flag        string // in the ratelimit command; empty: the name, with dashes
	Unit        string // tokens, seconds, percent, thousandths, address or name; text for free text
	Example     string
	Type        string // string, integer, boolean or record; array or set in a record
	Description string // one paragraph; it ends with the default or says that the field is required
	Required    bool
	OneOf       []string // the values of an enum; nil: not an enum
	Min, Max    int64    // of an integer
	Pattern     string   // of a text, as a regular expression; empty: any
	MaxLength   int      // of a text, in bytes; 0: that of its pattern or enum
	Default     any      // nil: absent by default

	rule *field
	in   func(*T) any
}

// Must returns in words which values the field may have.
func (f *Field[T]) Must() string {
	switch {
	case f.rule.Err != "":
		return f.rule.Err
	case f.rule.MatchAny != nil:
		return f.rule.MatchAny.Err
	case len(f.OneOf) > 0:
		return "must be one of " + strings.Join(f.OneOf, ", ")
	case f.Type == "integer":
		return fmt.Sprintf("must be between %d and %d %s", f.Min, f.Max, f.Unit)
	case f.MaxLength > 0:
		return fmt.Sprintf("must have at most %d bytes", f.MaxLength)
	}
	return "must be " + typeWords[f.Type]
}

// In returns a pointer to the field of row: a *string, *int64, *bool, *time.Time, *Factor, *Price or, where 0 is not
// absent, **int64. [RecordIn] makes use of a pointer to a record.
func (f *Field[T]) In(row *T) any { return f.in(row) }

// Problem returns the fault of a value of the field by itself, or "". The value is a string, int64 or bool.
func (f *Field[T]) Problem(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	n, faults := decodeDocument(raw)
	if len(faults) > 0 {
		return faults[0].Message
	}
	return f.rule.violation(n)
}

// Fields returns the fields of a row, or of a record in one, in the order of their declaration. The caller must not
// change them.
func Fields[T any]() []Field[T] { return modelOf[T]().fields }

// FieldNamed returns the field of that name, which T must have.
func FieldNamed[T any](name string) *Field[T] {
	fields := Fields[T]()
	i := slices.IndexFunc(fields, func(f Field[T]) bool { return f.Name == name })
	if i < 0 {
		panic(fmt.Sprintf("schema: a row has no field %q", name))
	}
	return &fields[i]
}

// Alias is another name of a field.
type Alias struct{ Name, Field string }

// Aliases returns the other names of the fields of T.
func Aliases[T any]() (list []Alias) {
	for _, f := range Fields[T]() {
		for _, name := range strings.FieldsFunc(f.Aliases, func(c rune) bool { return c == ',' }) {
			list = append(list, Alias{name, f.Name})
		}
	}
	return list
}

// FieldsWithout returns the fields of T but for those with these names.
func FieldsWithout[T any](names ...string) []Field[T] {
	return slices.DeleteFunc(slices.Clone(Fields[T]()), func(f Field[T]) bool { return slices.Contains(names, f.Name) })
}

// model holds the declaration of T.
type model[T any] struct {
	record *field
	fields []Field[T]
}

var models sync.Map // each *model[T] by the type T

// rowRecords returns the record of each type in the embedded schema, as text: a program needs few of them.
var rowRecords = sync.OnceValue(func() (records map[string]jsontext.Value) {
	if err := unmarshalSchema(rowSchema, &records); err != nil {
		panic(fmt.Sprintf("schema: the embedded schema of rows cannot be read: %v", err))
	}
	return records
})

// modelOf returns the declaration of T: the record with its name in the embedded schema, and the tags of its fields.
func modelOf[T any]() *model[T] {
	t := reflect.TypeFor[T]()
	if m, ok := models.Load(t); ok {
		return m.(*model[T])
	}
	m := &model[T]{record: new(field)}
	if err := unmarshalSchema(rowRecords()[t.Name()], m.record); err != nil {
		panic(fmt.Sprintf("schema: the embedded schema of rows cannot be read: %v", err))
	}
	m.record.prepare()
	m.add(t, nil)
	models.Store(t, m)
	return m
}

// add adds the fields of a struct, which is T or embedded in T at an index. In JSON those of an embedded one are its
// own.
func (m *model[T]) add(t reflect.Type, index []int) {
	for i := range t.NumField() {
		declared, at := t.Field(i), append(slices.Clone(index), i)
		if declared.Anonymous {
			m.add(declared.Type, at)
			continue
		}
		name, _, _ := strings.Cut(declared.Tag.Get("json"), ",")
		rule, tag := m.record.field(name), declared.Tag
		f := Field[T]{
			Name: name, Aliases: tag.Get("alias"), Flag: tag.Get("flag"), Unit: tag.Get("unit"), Example: tag.Get("example"),
			Type: rule.Type, Description: rule.Description, Required: rule.Required, OneOf: rule.OneOf, Pattern: rule.Match,
			rule: rule,
			in:   func(row *T) any { return reflect.ValueOf(row).Elem().FieldByIndex(at).Addr().Interface() },
		}
		if len(rule.Between) == 2 {
			f.Min, f.Max = rule.Between[0], rule.Between[1]
		}
		if rule.LenMax != nil {
			f.MaxLength = *rule.LenMax
		}
		if rule.Default != nil {
			_ = json.Unmarshal(rule.Default, &f.Default) // prepare has decoded it
		}
		m.fields = append(m.fields, f)
	}
}

// faults returns the faults of row in the order of its fields: those of its record, and those of the checks that are
// not their consequences.
func (m *model[T]) faults(row T, checks ...func(T) error) []Fault {
	raw, err := json.Marshal(row)
	if err != nil {
		return []Fault{{"", err.Error()}}
	}
	document, faults := decodeDocument(raw)
	if document == nil {
		return faults
	}
	document.members = slices.DeleteFunc(document.members, func(m member) bool {
		return m.value.kind == kindNumber && m.value.text == "0" || m.value.kind == kindString && m.value.text == ""
	}) // a required zero value is absent
	c := checker{faulty: map[string]bool{}}
	for _, f := range m.fields {
		if factor, ok := f.In(&row).(*Factor); ok && *factor != 0 {
			document.get(f.Name).text = strconv.FormatInt(int64(*factor), 10) // its constraints are in thousandths
		}
	}
	c.value(m.record, document, "")
	faults = append(faults, c.faults...)
	for _, f := range m.fields {
		text, ok := f.In(&row).(*string)
		switch {
		case !ok:
		case !utf8.ValidString(*text) || strings.IndexByte(*text, 0) >= 0:
			faults = append(faults, Fault{f.Name, "must be valid UTF-8 without zero bytes"})
		case f.Unit == "text" && strings.ContainsFunc(*text, unicode.IsControl):
			faults = append(faults, Fault{f.Name, f.Must()})
		}
	}
	for _, check := range checks {
		faults = AppendNew(faults, check(row))
	}
	order := map[string]int{}
	for i, f := range m.fields {
		order[f.Name] = i
	}
	inDocumentOrder(faults, order)
	return faults
}

// Faults returns all faults of p by itself, in the order of its fields; the paths are their names. As in Parse, the
// checks find faults that need more than the schema.
func (p Policy) Faults(checks ...func(Policy) error) []Fault {
	return modelOf[Policy]().faults(p, append([]func(Policy) error{Policy.semanticFaults}, checks...)...)
}

func (p Policy) semanticFaults() error {
	return Faults(append(LocatedLimit{Limit: p.Limit}.faults(), p.TargetFaults()...)).OrNil()
}

// Cost is what requests to an endpoint cost, as a row of the database has it, the REST API, files of rows and the
// ratelimit command: an entry of the plugin config's cost table that changes at run time. Each field is declared here
// alone, as those of Policy are.
type Cost struct {
	// The namespace of the plugin configs that the cost applies to. Default: default.
	Namespace string `json:"namespace,omitempty" kong:"as=Policy.namespace" default:"default"`

	// The requests that have the cost, as "METHOD /pattern": {param} and a trailing * are wildcards; * as the method
	// matches any method. Required.
	Endpoint string `json:"endpoint" kong:"as=Limit.endpoint" example:"POST /exports"`

	// What a request costs, in tokens, where its policy has no cost of its own and no header of the request has one; 0 is
	// free. Required.
	Cost *int64 `json:"cost,omitempty" kong:"as=Limit.cost" unit:"tokens" example:"50"`
}

// Faults returns everything that is wrong with c by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (c Cost) Faults(checks ...func(Cost) error) []Fault {
	return modelOf[Cost]().faults(c, append([]func(Cost) error{Cost.complete}, checks...)...)
}

// complete returns an error, as Faults, unless endpoint and cost are given: an absent cost must not be taken as free.
func (c Cost) complete() error {
	var faults findings
	if c.Endpoint == "" {
		faults.add("endpoint", "is required, such as POST /exports")
	}
	if c.Cost == nil {
		faults.add("cost", "is required; 0 makes the requests free")
	}
	return Faults(faults).OrNil()
}

// DatedPrice is what calls of a model cost from an instant on, as a row of the database has it, the REST API, files of
// rows and the ratelimit command: an entry of the plugin config's llm.prices that changes at run time. Each field is
// declared here and in ModelPrice alone, as those of Policy are.
type DatedPrice struct {
	// The namespace of the plugin configs that the price applies to. Default: default.
	Namespace string `json:"namespace,omitempty" kong:"as=Policy.namespace" default:"default"`

	ModelPrice

	// When the price begins: it is for requests that arrive from then on. Default: now; a document must have it.
	StartsAt time.Time `json:"starts_at,omitzero"`
}

// Faults returns everything that is wrong with p by itself, in the order of its fields; the paths are their names.
func (p DatedPrice) Faults() []Fault { return modelOf[DatedPrice]().faults(p) }

// Tenant holds the settings of one tenant besides its policies and overrides, as a row of the database has it, the REST
// API and the ratelimit command. Each field is declared here alone, as those of Policy are.
//
// An empty text means absent.
type Tenant struct {
	// The tenant, as requests identify it, in at most 128 bytes: a longer name is counted by its hash. Required.
	ID string `json:"id" kong:"required,len_max=128" kong_err:"must have 1 to 128 bytes: write the hash by which a longer name is counted"`

	// The tier of the tenant. Default: the tier that its requests claim, else the plugin config's default.
	Tier string `json:"tier,omitempty" kong:"as=Policy.tier"`

	// The IANA name of its time zone, in which the periods of its calendar limits begin. Default: the policy's, else UTC.
	TimeZone string `json:"time_zone,omitempty" kong:"len_max=64" kong_err:"must be the IANA name of a time zone, such as Europe/Berlin, or left out for UTC" unit:"name"`
}

// Faults returns everything that is wrong with t by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (t Tenant) Faults(checks ...func(Tenant) error) []Fault {
	return modelOf[Tenant]().faults(t, checks...)
}
