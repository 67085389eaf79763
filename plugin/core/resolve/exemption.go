package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// exemptions holds the compiled exemptions of a config. The entries that name the same fields form a shape, which finds
// them by the values of the fields: the time of a lookup does not grow with their number.
type exemptions struct {
	entries  []schema.Exemption // as configured
	shapes   []exemptionShape
	prefixes []netip.Prefix // of the entries; the zero value: the entry names no network
	networks map[netip.Prefix]bool
	sizes    []int            // the lengths of networks, each once
	patterns *policy.Patterns // of the entries alone: they may cross, and name no endpoint of a request
	depth    int              // more segments than any pattern has
}

// exemptionShape holds the entries that name the same fields.
type exemptionShape struct {
	fields exemptionFields
	name   string               // of the fields, such as "user+endpoint": a user implies its tenant
	first  map[exemptionKey]int // the index of the first entry with these values

	tags     map[string]bool       // of the entries; "" where they name none
	networks map[netip.Prefix]bool // of the entries; the zero value where they name none
}

type exemptionFields uint8

const (
	exemptTenant exemptionFields = 1 << iota
	exemptUser
	exemptTag
	exemptNetwork
	exemptEndpoint
)

// exemptionKey holds the values of the fields of one shape; others are zero.
type exemptionKey struct {
	tenant, user, tag string
	network           netip.Prefix
	pattern           int
}

// exemptPreflight is Exemption.By of a CORS preflight.
const exemptPreflight = "preflight"

// Exemption identifies what exempts a request. The zero value is none.
type Exemption struct {
	By       string // what it names: "tenant", "user+endpoint", "cidr", "preflight", ...; "": nothing exempts
	Override int64  // the id of the row; 0: it is the config's
	Entry    int    // the index in the config's list exempt; meaningless for a row and for a preflight
}

// Source returns where an exemption stands: "exempt[3]" or "exempt_preflights" of the config, or "override 9"; "" for
// none.
func (e Exemption) Source() string {
	switch {
	case e.By == "":
		return ""
	case e.Override != 0:
		return fmt.Sprintf("override %d", e.Override)
	case e.By == exemptPreflight:
		return "exempt_preflights"
	}
	return docpath.Item("exempt", e.Entry)
}

// compileExemptions compiles the exemptions of the config, and records a fault for each pattern that does not parse.
func (c *compiler) compileExemptions() {
	list := c.config.Exempt
	if len(list) == 0 {
		return
	}
	e := exemptions{entries: list, prefixes: make([]netip.Prefix, len(list)), networks: map[netip.Prefix]bool{}}
	var texts []string
	for i := range list {
		prefix, err := list[i].Network()
		if err != nil {
			c.fault(docpath.Item("exempt", i)+".cidr", err)
		}
		if e.prefixes[i] = prefix; prefix.IsValid() {
			e.networks[prefix] = true
			e.sizes = append(e.sizes, prefix.Bits())
		}
		texts = append(texts, list[i].Endpoint)
		c.fault(docpath.Item("exempt", i)+".endpoint", policy.CheckExemptable(list[i].Endpoint))
	}
	slices.Sort(e.sizes)
	e.sizes = slices.Compact(e.sizes)
	patterns, faults := policy.CompileCrossing(texts)
	for i, err := range faults {
		c.fault(docpath.Item("exempt", i)+".endpoint", err)
	}
	e.patterns = patterns
	for i := range list {
		e.add(i)
		e.depth = max(e.depth, 1+strings.Count(list[i].Endpoint, "/"))
	}
	c.plan.exempt = &e
}

func (e *exemptions) add(i int) {
	entry := &e.entries[i]
	key := exemptionKey{tenant: entry.Tenant, user: entry.User, tag: entry.Tag, network: e.prefixes[i]}
	if entry.Endpoint != "" {
		key.pattern = e.patterns.Index(entry.Endpoint)
	}
	fields := exemptionFields(0)
	for i, value := range [...]string{entry.Tenant, entry.User, entry.Tag, entry.CIDR, entry.Endpoint} {
		if value != "" {
			fields |= 1 << i
		}
	}
	shape := e.shape(fields)
	shape.tags[key.tag], shape.networks[key.network] = true, true
	if _, repeated := shape.first[key]; !repeated {
		shape.first[key] = i
	}
}

// shape returns the shape of the entries that name these fields.
func (e *exemptions) shape(fields exemptionFields) *exemptionShape {
	for i := range e.shapes {
		if e.shapes[i].fields == fields {
			return &e.shapes[i]
		}
	}
	e.shapes = append(e.shapes, exemptionShape{
		fields, fields.name(), map[exemptionKey]int{}, map[string]bool{}, map[netip.Prefix]bool{},
	})
	return &e.shapes[len(e.shapes)-1]
}

