package resolve

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// FromConfig compiles a config that schema.Parse or Validate has accepted. The error is of type schema.Faults and lists
// every fault that the schema cannot find: limits with products that overflow, patterns that are ambiguous.
func FromConfig(config schema.Config) (*Plan, error) { return fromConfig(config, false) }

// ForCallers compiles a config as FromConfig does, for requests that do not come through Kong: their callers state
// tenant, user, tier and cost ([identity.Caller]), in place of what the config's tenant_from, user_from, tier_from and
// cost_header name. The rules for missing names, all limits and all buckets stay the same.
func ForCallers(config schema.Config) (*Plan, error) { return fromConfig(config, true) }

func fromConfig(config schema.Config, forCallers bool) (*Plan, error) {
	c := compiler{config: &config}
	c.plan.forCallers = forCallers
	c.collectPatterns()
	c.plan.config = &config
	c.plan.namespace = config.Namespace
	c.plan.prices = &prices{llm: config.LLM}
	if config.LLM.Model == "" { // rows may need its paths
		c.plan.prices.llm = schema.DefaultLLM()
	}
	c.plan.modes = policy.ModesOf(&config)
	c.compileTiers()
	if len(config.Anonymous.Limits) > 0 {
		c.plan.anonymous = c.compileLimits("anonymous.limits", "", schema.ForAnonymous, config.Anonymous.Limits)
	}
	c.plan.global = c.compileLimits("global.limits", "", "", config.Global.Limits)
	c.compileExemptions()
	c.compileRules()
	if len(c.faults) > 0 {
		return nil, c.faults
	}
	return &c.plan, nil
}

type compiler struct {
	config *schema.Config
	plan   Plan
	faults schema.Faults
}

// fault adds an error; nil adds none.
func (c *compiler) fault(path string, err error) { c.faults = policy.AppendFaults(c.faults, path, err) }

// collectPatterns compiles all patterns of the config together: one walk over a path finds all that match.
func (c *compiler) collectPatterns() {
	paths := map[string]string{} // of the first place where a pattern stands
	var texts []string
	add := func(text, path string) {
		if _, known := paths[text]; text != "" && !known {
			paths[text] = path
			texts = append(texts, text)
		}
	}
	for _, l := range c.config.Limits() {
		add(l.Endpoint, l.Path+".endpoint")
	}
	for _, text := range slices.Sorted(maps.Keys(c.config.Costs)) {
		add(text, fmt.Sprintf("costs[%q]", text))
	}
	set, faults := policy.CompilePatterns(texts)
	for _, fault := range faults {
		c.fault(paths[fault.Text], fault.Err)
	}
	c.plan.patterns = set
	c.plan.costs = make([]int64, set.Len())
	for i := range c.plan.costs {
		c.plan.costs[i] = -1
		if cost, ok := c.config.Costs[set.Text(i)]; ok {
			c.plan.costs[i] = cost
		}
	}
}

func (c *compiler) compileTiers() {
	c.plan.tiers = make(map[string][]*policy.Policy, len(c.config.Tiers))
	c.plan.pools = map[string]uint8{}
	c.plan.defaultTier = c.config.DefaultTier
	for i, tier := range c.config.Tiers {
		if c.plan.defaultTier == "" {
			c.plan.defaultTier = tier.Name
		}
		if pool := c.config.PoolOf(tier.Name); pool > 0 {
			c.plan.pools[tier.Name] = uint8(pool)
		}
		c.plan.tiers[tier.Name] = c.compileLimits(fmt.Sprintf("tiers[%d].limits", i), tier.Name, "", tier.Limits)
	}
}

// compileLimits compiles one list, with policies of one name together, the most specific endpoint first.
func (c *compiler) compileLimits(path, tier, audience string, limits []schema.Limit) []*policy.Policy {
	list := make([]*policy.Policy, 0, len(limits))
	for i, l := range limits {
		p, err := policy.CompileLimit(l, c.config, tier, audience)
		if err != nil {
			c.fault(fmt.Sprintf("%s[%d]", path, i), err)
			continue
		}
		if l.Endpoint != "" {
			p.Pattern = c.plan.patterns.Index(l.Endpoint)
		}
		list = append(list, p)
	}
	first := make(map[string]int, len(list))
	for i, p := range list {
		if _, ok := first[p.Name]; !ok {
			first[p.Name] = i
		}
	}
	slices.SortStableFunc(list, func(a, b *policy.Policy) int {
		if a.Name != b.Name {
			return first[a.Name] - first[b.Name]
		}
		// Patterns are numbered with the most specific first; a policy for every endpoint (-1) comes last.
		return int(uint32(a.Pattern)) - int(uint32(b.Pattern))
	})
	return list
}

