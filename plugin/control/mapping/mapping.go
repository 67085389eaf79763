// Package mapping reads whom a request of another protocol is from: a file says which of its texts name the tenant, the
// user and the endpoint.
package mapping

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// Mapping has the sources of each part of a request. The first that gives a text counts.
type Mapping struct{ sources [len(fields)][]source }

// fields are the parts of a request that a mapping names, in the order in which they are set.
var fields = [...]struct {
	name string
	set  func(r *admit.CallerRequest, text string)
}{
	{"tenant_from", func(r *admit.CallerRequest, text string) { r.Tenant = text }},
	{"user_from", func(r *admit.CallerRequest, text string) { r.User = text }},
	{"tier_from", func(r *admit.CallerRequest, text string) { r.Tier = text }},
	{"credential_from", func(r *admit.CallerRequest, text string) { r.Credential = text }},
	{"ip_from", func(r *admit.CallerRequest, text string) { r.IP = text }},
	{"method_from", func(r *admit.CallerRequest, text string) { r.Method = text }},
	{"endpoint_from", func(r *admit.CallerRequest, text string) {
		method, path, route := admit.Target(text)
		r.Method, r.Path, r.Route = cmp.Or(method, r.Method), path, route
	}},
}

// firstTarget is the place of the first field that says what a request is for.
const firstTarget = 5

// source is a place that a text is read from.
type source struct {
	key  string // of a text of the request; "": text is what is read
	text string
}

// Parse parses the fields of a mapping. form is how its sources name texts of a request, such as descriptor.<key>. more
// parses fields that are no sources. The error has the path of the field that is wrong: at is what stands before its
// name.
func Parse(
	at string, list map[string]yaml.Node, form string, more map[string]func(yaml.Node) error,
) (m Mapping, err error) {
	for _, field := range slices.Sorted(maps.Keys(list)) {
		set := more[field]
		if set == nil {
			set = m.setterOf(field, form, more)
		}
		if err := set(list[field]); err != nil {
			return m, fmt.Errorf("%s%s: %w", at, field, err)
		}
	}
	return m, nil
}

// setterOf returns what parses the sources of a field.
func (m *Mapping) setterOf(field, form string, more map[string]func(yaml.Node) error) func(yaml.Node) error {
	names := slices.Sorted(maps.Keys(more))
	for i := range fields {
		if fields[i].name == field {
			return func(node yaml.Node) error { return parseSources(node, form, &m.sources[i]) }
		}
		names = append(names, fields[i].name)
	}
	return func(yaml.Node) error { return errors.New("unknown field: use " + strings.Join(names, ", ")) }
}

// IsEmpty reports whether the mapping has no sources, so that all requests look alike.
func (m *Mapping) IsEmpty() bool { return len(slices.Concat(m.sources[:]...)) == 0 }

func parseSources(node yaml.Node, form string, to *[]source) error {
	var texts []string
	if err := node.Decode(&texts); err != nil || len(texts) == 0 {
		return fmt.Errorf("must be a list of sources, such as [%s, static.internal]", exampleOf(form))
	}
	wanted, _, _ := strings.Cut(form, ".")
	for _, text := range texts {
		switch kind, detail, _ := strings.Cut(text, "."); {
		case kind == wanted && detail != "":
			*to = append(*to, source{key: detail})
		case kind == "static" && detail != "":
			*to = append(*to, source{text: detail})
		default:
			return fmt.Errorf("unknown source %q: use %s or static.<text>", text, form)
		}
	}
	return nil
}

// exampleOf returns a source of a form: descriptor.tenant.
func exampleOf(form string) string {
	kind, _, _ := strings.Cut(form, ".")
	return kind + ".tenant"
}

// Read replaces r by what the request has, and reports whether that is anything. textOf returns the text of a key, or
// "" if the request lacks it. isName says that the text names whom the request is from, and not what it is for.
func (m *Mapping) Read(r *admit.CallerRequest, textOf func(key string, isName bool) string) (found bool) {
	*r = admit.CallerRequest{}
	for i := range fields {
		for _, s := range m.sources[i] {
			text := s.text
			if s.key != "" {
				text = textOf(s.key, i < firstTarget)
			}
			if text != "" {
				fields[i].set(r, text)
				found = true
				break
			}
		}
	}
	return found
}