// name returns the names of the fields, without the tenant of a user.
func (f exemptionFields) name() string {
	if f&exemptUser != 0 {
		f &^= exemptTenant
	}
	var names []string
	for i, name := range [...]string{"tenant", "user", "tag", "cidr", "endpoint"} {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// ExemptEntry returns the entry of the config that an exemption stands for; the zero value for a row and a preflight.
func (p *Plan) ExemptEntry(by Exemption) schema.Exemption {
	if by.Override != 0 || by.By == "" || by.By == exemptPreflight {
		return schema.Exemption{}
	}
	return p.exempt.entries[by.Entry]
}

// describe returns an exemption in words: where it stands, and what an entry of the config names.
func (p *Plan) describe(by Exemption) string {
	text := by.Source()
	if subject := p.ExemptEntry(by).Subject(); subject != "" {
		text += ": " + subject
	}
	return text
}

// needs adds what must be read of a request to match the entries.
func (e *exemptions) needs(n *policy.Needs) {
	for i := range e.shapes {
		fields := e.shapes[i].fields
		n.SeekTenant = n.SeekTenant || fields&exemptTenant != 0
		n.SeekUser = n.SeekUser || fields&exemptUser != 0
		if fields&exemptTag != 0 {
			n.Tags = true
			n.Facts |= identity.ConsumerFact
		}
		if fields&exemptNetwork != 0 {
			n.Address = true
			n.Facts |= identity.IPFact
		}
		if fields&exemptEndpoint != 0 {
			n.Facts |= identity.TargetFact
		}
	}
}

// What an entry without a tag, a network or a pattern is looked up by.
var (
	noTag     = []string{""}
	noNetwork = []netip.Prefix{{}}
	noPattern = []int{0}
)

// match returns the exemption by the first entry that matches a request, or none. r lends its memory.
func (e *exemptions) match(id *identity.Identity, r *Resolution) Exemption {
	r.exemptNetworks = r.exemptNetworks[:0]
	for _, bits := range e.sizes {
		if bits > id.Address.BitLen() {
			break
		}
		if network, _ := id.Address.Prefix(bits); e.networks[network] { // masked as the entries are
			r.exemptNetworks = append(r.exemptNetworks, network)
		}
	}
	r.exemptPatterns = r.exemptPatterns[:0]
	if policy.IsUnambiguous(id) {
		r.exemptPatterns = e.patterns.Match(id.Method, id.Path, r.exemptPatterns)
	}
	best := Exemption{}
	for i := range e.shapes {
		if at := e.shapes[i].match(id, r); at >= 0 && (best.By == "" || at < best.Entry) {
			best = Exemption{By: e.shapes[i].name, Entry: at}
		}
	}
	return best
}

// match returns the index of the first entry of the shape that matches a request, or -1.
func (s *exemptionShape) match(id *identity.Identity, r *Resolution) int {
	key := exemptionKey{}
	if s.fields&exemptTenant != 0 {
		if id.Tenant.Kind != identity.Tenant {
			return -1
		}
		key.tenant = id.Tenant.ID
	}
	if s.fields&exemptUser != 0 {
		if id.User.Kind != identity.User {
			return -1
		}
		key.user = id.User.ID
	}
	tags, networks, patterns := noTag, noNetwork, noPattern
	if s.fields&exemptTag != 0 {
		tags = id.Tags
	}
	if s.fields&exemptNetwork != 0 {
		networks = r.exemptNetworks
	}
	if s.fields&exemptEndpoint != 0 {
		patterns = r.exemptPatterns
	}
	found := -1
	for _, key.tag = range tags {
		if !s.tags[key.tag] {
			continue
		}
		for _, key.network = range networks {
			if !s.networks[key.network] {
				continue
			}
			for _, key.pattern = range patterns {
				if at, ok := s.first[key]; ok && (found < 0 || at < found) {
					found = at
				}
			}
		}
	}
	return found
}

// couldMatch reports whether an entry matches an identity in all that it names but tag and endpoint.
func (e *exemptions) couldMatch(i int, id *identity.Identity) bool {
	entry := &e.entries[i]
	isTenant := entry.Tenant == "" || id.Tenant == identity.Name{Kind: identity.Tenant, ID: entry.Tenant}
	isUser := entry.User == "" || id.User == identity.Name{Kind: identity.User, ID: entry.User}
	return isTenant && isUser && (entry.CIDR == "" || e.prefixes[i].Contains(id.Address))
}

// applyExemption sets what exempts a request that no row bans or exempts.
func (p *Plan) applyExemption(id *identity.Identity, r *Resolution) {
	if p.exempt != nil {
		if by := p.exempt.match(id, r); by.By != "" {
			r.Exempt, r.Exemption = true, by
			return
		}
	}
	if id.Preflight && p.config.ExemptPreflights {
		r.Preflight, r.Exemption = true, Exemption{By: exemptPreflight}
	}
}