// compileRules compiles how requests are identified, and records a fault for every source that does not parse. It
// checks unneeded sources too: rows of a database may need them later.
func (c *compiler) compileRules() {
	var headers []string
	for _, list := range [...]struct {
		path    string
		sources []string
	}{{"tenant_from", c.config.TenantFrom}, {"tier_from", c.config.TierFrom}, {"user_from", c.config.UserFrom}} {
		if _, err := identity.ParseSources(list.sources, &headers); err != nil {
			c.fault(list.path, err)
		}
	}
	if len(c.faults) == 0 {
		c.plan.needs = c.plan.ownNeeds(c.config)
		c.plan.Rules = c.plan.identityRules(c.plan.needs)
	}
}

// ownNeeds returns what the config's own policies and exemptions need.
func (p *Plan) ownNeeds(config *schema.Config) policy.Needs {
	n := policy.Needs{
		Tenant: config.OnMissingTenant == schema.MissingTenantDeny || len(p.anonymous) > 0,
		Tier:   len(p.tiers) > 1,
	}
	if p.patterns.Len() > 0 {
		n.Facts |= identity.TargetFact
	}
	for _, own := range p.Policies() {
		n.Tenant = n.Tenant || own.Tier != ""
		facts := n.Facts
		n.AddPolicy(own)
		if own.Scope == policy.IP && slices.Contains(p.anonymous, own) {
			n.Facts = facts // the address is read once a request proves to be anonymous
		}
	}
	if p.exempt != nil {
		p.exempt.needs(&n)
	}
	if config.ExemptPreflights {
		n.Facts |= identity.TargetFact
	}
	return n
}

var missingModes = map[string]identity.Missing{
	schema.MissingTenantLimitByIP: identity.ByIP,
	schema.MissingTenantDeny:      identity.Deny,
	schema.MissingTenantSkip:      identity.Skip,
	schema.MissingUserCredential:  identity.ByCredential,
	schema.MissingUserIP:          identity.ByIP,
}

// identityRules compiles how requests are identified, reading only what n names. The config's sources have been parsed
// before without a fault.
func (p *Plan) identityRules(n policy.Needs) identity.Rules {
	config := p.config
	if config.UsageOnly {
		n = n.ForUsage()
	}
	r := identity.Rules{
		Anonymous:       config.AnonymousConsumers,
		OnMissingTenant: missingModes[config.OnMissingTenant],
		OnMissingUser:   missingModes[config.OnMissingUser],
		IPv6Prefix:      int(config.IPv6PrefixLength),
		CostHeader:      -1,
		CostHeaderMax:   config.CostHeaderMax,
		DecodePath:      config.DecodePath,
		AnonymousLimits: len(config.Anonymous.Limits) > 0,
		NeedTenant:      n.Tenant,
		NeedUser:        n.User,
		NeedCredential:  n.Credential,
		SeekTenant:      n.SeekTenant,
		SeekUser:        n.SeekUser,
		NeedAddress:     n.Address,
		NeedTags:        n.Tags,
		NeedPreflight:   config.ExemptPreflights && !config.UsageOnly,
	}
	p.setSources(&r, n)
	if config.ObserveEndpoint && !config.UsageOnly || p.forCallers { // a caller's costs nothing
		n.Facts |= identity.RouteFact // for metrics and records, not for limits
	}
	r.Compile(n.Facts)
	return r
}

// setSources sets where names and the cost are read: where the config says, or what the caller states.
func (p *Plan) setSources(r *identity.Rules, n policy.Needs) {
	config := p.config
	sources := func(texts []string, stated identity.Source) []identity.Source {
		if p.forCallers {
			return []identity.Source{stated}
		}
		parsed, _ := identity.ParseSources(texts, &r.Headers) // FromConfig has reported a text that does not parse
		return parsed
	}
	if n.Tenant || n.SeekTenant {
		r.Tenant = sources(config.TenantFrom, identity.CallerTenant)
	}
	if n.Tenant && n.Tier {
		r.Tier = sources(config.TierFrom, identity.CallerTier)
	}
	if n.User || n.SeekUser {
		r.User = sources(config.UserFrom, identity.CallerUser)
	}
	if n.Model { // a config that names no source has none
		r.Model = sources([]string{config.LLM.RequestModel}, identity.CallerModel)
		r.Provider = sources([]string{config.LLM.RequestProvider}, identity.CallerProvider)
	}
	if p.forCallers {
		r.CallerCost = n.Cost
		return
	}
	if config.CostHeader != "" && n.Cost {
		r.CostHeader = identity.Header(config.CostHeader, &r.Headers)
	}
	for _, header := range n.Reserves {
		if header != "" {
			r.ReserveHeaders = append(r.ReserveHeaders, identity.Header(header, &r.Headers))
		}
	}
}
