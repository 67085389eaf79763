package fieldschema

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
)

// Verdicts follow from Lua's rules, so values are kept as Kong keeps them: nil is ngx.null, missing is Lua's nil, then
// bool, float64, string and *table.
type missing struct{}

// table holds the entries of a Lua table; keys are string or int. Tables are compared by identity.
type table struct {
	entries map[any]any
}

func newTable() *table { return &table{entries: map[any]any{}} }

// get returns the entry of key, or missing.
func (t *table) get(key any) any {
	if value, ok := t.entries[key]; ok {
		return value
	}
	return missing{}
}

// set stores value under key, and drops the entry if value is missing.
func (t *table) set(key, value any) {
	if isMissing(value) {
		delete(t.entries, key)
		return
	}
	t.entries[key] = value
}

// length returns the number of entries from 1 on without a gap, as # does.
func (t *table) length() int {
	n := 0
	for {
		if _, ok := t.entries[n+1]; !ok {
			return n
		}
		n++
	}
}

func (t *table) isSequence() bool { return t.length() == len(t.entries) }

// keys returns the keys: numbers in order, then names in order.
func (t *table) keys() []any {
	keys := make([]any, 0, len(t.entries))
	for key := range t.entries {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool {
		a, aIsNumber := keys[i].(int)
		b, bIsNumber := keys[j].(int)
		if aIsNumber && bIsNumber {
			return a < b
		}
		if aIsNumber != bIsNumber {
			return aIsNumber
		}
		return keys[i].(string) < keys[j].(string)
	})
	return keys
}

func isMissing(value any) bool {
	_, is := value.(missing)
	return is
}

// fromJSON converts a decoded JSON value, or a Go value in its place. It copies, so that two values share no tables.
func fromJSON(value any) any {
	switch v := value.(type) {
	case []any:
		t := newTable()
		for i, item := range v {
			t.entries[i+1] = fromJSON(item)
		}
		return t
	case map[string]any:
		t := newTable()
		for key, item := range v {
			t.entries[key] = fromJSON(item)
		}
		return t
	case int:
		return float64(v)
	case int64:
		return float64(v)
	}
	return value
}

// deepCopy returns a copy of value that shares no tables with it.
func deepCopy(value any) any {
	t, ok := value.(*table)
	if !ok {
		return value
	}
	out := newTable()
	for key, item := range t.entries {
		out.entries[key] = deepCopy(item)
	}
	return out
}

// toJSON converts value to what cjson encodes: a table whose keys are all numbers becomes an array with null in its
// holes, any other table, an empty one too, becomes an object.
func toJSON(value any) any {
	t, ok := value.(*table)
	if !ok {
		return value
	}
	last := 0
	for key := range t.entries {
		index, isNumber := key.(int)
		if !isNumber {
			return t.object()
		}
		last = max(last, index)
	}
	if last == 0 {
		return t.object()
	}
	list := make([]any, last)
	for i := range list {
		list[i] = toJSON(t.entries[i+1])
	}
	return list
}

func (t *table) object() map[string]any {
	object := make(map[string]any, len(t.entries))
	for key, item := range t.entries {
		object[keyText(key)] = toJSON(item)
	}
	return object
}

func keyText(key any) string { return fmt.Sprint(key) }

// ErrRaised marks a value that makes Kong's own code fail: the Admin API answers 500 to it.
var ErrRaised = errors.New("an unexpected error occurred")

// raise panics where Kong's code would end in a Lua error. [recoverRaised] recovers from it.
func raise(format string, args ...any) {
	panic(fmt.Errorf("%w: %s", ErrRaised, fmt.Sprintf(format, args...)))
}

func recoverRaised(err *error) {
	switch raised := recover().(type) {
	case nil:
	case error:
		if !errors.Is(raised, ErrRaised) {
			panic(raised)
		}
		*err = raised
	default:
		panic(raised)
	}
}

// luaText formats a value as Lua's tostring does.
func luaText(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case missing:
		return "nil"
	case string:
		return v
	case float64:
		return numberText(v)
	case *table:
		return "table"
	}
	return fmt.Sprint(value)
}

const storedDigits = 14 // significant digits of a number in Lua's tostring and in what Kong stores

func numberText(number float64) string {
	return strconv.FormatFloat(number, 'g', storedDigits, 64)
}

// roundStored returns the number that Kong reads back after it has stored this one.
func roundStored(number float64) float64 {
	rounded, err := strconv.ParseFloat(numberText(number), 64)
	if err != nil {
		raise("cannot store %v", number)
	}
	return rounded
}

// formatInteger formats a number as %d does.
func formatInteger(value any) string {
	return strconv.FormatInt(int64(math.Trunc(asNumber(value))), 10)
}

// asNumber returns value as a number. Any other value cannot be compared, and raises.
func asNumber(value any) float64 {
	n, ok := value.(float64)
	if !ok {
		raise("attempt to compare %s with number", luaText(value))
	}
	return n
}

// asString returns value as a string. Any other value has no string methods, and raises.
func asString(value any) string {
	s, ok := value.(string)
	if !ok {
		raise("attempt to index %s", luaText(value))
	}
	return s
}

// format formats a schema's own message with its one argument, as string.format does.
func format(message, argument string) string {
	var out []byte
	for i := 0; i < len(message); i++ {
		if message[i] != '%' {
			out = append(out, message[i])
			continue
		}
		i++
		switch {
		case i < len(message) && message[i] == '%':
			out = append(out, '%')
		case i < len(message) && message[i] == 's':
			out = append(out, argument...)
		default:
			raise("invalid option in format %q", message)
		}
	}
	return string(out)
}
