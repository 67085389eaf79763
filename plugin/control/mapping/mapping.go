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

// source is a place that a text is read from.
type source struct {
	key  string // of a text of the request; "": text is what is read
	text string
}

// Parse parses the fields of a mapping. form is how its sources name texts of a request, such as descriptor.<key>.
// switches are more fields, which are true or false. The error has the path of the field that is wrong: at is what
// stands before its name.
func Parse(at string, list map[string]yaml.Node, form string, switches map[string]*bool) (m Mapping, err error) {
	for _, field := range slices.Sorted(maps.Keys(list)) {
		if err := m.set(field, list[field], form, switches); err != nil {
			return m, fmt.Errorf("%s%s: %w", at, field, err)
		}
	}
	if len(slices.Concat(m.sources[:]...)) == 0 {
		return m, fmt.Errorf("%stenant_from: is required where nothing else is mapped, such as [%s]", at, exampleOf(form))
	}
	return m, nil
}

func (m *Mapping) set(field string, node yaml.Node, form string, switches map[string]*bool) error {
	if to := switches[field]; to != nil {
		if node.Decode(to) != nil {
			return fmt.Errorf("%q must be true or false", node.Value)
		}
		return nil
	}
	names := slices.Sorted(maps.Keys(switches))
	for i := range fields {
		if fields[i].name == field {
			return parseSources(node, form, &m.sources[i])
		}
		names = append(names, fields[i].name)
	}
	return errors.New("unknown field: use " + strings.Join(names, ", "))
}

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
// "" if the request lacks it.
func (m *Mapping) Read(r *admit.CallerRequest, textOf func(key string) string) (found bool) {
	*r = admit.CallerRequest{}
	for i := range fields {
		for _, s := range m.sources[i] {
			text := s.text
			if s.key != "" {
				text = textOf(s.key)
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
