package envoy

import (
	"errors"
	"fmt"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/mapping"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// Mapping says how the descriptors of each domain name whom a request is from. Other domains have no limits.
type Mapping map[string]*domain

// domain is the mapping of one domain.
type domain struct {
	mapping.Mapping
	rules          []rule
	index          map[indexed][]int // of rules, by their last entry without a wildcard
	draftHeaders   bool              // clients read the headers that Envoy writes, in place of those of the policies
	overridesLimit bool              // the limit that a descriptor states counts, beside those of policies
}

// ParseMapping parses a mapping in YAML. The error has the path of a field that is wrong.
func ParseMapping(text []byte) (Mapping, error) {
	var file map[string]map[string]map[string]yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("must be YAML of the form {domains: {edge: {tenant_from: [descriptor.tenant]}}}: %w", err)
	}
	m := Mapping{}
	for name, list := range file["domains"] {
		d, err := new(domain), error(nil)
		d.Mapping, err = mapping.Parse("domains."+name+".", list, "descriptor.<key>", map[string]func(yaml.Node) error{
			"rules": d.parseRules, "draft_headers": flag(&d.draftHeaders), "limit_override": flag(&d.overridesLimit),
		})
		switch {
		case err != nil:
			return nil, err
		case d.IsEmpty() && len(d.rules) == 0:
			return nil, fmt.Errorf("domains.%s: maps nothing: set tenant_from, such as [descriptor.tenant]", name)
		}
		m[name] = d
	}
	if len(m) == 0 || len(file) > 1 {
		return nil, errors.New("domains: is required, with at least one domain, and is the only field")
	}
	return m, nil
}

// flag returns what parses a field that is true or false.
func flag(to *bool) func(yaml.Node) error {
	return func(node yaml.Node) error {
		if node.Decode(to) != nil {
			return fmt.Errorf("%q must be true or false", node.Value)
		}
		return nil
	}
}

// read fills r with what the domain reads from a descriptor, and reports whether that is anything. Of entries with one
// key the first counts.
func (d *domain) read(descriptor *common.RateLimitDescriptor, r *admit.CallerRequest) (found bool) {
	found = d.Read(r, func(key string, _ bool) string {
		for _, entry := range descriptor.GetEntries() {
			if entry.GetKey() == key && entry.GetValue() != "" {
				return entry.GetValue()
			}
		}
		return ""
	})
	return len(d.rules) > 0 && d.apply(descriptor.GetEntries(), r) || found
}
