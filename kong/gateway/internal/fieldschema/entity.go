package fieldschema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// pluginFields holds the fields of every plugin entity but its config. A plugin's schema may narrow them.
const pluginFields = `[
 {"id": {"type": "string", "uuid": true, "auto": true}},
 {"name": {"type": "string", "required": true}},
 {"instance_name": {"type": "string", "unique": true}},
 {"created_at": {"type": "integer", "timestamp": true, "auto": true}},
 {"updated_at": {"type": "integer", "timestamp": true, "auto": true}},
 {"route": {"type": "foreign", "reference": "routes", "default": null}},
 {"service": {"type": "foreign", "reference": "services", "default": null}},
 {"consumer": {"type": "foreign", "reference": "consumers", "default": null}},
 {"config": {"type": "record", "abstract": true}},
 {"protocols": {"type": "set", "required": true, "default": ["grpc", "grpcs", "http", "https"], "elements": {
   "type": "string", "one_of": ["grpc", "grpcs", "http", "https", "tcp", "tls", "tls_passthrough", "udp"]}}},
 {"enabled": {"type": "boolean", "required": true, "default": true}},
 {"tags": {"type": "set", "elements": {"type": "string"}}}]`

// newEntity returns the record of a plugin entity: Kong's own fields, replaced by those that the plugin's schema has.
func newEntity(schema *field) (*field, error) {
	var fields []any
	if err := json.Unmarshal([]byte(pluginFields), &fields); err != nil {
		return nil, fmt.Errorf("fields of a plugin: %w", err)
	}
	entity, err := compile("", "", map[string]any{"type": "record", "fields": fields})
	if err != nil {
		return nil, err
	}
	entity.child("instance_name").custom = checkName
	entity.child("tags").elements.custom = checkTag
	for _, own := range schema.fields {
		parent := entity.child(own.name)
		if parent == nil {
			return nil, fmt.Errorf("%s: cannot create a new field", own.name)
		}
		if !compatible(parent, own) {
			return nil, fmt.Errorf("%s: cannot change type in a specialized field", own.name)
		}
		*parent = *own
	}
	return entity, nil
}

// compatible reports whether a plugin's schema may replace one of Kong's fields, parent, by own.
func compatible(parent, own *field) bool {
	if parent.kind != own.kind {
		return false
	}
	return parent.elements == nil || parent.elements.kind == own.elements.kind
}

// requireRecords makes every record required whose schema has no "required", as Kong does. It does not reach records in
// lists and maps.
func (f *field) requireRecords() {
	if _, given := f.attrs["required"]; !given {
		f.attrs["required"] = true
	}
	for _, child := range f.fields {
		if child.kind == "record" {
			child.requireRecords()
		}
	}
}

// Insert judges a new plugin entity as the Admin API and a declarative file do, and returns it as Kong stores it, with
// nulls for what is absent. entity is decoded JSON: name, config, protocols and so on. The error is a *[Violation], or
// wraps [ErrRaised].
func (s *Schema) Insert(entity map[string]any) (kept map[string]any, err error) {
	defer recoverRaised(&err)
	filled := s.entity.fillRecord(fromJSON(entity).(*table), inserting)
	return s.store(filled, true)
}

// Update judges a partial entity over the one that is stored, as PATCH does: records are merged field by field.
func (s *Schema) Update(kept, patch map[string]any) (updated map[string]any, err error) {
	defer recoverRaised(&err)
	filled := s.entity.fillRecord(fromJSON(patch).(*table), updating)
	return s.store(s.entity.merge(filled, fromJSON(kept)), false)
}

func (s *Schema) store(entity *table, full bool) (map[string]any, error) {
	if fault := s.judge(entity, full); fault != nil {
		return nil, newViolation(fault)
	}
	kept, _ := s.entity.export(s.entity.fillRecord(entity, reading)).(map[string]any)
	return kept, nil
}

func (s *Schema) judge(entity *table, full bool) *table {
	faults := newTable()
	switch name := entity.get("name").(type) {
	case nil, missing:
		faults.entries["name"] = missingField
		return faults
	default:
		if name != s.name {
			faults.entries["name"] = fmt.Sprintf(
				"plugin '%s' not enabled; add it to the 'plugins' configuration property", luaText(name))
			return faults
		}
	}
	found, _ := s.entity.validateRecord(entity, full).(*table)
	if !full && found != nil {
		rewordForUpdate(found)
	}
	return found
}

// rewordForUpdate changes the messages that Kong words differently when an entity is updated.
func rewordForUpdate(faults *table) {
	for key, fault := range faults.entries {
		if inner, isTable := fault.(*table); isTable {
			rewordForUpdate(inner)
		} else if message := luaText(fault); strings.HasPrefix(message, atLeastOne) {
			faults.entries[key] = "when updating, " + message
		} else if message == neededForCheck {
			faults.entries[key] = message + " when updating"
		}
	}
}

var (
	tagPattern  = regexp.MustCompile(`^[ !-+\-.0-~\x{80}-\x{10ffff}]+$`)
	namePattern = regexp.MustCompile(`^[0-9A-Za-z.\-_~\x{80}-\x{10ffff}]+$`)
)

// checkTag returns the message for a string that Kong denies as a tag.
func checkTag(tag string) string {
	if at := invalidUTF8(tag); at > 0 {
		return notUTF8(at)
	}
	return messageUnless(tagPattern.MatchString(tag),
		"invalid tag '%s': expected printable ascii (except `,` and `/`) or valid utf-8 sequences", tag)
}

// checkName returns the message for a string that Kong denies as a name, such as instance_name.
func checkName(name string) string {
	if at := invalidUTF8(name); at > 0 {
		return notUTF8(at)
	}
	return messageUnless(namePattern.MatchString(name),
		"invalid value '%s': the only accepted ascii characters are alphanumerics or ., -, _, and ~", name)
}

func notUTF8(at int) string {
	return fmt.Sprintf("invalid utf-8 character sequence detected at position %d", at)
}

// invalidUTF8 returns the position, from 1, of the first byte that is not UTF-8; 0 if all are.
func invalidUTF8(s string) int {
	for at, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[at:], string(utf8.RuneError)) {
			return at + 1
		}
	}
	return 0
}
