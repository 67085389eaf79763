package simulate

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// decoder reads a YAML document into structs, whose fields have their names as tags. It collects all faults.
type decoder struct{ faults schema.Faults }

func (d *decoder) fault(path, format string, args ...any) {
	d.faults = append(d.faults, schema.Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// value reads a node into what to points to.
func (d *decoder) value(n *yaml.Node, path string, to reflect.Value) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch to.Interface().(type) {
	case *yaml.Node:
		to.Set(reflect.ValueOf(n))
		return
	case time.Duration:
		d.duration(n, path, to)
		return
	}
	switch to.Kind() {
	case reflect.Struct:
		d.fields(n, path, to)
	case reflect.Slice:
		d.items(n, path, to)
	default:
		if err := n.Decode(to.Addr().Interface()); err != nil || n.Kind != yaml.ScalarNode || isRounded(n, to) {
			d.fault(path, "must be %s, got %s", kindText(to.Kind()), nodeText(n))
		}
	}
}

// isRounded reports whether a number lost its fraction.
func isRounded(n *yaml.Node, to reflect.Value) bool {
	var number float64
	if !to.CanInt() && !to.CanUint() || n.Decode(&number) != nil {
		return false
	}
	return number != math.Trunc(number)
}

// kindText names what a value must be.
func kindText(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Uint64:
		return "a whole number, not below 0"
	default:
		return "a whole number"
	}
}

// nodeText describes a node in a message.
func nodeText(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", docpath.Shorten(n.Value))
	}
}

func (d *decoder) duration(n *yaml.Node, path string, to reflect.Value) {
	parsed, err := time.ParseDuration(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		d.fault(path, "must be a duration with its unit, such as 10s or 500ms, got %s", nodeText(n))
		return
	}
	to.SetInt(int64(parsed))
}

func (d *decoder) items(n *yaml.Node, path string, to reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fault(path, "must be a list, got %s", nodeText(n))
		return
	}
	to.Set(reflect.MakeSlice(to.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, docpath.Item(path, i), to.Index(i))
	}
}

func (d *decoder) fields(n *yaml.Node, path string, to reflect.Value) {
	names := fieldNames(to.Type())
	if n.Kind != yaml.MappingNode {
		d.fault(path, "must be a mapping with the fields %s, got %s", listed(names), nodeText(n))
		return
	}
	var seen []string
	for pair := range slices.Chunk(n.Content, 2) {
		name, at := pair[0].Value, docpath.Member(path, pair[0].Value)
		switch field := slices.Index(names, name); {
		case field < 0:
			d.fault(at, "unknown field: remove it; the fields here are %s", listed(names))
		case slices.Contains(seen, name):
			d.fault(at, "appears twice: remove one")
		default:
			seen = append(seen, name)
			faults := len(d.faults)
			d.value(pair[1], at, to.Field(field))
			if to.Field(field).IsZero() && to.Type().Field(field).Tag.Get("zero") == "no" && len(d.faults) == faults {
				d.fault(at, "must not be %s: leave it out for the default", nodeText(pair[1]))
			}
		}
	}
}

// fieldNames returns the names of the exported fields of a struct, which come first in it.
func fieldNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func listed(names []string) string { return strings.Join(names, ", ") }
