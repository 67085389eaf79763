package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// spellings are the other names by which a body gives its fields.
type spellings struct {
	names map[string]string // of the fields, by their own
	twice []schema.Alias    // of fields that are given by two names, with different values
}

// respell returns a body with its fields by their own names. An empty text is absent.
func respell(body []byte, aliases []schema.Alias) ([]byte, spellings, error) {
	var used spellings
	mayHave := func(a schema.Alias) bool { return bytes.Contains(body, []byte(`"`+a.Name+`"`)) }
	if !slices.ContainsFunc(aliases, mayHave) && bytes.IndexByte(body, '\\') < 0 {
		return body, used, nil
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

// describeAliases describes the other names of fields.
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
