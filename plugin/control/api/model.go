package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// describeInput publishes the declared constraints of fields, but huma does not check them. The row's own check does,
// with the same texts for all ways to write it.
func describeInput[T any](s *huma.Schema, fields []schema.Field[T]) {
	describeFields(s, fields)
	for i := range fields {
		f := &fields[i]
		published := map[string]any{}
		if f.Max > 0 {
			published["minimum"], published["maximum"] = f.Min, f.Max
		}
		switch isList := f.Type == "array" || f.Type == "set"; {
		case isList && f.MaxLength > 0:
			published["maxItems"] = f.MaxLength
		case f.MaxLength > 0:
			published["maxLength"] = f.MaxLength
		}
		if f.Pattern != "" {
			published["pattern"] = f.Pattern
		}
		if len(f.OneOf) > 0 {
			published["enum"] = f.OneOf
		}
		s.Properties[f.Name].Extensions = published
	}
}

// describeRecords describes the records of a policy, as describeInput does: its row's own check has the faults.
func describeRecords(r huma.Registry) {
	record, source := r.Map()["Settle"], r.Map()["SettleSource"]
	describeInput(record, schema.Fields[schema.Settle]())
	describeInput(source, schema.Fields[schema.SettleSource]())
	record.Required, record.Extensions = nil, map[string]any{"required": []string{"sources"}}
	source.Required, source.Extensions = nil, map[string]any{"required": []string{"from"}}
	record.PrecomputeMessages() // else huma still requires what it did
	source.PrecomputeMessages()
	weights := r.Map()["Fair"]
	describeInput(weights, schema.Fields[schema.Fair]())
	weights.Required = nil
	weights.PrecomputeMessages()
	describeInput(r.Map()["Anchor"], schema.Fields[schema.Anchor]())
	describeInput(r.Map()["Match"], schema.Fields[schema.Match]())
}

func describeFields[T any](s *huma.Schema, fields []schema.Field[T]) {
	for _, f := range fields {
		s.Properties[f.Name].Description = f.Description
	}
}

// redescribe ends a description by another default than that of the declaration.
func redescribe(s *huma.Schema, ending string) {
	for _, own := range [...]string{" Default: ", " Required."} {
		s.Description, _, _ = strings.Cut(s.Description, own)
	}
	s.Description += " " + ending
}

// spellings are the other names by which a body gives its fields.
type spellings struct {
	names map[string]string // of the fields, by their own
	twice []schema.Alias    // of fields that are given by two names, with different values
}

// respell decodes a body into a value with its fields by their own names, and returns the body with these names. An
// empty text is absent.
func respell(body []byte, aliases []schema.Alias, into any) ([]byte, spellings, error) {
	var used spellings
	mayHave := func(a schema.Alias) bool { return bytes.Contains(body, []byte(`"`+a.Name+`"`)) }
	if !slices.ContainsFunc(aliases, mayHave) && bytes.IndexByte(body, '\\') < 0 {
		return body, used, json.Unmarshal(body, into)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, used, err
	}
	used.names = map[string]string{}
	isAbsent := func(value json.RawMessage) bool { return len(value) == 0 || string(value) == `""` }
	for _, a := range aliases {
		value, own := members[a.Name], members[a.Field]
		switch delete(members, a.Name); {
		case isAbsent(value) || bytes.Equal(value, own):
		case !isAbsent(own):
			used.twice = append(used.twice, a)
		default:
			members[a.Field], used.names[a.Field] = value, a.Name
		}
	}
	body, err := json.Marshal(members)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	return body, used, err
}

// name returns the name by which a field was given.
func (s *spellings) name(field string) string {
	if name, ok := s.names[field]; ok {
		return name
	}
	return field
}

// upperTier is the name of a tier whose value is converted to lower case.
const upperTier = "orgTier"

// tier returns a tier as it was given.
func (s *spellings) tier(text string) string {
	if s.name("tier") == upperTier {
		return strings.ToLower(text)
	}
	return text
}

// faults returns the faults of fields that are given by two names.
func (s *spellings) faults(place string) (faults []error) {
	for _, a := range s.twice {
		faults = append(faults, fault(place+"."+a.Name, otherSpelling(a.Field), nil))
	}
	return faults
}

func describeAliases(s *huma.Schema, aliases []schema.Alias) {
	for _, a := range aliases {
		other := *s.Properties[a.Field]
		other.Description = "Another spelling of " + a.Field + "."
		if a.Name == upperTier {
			other.Description = "Another spelling of tier; converted to lower case."
		}
		s.Properties[a.Name] = &other
	}
	s.PrecomputeMessages()
}
