package fieldschema

import "math"

const (
	missingField = "required field missing"
	unknownField = "unknown field"
)

// validate returns what is wrong with value: nil, a message, or a table of faults by field or index. It follows Kong's
// Schema:validate_field.
func (f *field) validate(value any) any {
	if value == nil {
		return f.validateNull()
	}
	if eq, has := f.attrs["eq"]; has && eq == nil {
		return f.messageOr("value must be null")
	}
	if f.isSet("abstract") {
		return "error in schema definition: abstract field was not specialized"
	}
	if fault := f.validateKind(value); fault != nil {
		return fault
	}
	if f.kind == "string" && f.isSet("referenceable") {
		if _, is := parseReference(value); is {
			return nil
		}
	}
	return f.runValidators(value)
}

func (f *field) validateNull() any {
	eq, hasEq := f.attrs["eq"]
	ne, hasNe := f.attrs["ne"]
	switch {
	case hasNe && ne == nil:
		return f.messageOr("value must not be null")
	case hasEq && eq != nil:
		return "value must be " + luaText(eq)
	case f.isSet("required"):
		return missingField
	}
	return nil
}

// validateKind checks the type of value and the values in it.
func (f *field) validateKind(value any) any {
	t, isTable := value.(*table)
	switch f.kind {
	case "array":
		return f.validateList(t, "expected an array")
	case "set":
		return f.validateList(t, "expected a set")
	case "map":
		if !isTable {
			return "expected a map"
		}
		return f.validateMap(t)
	case "record":
		if !isTable {
			return "expected a record"
		}
		return f.validateRecord(f.fillRecord(t, inserting), true)
	case "foreign":
		return validateForeign(value)
	}
	return f.validateScalar(value)
}

func (f *field) validateScalar(value any) any {
	ok, expected := true, "expected a "+f.kind
	switch f.kind {
	case "string":
		_, ok = value.(string)
	case "boolean":
		_, ok = value.(bool)
	case "number":
		_, ok = value.(float64)
	case "integer":
		n, isNumber := value.(float64)
		ok, expected = isNumber && n == math.Floor(n) && !math.IsInf(n, 0), "expected an integer"
	case "function":
		ok = false
	}
	if ok {
		return nil
	}
	return expected
}

func (f *field) validateList(t *table, expected string) any {
	if t == nil || !t.isSequence() {
		return expected
	}
	faults := newTable()
	for i := 1; i <= t.length(); i++ {
		if fault := f.elements.validate(t.entries[i]); fault != nil {
			faults.entries[i] = fault
		}
	}
	return faultsOrNil(faults)
}

// validateMap reports the first fault, without the key, as Kong does.
func (f *field) validateMap(t *table) any {
	for _, key := range t.keys() {
		name := key
		if index, isNumber := key.(int); isNumber {
			name = float64(index)
		}
		if fault := f.keys.validate(name); fault != nil {
			return fault
		}
		if fault := f.values.validate(t.entries[key]); fault != nil {
			return fault
		}
	}
	return nil
}

// validateRecord checks a record that has been filled in. Unless it is full, a required field may be absent.
func (f *field) validateRecord(data *table, full bool) any {
	faults := newTable()
	for _, key := range data.keys() {
		if key == "updated_at" {
			continue // Kong ignores this field
		}
		child := f.child(keyText(key))
		if child == nil {
			faults.entries[key] = unknownField
		} else if fault := child.validate(data.entries[key]); fault != nil {
			faults.entries[key] = fault
		}
	}
	for _, child := range f.fields {
		value := data.get(child.name)
		if child.isSet("required") && (value == nil || full && isMissing(value)) {
			faults.entries[child.name] = missingField
		}
	}
	for _, rule := range f.checks {
		f.runCheck(rule, data, full, faults)
	}
	return faultsOrNil(faults)
}

func faultsOrNil(faults *table) any {
	if len(faults.entries) == 0 {
		return nil
	}
	return faults
}

// validateForeign checks a reference to another entity, which is named by its id.
func validateForeign(value any) any {
	fault := newTable()
	t, isTable := value.(*table)
	if !isTable {
		if _, isString := value.(string); !isString {
			raise("attempt to index %s", luaText(value))
		}
		fault.entries["id"] = "missing primary key"
		return fault
	}
	switch id := t.get("id").(type) {
	case missing:
		fault.entries["id"] = "missing primary key"
	case nil:
		fault.entries["id"] = missingField
	case string:
		if !uuidPattern.MatchString(id) {
			fault.entries["id"] = "expected a valid UUID"
		}
	default:
		fault.entries["id"] = "expected a string"
	}
	return faultsOrNil(fault)
}

// messageOr returns the field's own message if it has one, else message.
func (f *field) messageOr(message string) string {
	if own, ok := f.attrs["err"].(string); ok {
		return own
	}
	return message
}

func (f *field) minLength() float64 {
	if least, ok := f.attrs["len_min"].(float64); ok {
		return least
	}
	return 1 // an empty string is no value in Kong
}
