package fieldschema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// entityKey is the key of a record's faults that belong to none of its fields.
const entityKey = "@entity"

// Violation describes all that is wrong with a plugin entity. Its JSON is the body of the Admin API's answer, whose
// status is 400.
type Violation struct {
	Code    int            `json:"code"`
	Name    string         `json:"name"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields"`

	faults *table
}

// Error returns Kong's message.
func (v *Violation) Error() string { return v.Message }

// Fault is one thing that is wrong; Path leads to it from the plugin, such as "config.tiers[1].name".
type Fault struct {
	Path, Message string
}

// Faults lists what is wrong, sorted by the path's fields.
func (v *Violation) Faults() []Fault { return listFaults("", v.faults) }

func listFaults(path string, faults *table) []Fault {
	var out []Fault
	for _, key := range faults.keys() {
		at := path
		switch k := key.(type) {
		case int:
			at = fmt.Sprintf("%s[%d]", path, k-1)
		case string:
			if k == entityKey {
				for _, message := range tableItems(faults.entries[key]) {
					out = append(out, Fault{path, luaText(message)})
				}
				continue
			}
			at = joinPath(path, k)
		}
		if inner, isTable := faults.entries[key].(*table); isTable {
			out = append(out, listFaults(at, inner)...)
			continue
		}
		out = append(out, Fault{at, luaText(faults.entries[key])})
	}
	return out
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// newViolation words the faults of an entity as Kong does: two levels by name, deeper ones as Lua.
func newViolation(faults *table) *Violation {
	var lines []string
	if entity, ok := faults.get(entityKey).(*table); ok {
		for _, message := range tableItems(entity) {
			lines = append(lines, luaText(message))
		}
	}
	for _, name := range sortableKeys(faults) {
		if name == entityKey {
			continue
		}
		inner, isTable := faults.entries[name].(*table)
		if !isTable {
			lines = append(lines, keyText(name)+": "+luaText(faults.entries[name]))
			continue
		}
		for _, key := range sortableKeys(inner) {
			value := luaText(inner.entries[key])
			if t, ok := inner.entries[key].(*table); ok {
				value = pretty(t)
			}
			lines = append(lines, fmt.Sprintf("%v.%v: %s", name, key, value))
		}
	}
	message := fmt.Sprintf("%d schema violations (%s)", len(lines), strings.Join(lines, "; "))
	if len(lines) == 1 {
		message = fmt.Sprintf("schema violation (%s)", lines[0])
	}
	return &Violation{2, "schema violation", message, faults.object(), faults}
}

// sortableKeys returns the keys of t in order. Lua cannot sort numbers among names, and raises.
func sortableKeys(t *table) []any {
	keys := t.keys()
	if len(keys) > 0 {
		_, first := keys[0].(int)
		if _, last := keys[len(keys)-1].(int); first != last {
			raise("attempt to compare number with string")
		}
	}
	return keys
}

// pretty prints a table as Penlight's pretty.write does.
func pretty(t *table) string {
	return strings.Join(prettyLines(t, "", ""), "\n")
}

// prettyLines prints t; before stands on its first line, indent before its last.
func prettyLines(t *table, before, indent string) []string {
	lines := []string{before + "{"}
	deeper := indent + "  "
	add := func(label string, value any) {
		if inner, ok := value.(*table); ok {
			lines = append(lines, prettyLines(inner, deeper+label, deeper)...)
		} else {
			lines = append(lines, deeper+label+quoteLua(luaText(value)))
		}
		lines[len(lines)-1] += ","
	}
	listed := t.length()
	for i := 1; i <= listed; i++ {
		add("", t.entries[i])
	}
	keys := t.keys()
	slices.SortStableFunc(keys, func(a, b any) int { return kindOrder(a) - kindOrder(b) }) // names before holes' numbers
	for _, key := range keys {
		switch k := key.(type) {
		case string:
			add(luaKey(k)+" = ", t.entries[key])
		case int:
			if k > listed {
				add(fmt.Sprintf("[%d] = ", k), t.entries[key])
			}
		}
	}
	lines[len(lines)-1] = strings.TrimSuffix(lines[len(lines)-1], ",")
	return append(lines, indent+"}")
}

func kindOrder(key any) int {
	if _, isNumber := key.(int); isNumber {
		return 1
	}
	return 0
}

var (
	identifier  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	luaKeywords = strings.Fields(`and break do else elseif end false for function if in local nil not or repeat return
		then true until while`)
	longBracket = regexp.MustCompile(`\[=*\[|\]=*\]`)
)

func luaKey(name string) string {
	if identifier.MatchString(name) && !slices.Contains(luaKeywords, name) {
		return name
	}
	key := quoteLua(name)
	if strings.HasPrefix(key, "[") {
		key = " " + key + " "
	}
	return "[" + key + "]"
}

// quoteLua writes a string as Lua source: in long brackets where it has a line break or brackets that would end them.
func quoteLua(s string) string {
	level, bracketed := bracketLevel(s + "]")
	if (strings.Contains(s, "\n") || bracketed) && !strings.Contains(s, "\r") {
		if strings.HasPrefix(s, "\n") {
			s = "\n" + s
		}
		signs := strings.Repeat("=", level)
		return "[" + signs + "[" + s + "]" + signs + "]"
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, "\n", "\\\n", "\r", `\r`, "\x00", `\0`).Replace(s) + `"`
}

// bracketLevel returns how many equal signs a long bracket around s needs, and whether s has one itself.
func bracketLevel(s string) (level int, has bool) {
	for start := 0; start < len(s); start++ {
		if at := longBracket.FindStringIndex(s[start:]); at != nil && at[0] == 0 {
			level, has = max(level, at[1]-1), true
		}
	}
	return level, has
}
