package fieldschema

// context says what a value is filled in for.
type context int

const (
	inserting context = iota
	updating          // part of an entity: what is absent stays absent
	reading           // what the database holds: what is absent, or null though required, gets its default
)

// fillRecord returns a copy of a record's data with the fields that are absent filled in, as far as the context asks
// for it. Fields inside of it are filled in likewise, sets lose their duplicates.
func (f *field) fillRecord(data *table, in context) *table {
	out := newTable()
	for key, value := range data.entries {
		out.entries[key] = value
	}
	for _, child := range f.fields {
		value := child.fill(copied(data.get(child.name)), in)
		if child.is("auto") && isMissing(data.get(child.name)) {
			value = missing{} // an id or a date of the database
		}
		if in == reading {
			value = child.read(value)
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

// read returns a scalar as Kong hands it out of its database.
func (f *field) read(value any) any {
	if s, ok := value.(string); ok && s == "" && f.kind == "string" && f.minLength() > 0 {
		return nil
	}
	return value
}

func (f *field) fill(value any, in context) any {
	if in == reading && value == nil && f.isRequired() {
		return f.fallback()
	}
	if f.is("abstract") {
		return value
	}
	if f.kind == "record" {
		value = f.fillNested(value, in)
	} else if t, ok := value.(*table); ok {
		value = f.fillItems(t, in)
	}
	if isMissing(value) && in != updating {
		return f.fallback()
	}
	return value
}

func (f *field) fillNested(value any, in context) any {
	if value == nil || isMissing(value) && (in == updating || !f.isRequired()) {
		return value
	}
	if isMissing(value) || value == false {
		value = f.fallback()
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

// withoutDuplicates keeps the first of equal elements of a sequence. Records are equal to nothing else.
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

// fallback returns what an absent value of the field becomes.
func (f *field) fallback() any {
	if value, has := f.attrs["default"]; has {
		return fromJSON(value)
	}
	switch {
	case !f.isRequired():
		return nil
	case f.kind == "record" && !f.is("abstract"):
		return f.fillRecord(newTable(), inserting)
	}
	return missing{} // required: the check will say so
}

// merge returns the record that a partial one, top, makes of bottom: records are merged field by field, everything else
// is replaced.
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
		if isTable && child.kind == "record" && !child.is("abstract") {
			out.set(child.name, child.merge(value, under.get(child.name)))
		}
	}
	return out
}

// export converts a value of the field for JSON: lists that are empty stay lists, numbers have as many digits as the
// database keeps.
func (f *field) export(value any) any {
	switch v := value.(type) {
	case float64:
		return stored(v)
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
