package envoy

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// rule gives descriptors a tier and a tenant by all of their entries.
type rule struct {
	entries      []pattern
	tier, tenant string // no tenant: the entries are its name
}

// pattern matches one entry.
type pattern struct {
	key   string
	parts []string // of the value, between wildcards; nil: any value
}

// indexed is an entry without a wildcard, and its place in a descriptor; the zero value: a rule has none.
type indexed struct {
	at    int
	entry string // key=value
}

// parseRules parses a list such as [{entries: [plan=gold, user], tier: gold}].
func (d *domain) parseRules(node yaml.Node) error {
	var list []struct {
		Entries      []string
		Tier, Tenant string
		Unknown      map[string]any `yaml:",inline"`
	}
	if err := node.Decode(&list); err != nil {
		return fmt.Errorf("must be a list such as [{entries: [plan=gold, user], tier: gold}]: %w", err)
	}
	d.index = map[indexed][]int{}
	for i, item := range list {
		if len(item.Entries) == 0 || item.Tier == "" || len(item.Unknown) > 0 {
			return fmt.Errorf("[%d]: must have entries and a tier, may have a tenant, and nothing else", i)
		}
		r, id := rule{tier: item.Tier, tenant: item.Tenant}, indexed{}
		for at, text := range item.Entries {
			key, value, hasValue := strings.Cut(text, "=")
			p := pattern{key: key}
			if hasValue {
				p.parts = strings.Split(value, "*")
			}
			if len(p.parts) == 1 {
				id = indexed{at, text}
			}
			r.entries = append(r.entries, p)
		}
		d.index[id] = append(d.index[id], len(d.rules))
		d.rules = append(d.rules, r)
	}
	return nil
}

// fits reports whether a descriptor has the entries of the rule, in their order, and no others.
func (r *rule) fits(entries []*common.RateLimitDescriptor_Entry) bool {
	if len(entries) != len(r.entries) {
		return false
	}
	for i, p := range r.entries {
		if entries[i].GetKey() != p.key || p.parts != nil && !fits(p.parts, entries[i].GetValue()) {
			return false
		}
	}
	return true
}

// fits reports whether a value has the parts of a pattern, with any text in place of each wildcard between them.
func fits(parts []string, value string) bool {
	value, found := strings.CutPrefix(value, parts[0])
	last := len(parts) - 1
	if !found || last == 0 {
		return found && value == ""
	}
	for _, part := range parts[1:last] {
		if _, value, found = strings.Cut(value, part); !found {
			return false
		}
	}
	return strings.HasSuffix(value, parts[last])
}

// apply sets the tier and the tenant by the first rule that fits, unless sources have set them.
func (d *domain) apply(entries []*common.RateLimitDescriptor_Entry, r *admit.CallerRequest) (found bool) {
	if len(d.rules) == 0 {
		return false
	}
	candidates := slices.Clone(d.index[indexed{}])
	for i, e := range entries {
		candidates = append(candidates, d.index[indexed{i, e.GetKey() + "=" + e.GetValue()}]...)
	}
	slices.Sort(candidates)
	at := slices.IndexFunc(candidates, func(i int) bool { return d.rules[i].fits(entries) })
	if at < 0 {
		return false
	}
	first := &d.rules[candidates[at]]
	r.Tier = cmp.Or(r.Tier, first.tier)
	if r.Tenant = cmp.Or(r.Tenant, first.tenant); r.Tenant == "" {
		var pairs []string
		for _, e := range entries {
			pairs = append(pairs, e.GetKey()+"="+url.QueryEscape(e.GetValue()))
		}
		r.Tenant = strings.Join(pairs, "&")
	}
	return true
}
