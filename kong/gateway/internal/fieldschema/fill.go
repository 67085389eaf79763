package fieldschema

// context is the purpose of filling a value in.
type context int

const (
	inserting context = iota
	updating          // of a part of an entity: absent fields stay absent
	reading           // from the database: absent fields, and nulls of required ones, get their defaults
)

// fillRecord returns a copy of a record's data with its absent fields filled in, as the context requires. It does the
// same to the fields within, and drops the duplicates of sets.
func (f *field) fillRecord(data *table, in context) *table {
	out := newTable()
	for key, value := range data.entries {
		out.entries[key] = value
	}
	for _, child := range f.fields {
		value := child.fill(deepCopy(data.get(child.name)), in)
		if child.isSet("auto") && isMissing(data.get(child.name)) {
			value = missing{} // an id or a date of the database
		}
		if in == reading {
			value = child.readScalar(value)
		}
		out.set(child.name, value)
	}
	if in == reading {
		for key := range out.entries {
			if f.child(keyText(key)) == nil {
				delete(out.entries, key)
			}
		}
	}
	return out
}

// readScalar returns a scalar as Kong reads it from its database.
func (f *field) readScalar(value any) any {
	if s, ok := value.(string); ok && s == "" && f.kind == "string" && f.minLength() > 0 {
		return nil
	}
	return value
}

func (f *field) fill(value any, in context) any {
	if in == reading && value == nil && f.isRequired() {
		return f.defaultValue()
	}
	if f.isSet("abstract") {
		return value
	}
	if f.kind == "record" {
		value = f.fillNested(value, in)
	} else if t, ok := value.(*table); ok {
		value = f.fillItems(t, in)
	}
	if isMissing(value) && in != updating {
		return f.defaultValue()
	}
	return value
}

func (f *field) fillNested(value any, in context) any {
	if value == nil || isMissing(value) && (in == updating || !f.isRequired()) {
		return value
	}
	if isMissing(value) || value == false {
		value = f.defaultValue()
	}
	if t, ok := value.(*table); ok {
		return f.fillRecord(t, in)
	}
	return value
}

func (f *field) fillItems(t *table, in context) any {
	var items *field
	switch f.kind {
	case "array":
		items = f.elements
	case "set":
		t, items = withoutDuplicates(t), f.elements
	case "map":
		items = f.values
	default:
		return t
	}
	for _, key := range t.keys() {
		t.set(key, items.fill(t.entries[key], in))
	}
	return t
}

// withoutDuplicates keeps the first of equal elements of a sequence. No two records are equal.
func withoutDuplicates(t *table) *table {
	if !t.isSequence() {
		return t
	}
	out, seen := newTable(), map[any]bool{}
	for i := 1; i <= t.length(); i++ {
		if value := t.entries[i]; !seen[value] {
			seen[value] = true
			out.entries[len(out.entries)+1] = value
		}
	}
	return out
}

// defaultValue returns what an absent value of the field becomes.
func (f *field) defaultValue() any {
	if value, has := f.attrs["default"]; has {
		return fromJSON(value)
	}
	switch {
	case !f.isRequired():
		return nil
	case f.kind == "record" && !f.isSet("abstract"):
		return f.fillRecord(newTable(), inserting)
	}
	return missing{} // required: the check reports it
}

// merge returns bottom updated by the partial record top: records are merged field by field, everything else is
// replaced.
func (f *field) merge(top *table, bottom any) *table {
	out := newTable()
	under, _ := bottom.(*table)
	if under == nil {
		under = newTable()
	}
	for _, source := range []*table{under, top} {
		for key, value := range source.entries {
			out.entries[key] = value
		}
	}
	for _, child := range f.fields {
		value, isTable := top.get(child.name).(*table)
		if isTable && child.kind == "record" && !child.isSet("abstract") {
			out.set(child.name, child.merge(value, under.get(child.name)))
		}
	}
	return out
}

// export converts a value of the field for JSON: empty lists stay lists, numbers have the digits that the database
// keeps.
func (f *field) export(value any) any {
	switch v := value.(type) {
	case float64:
		return roundStored(v)
	case *table:
		return f.exportTable(v)
	}
	return value
}

func (f *field) exportTable(t *table) any {
	switch f.kind {
	case "array", "set":
		list := make([]any, t.length())
		for i := range list {
			list[i] = f.elements.export(t.entries[i+1])
		}
		return list
	case "map":
		object := map[string]any{}
		for key, value := range t.entries {
			object[keyText(key)] = f.values.export(value)
		}
		return object
	case "record":
		object := map[string]any{}
		for _, child := range f.fields {
			if value := t.get(child.name); !isMissing(value) {
				object[child.name] = child.export(value)
			}
		}
		return object
	}
	return toJSON(t)
}
