package envoy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// Mapping says how the descriptors of each domain name whom a request is from. Other domains have no limits.
type Mapping map[string]*domain

// domain is the mapping of one domain.
type domain struct {
	sources        [len(fields)][]source
	draftHeaders   bool // clients read the headers that Envoy itself writes, in place of those of the policies
	overridesLimit bool // the limit that a descriptor states counts, beside those of policies
}

// fields are the parts of a request that a domain maps, in the order in which they are set.
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
	entry string // a key of the descriptor's entries; "": text is what is read
	text  string
}

// ParseMapping parses a mapping in YAML. The error has the path of a field that is wrong.
func ParseMapping(text []byte) (Mapping, error) {
	var file map[string]map[string]map[string]yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("must be YAML of the form {domains: {edge: {tenant_from: [descriptor.tenant]}}}: %w", err)
	}
	m := Mapping{}
	for name, list := range file["domains"] {
		m[name] = &domain{}
		for _, field := range slices.Sorted(maps.Keys(list)) {
			if err := m[name].set(field, list[field]); err != nil {
				return nil, fmt.Errorf("domains.%s.%s: %w", name, field, err)
			}
		}
		if len(slices.Concat(m[name].sources[:]...)) == 0 {
			return nil, fmt.Errorf("domains.%s: maps nothing: set tenant_from, such as [descriptor.tenant]", name)
		}
	}
	if len(m) == 0 || len(file) > 1 {
		return nil, errors.New("domains: is required, with at least one domain, and is the only field")
	}
	return m, nil
}

// set sets a field of the domain.
func (d *domain) set(field string, node yaml.Node) error {
	switches := map[string]*bool{"draft_headers": &d.draftHeaders, "limit_override": &d.overridesLimit}
	if to := switches[field]; to != nil {
		if node.Decode(to) != nil {
			return fmt.Errorf("%q must be true or false", node.Value)
		}
		return nil
	}
	names := slices.Sorted(maps.Keys(switches))
	for i := range fields {
		if fields[i].name == field {
			return parseSources(node, &d.sources[i])
		}
		names = append(names, fields[i].name)
	}
	return errors.New("unknown field: use " + strings.Join(names, ", "))
}

func parseSources(node yaml.Node, to *[]source) error {
	var texts []string
	if err := node.Decode(&texts); err != nil || len(texts) == 0 {
		return errors.New("must be a list of sources, such as [descriptor.tenant, static.internal]")
	}
	for _, text := range texts {
		switch kind, detail, _ := strings.Cut(text, "."); {
		case kind == "descriptor" && detail != "":
			*to = append(*to, source{entry: detail})
		case kind == "static" && detail != "":
			*to = append(*to, source{text: detail})
		default:
			return fmt.Errorf("unknown source %q: use descriptor.<key> or static.<text>", text)
		}
	}
	return nil
}

// read fills r with what the domain reads from a descriptor, and reports whether that is anything. Of entries with one
// key the first counts.
func (d *domain) read(descriptor *common.RateLimitDescriptor, r *admit.CallerRequest) (found bool) {
	*r = admit.CallerRequest{}
	for i := range fields {
		for _, s := range d.sources[i] {
			text := s.text
			for _, entry := range descriptor.GetEntries() {
				if text == "" && entry.GetKey() == s.entry {
					text = entry.GetValue()
				}
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
