package main

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// attributes reads the constraints in the tag called key, and the message for all of them in key_err.
func (s *source) attributes(tags reflect.StructTag, key string) (object, error) {
	if name, ok := strings.CutPrefix(tags.Get(key), "as="); ok {
		return s.attributesOf(name, key)
	}
	attributes, err := s.constraints(tags.Get(key))
	if message, ok := tags.Lookup(key + "_err"); ok {
		attributes = append(attributes, member{"err", message})
	}
	return attributes, err
}

// attributesOf returns the constraints of another field, named TYPE.FIELD, but for that it is required.
func (s *source) attributesOf(name, key string) (object, error) {
	typeName, fieldName, _ := strings.Cut(name, ".")
	r, err := s.record(typeName)
	if err != nil {
		return nil, err
	}
	for _, f := range r.fields {
		if f.name != fieldName {
			continue
		}
		attributes, err := s.attributes(f.tags, key)
		return slices.DeleteFunc(attributes, func(m member) bool { return m.key == "required" }), err
	}
	return nil, fmt.Errorf("no field %s to take the constraints of", name)
}

// constraints reads a list such as "required,between=1..128" as attributes of a Kong field.
func (s *source) constraints(list string) (object, error) {
	var attributes object
	if list == "" {
		return attributes, nil
	}
	for item := range strings.SplitSeq(list, ",") {
		attribute, err := s.constraint(item)
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, attribute)
	}
	return attributes, nil
}

func (s *source) constraint(item string) (member, error) {
	key, value, _ := strings.Cut(item, "=")
	if key == "match_any" {
		list, ok := s.patterns[value]
		if !ok {
			return member{}, fmt.Errorf("no //kong:patterns %s", value)
		}
		patterns, message, err := cutMessage(list)
		return member{key, object{{"patterns", strings.Fields(patterns)}, {"err", message}}}, err
	}
	return plainConstraint(key, value)
}

// plainConstraint reads one attribute whose value is written out in the tag.
func plainConstraint(key, value string) (member, error) {
	switch key {
	case "required", "referenceable", "encrypted", "set":
		return member{key, true}, nil
	case "one_of":
		return member{key, strings.Split(value, "|")}, nil
	case "match":
		return member{key, value}, nil
	case "len_min", "len_max":
		n, err := strconv.ParseInt(value, 10, 64)
		return member{key, n}, err
	case "between":
		low, high, _ := strings.Cut(value, "..")
		from, err := strconv.ParseInt(low, 10, 64)
		if err != nil {
			return member{}, err
		}
		to, err := strconv.ParseInt(high, 10, 64)
		return member{key, []int64{from, to}}, err
	case "eq":
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			return member{key, n}, nil
		}
		if truth, err := strconv.ParseBool(value); err == nil {
			return member{key, truth}, nil
		}
		return member{key, value}, nil
	}
	return member{}, fmt.Errorf("unknown constraint %q", key)
}

// entityCheck reads the text of a //kong:check line, which is one of
//
//	at_least_one_of a|b
//	mutually_required a|b
//	mutually_exclusive a|b
//	conditional if=FIELD:CONSTRAINT then=FIELD:CONSTRAINT err="MESSAGE"
//	conditional_at_least_one_of if=FIELD:CONSTRAINT then=a|b err="MESSAGE"
func entityCheck(line string) (object, error) {
	name, rest, _ := strings.Cut(line, " ")
	switch name {
	case "at_least_one_of", "mutually_required", "mutually_exclusive":
		return object{{name, strings.Split(rest, "|")}}, nil
	case "conditional", "conditional_at_least_one_of":
		arguments, message, err := cutMessage(rest)
		if err != nil {
			return nil, err
		}
		condition, consequence, ok := strings.Cut(strings.TrimPrefix(arguments, "if="), " then=")
		if !ok {
			return nil, fmt.Errorf("want if=… then=…")
		}
		return conditionalCheck(name, condition, consequence, message)
	}
	return nil, fmt.Errorf("unknown entity check %q", name)
}

func conditionalCheck(name, condition, consequence, message string) (object, error) {
	ifField, ifMatch, err := fieldMatch(condition)
	if err != nil {
		return nil, err
	}
	check := object{{"if_field", ifField}, {"if_match", ifMatch}}
	if name == "conditional_at_least_one_of" {
		check = append(check, member{"then_at_least_one_of", strings.Split(consequence, "|")})
	} else {
		thenField, thenMatch, err := fieldMatch(consequence)
		if err != nil {
			return nil, err
		}
		check = append(check, member{"then_field", thenField}, member{"then_match", thenMatch})
	}
	return object{{name, append(check, member{"then_err", message})}}, nil
}

func fieldMatch(text string) (string, object, error) {
	name, constraint, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(constraint, "=")
	match, err := plainConstraint(key, value)
	return name, object{match}, err
}

// cutMessage splits off the err="…" at the end of a directive. Kong passes the message to string.format, so it must
// not hold a percent sign.
func cutMessage(text string) (rest, message string, err error) {
	rest, quoted, ok := strings.Cut(text, " err=")
	if !ok {
		return "", "", fmt.Errorf("no err=\"…\"")
	}
	message, err = strconv.Unquote(quoted)
	if err != nil {
		return "", "", fmt.Errorf("err: %w", err)
	}
	if strings.Contains(message, "%") {
		return "", "", fmt.Errorf("err: a percent sign would be taken for a format by Kong")
	}
	return rest, message, nil
}
