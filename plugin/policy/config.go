package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// FromConfig compiles a config that schema.Parse or Validate has accepted. The error is of type schema.Faults and
// tells every fault that the schema cannot see: limits whose products overflow, patterns that are ambiguous.
func FromConfig(config schema.Config) (*Snapshot, error) {
	c := compiler{config: &config}
	c.patterns()
	c.snapshot.namespace = config.Namespace
	c.snapshot.mode = parseMode(config.Mode, "")
	c.tiers()
	if len(config.Anonymous.Limits) > 0 {
		c.snapshot.anonymous = c.limits("anonymous.limits", "", config.Anonymous.Limits)
	}
	c.snapshot.global = c.limits("global.limits", "", config.Global.Limits)
	c.rules()
	if len(c.faults) > 0 {
		return nil, c.faults
	}
	return &c.snapshot, nil
}

type compiler struct {
	config   *schema.Config
	snapshot Snapshot
	faults   schema.Faults
}

// fault records an error; a joined one becomes one fault each, and one about a field gets the field's path.
func (c *compiler) fault(path string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			c.fault(path, e)
		}
		return
	}
	fault := schema.Fault{Path: path, Message: err.Error()}
	if field := new(limit.FieldError); errors.As(err, &field) {
		fault = schema.Fault{Path: path + "." + field.Field, Message: field.Problem}
	}
	c.faults = append(c.faults, fault)
}

// patterns compiles all patterns of the config together: one walk over a path finds all that match.
func (c *compiler) patterns() {
	paths := map[string]string{} // of the first place where a pattern stands
	var texts []string
	add := func(text, path string) {
		if _, known := paths[text]; text != "" && !known {
			paths[text] = path
			texts = append(texts, text)
		}
	}
	addLimits := func(limits []schema.Limit, path string) {
		for i, l := range limits {
			add(l.Endpoint, fmt.Sprintf("%s[%d].endpoint", path, i))
		}
	}
	for i, tier := range c.config.Tiers {
		addLimits(tier.Limits, fmt.Sprintf("tiers[%d].limits", i))
	}
	addLimits(c.config.Anonymous.Limits, "anonymous.limits")
	addLimits(c.config.Global.Limits, "global.limits")
	for _, text := range slices.Sorted(maps.Keys(c.config.Costs)) {
		add(text, fmt.Sprintf("costs[%q]", text))
	}
	set, faults := compilePatterns(texts)
	for _, fault := range faults {
		c.fault(paths[fault.text], fault.err)
	}
	c.snapshot.patterns = set
	c.snapshot.costs = make([]int64, len(set.list))
	for i, p := range set.list {
		c.snapshot.costs[i] = -1
		if cost, ok := c.config.Costs[p.text]; ok {
			c.snapshot.costs[i] = cost
		}
	}
}

func (c *compiler) tiers() {
	c.snapshot.tiers = make(map[string][]*Policy, len(c.config.Tiers))
	c.snapshot.defaultTier = c.config.DefaultTier
	for i, tier := range c.config.Tiers {
		if c.snapshot.defaultTier == "" {
			c.snapshot.defaultTier = tier.Name
		}
		c.snapshot.tiers[tier.Name] = c.limits(fmt.Sprintf("tiers[%d].limits", i), tier.Name, tier.Limits)
	}
}

// limits compiles one list, with policies of one name together, the most specific endpoint first.
func (c *compiler) limits(path, tier string, configs []schema.Limit) []*Policy {
	list := make([]*Policy, 0, len(configs))
	for i, config := range configs {
		p, err := c.policy(config)
		if err != nil {
			c.fault(fmt.Sprintf("%s[%d]", path, i), err)
			continue
		}
		p.Tier = tier
		list = append(list, p)
	}
	first := make(map[string]int, len(list))
	for i, p := range list {
		if _, ok := first[p.Name]; !ok {
			first[p.Name] = i
		}
	}
	slices.SortStableFunc(list, func(a, b *Policy) int {
		if a.Name != b.Name {
			return first[a.Name] - first[b.Name]
		}
		// Patterns are numbered with the most specific first; a policy for every endpoint (-1) comes last.
		return int(uint32(a.pattern)) - int(uint32(b.pattern))
	})
	return list
}

func (c *compiler) policy(config schema.Limit) (*Policy, error) {
	algorithm, err := limit.ParseAlgorithm(config.Algorithm)
	if err != nil {
		return nil, &limit.FieldError{Field: "algorithm", Problem: err.Error()}
	}
	compiled, err := limit.New(limit.Spec{
		Algorithm: algorithm,
		Quantity:  config.Limit,
		Window:    limit.Micros(config.WindowSize) * limit.Second,
		Burst:     config.Burst,
		SoftPct:   config.SoftThresholdPct,
		HardPct:   config.HardThresholdPct,
		SoftOnly:  config.SoftOnly,
	})
	if err != nil {
		return nil, err
	}
	scope := slices.Index(scopeNames[:], config.Scope)
	if scope < int(Tenant) {
		return nil, &limit.FieldError{Field: "scope", Problem: fmt.Sprintf("unknown scope %q", config.Scope)}
	}
	p := &Policy{
		Name:     config.Name,
		Scope:    Scope(scope),
		Endpoint: config.Endpoint,
		Limit:    compiled,
		Mode:     parseMode(config.Mode, c.config.Mode),
		FailMode: parseFailMode(config.FailMode, c.config.FailMode),
		Cost:     -1,
		pattern:  -1,
		quota:    fmt.Sprintf("%q;q=%d;w=%d", config.Name, config.Limit, config.WindowSize),
	}
	if config.Endpoint != "" {
		p.pattern = c.snapshot.patterns.index(config.Endpoint)
	}
	if config.Cost != nil {
		p.Cost = *config.Cost
	}
	return p, nil
}

func parseMode(own, common string) Mode {
	switch first(own, common) {
	case schema.ModeShadow:
		return Shadow
	case schema.ModeLog:
		return Log
	}
	return Enforce
}

func parseFailMode(own, common string) FailMode {
	switch first(own, common) {
	case schema.FailOpen:
		return FailOpen
	case schema.FailClosed:
		return FailClosed
	}
	return FailLocal
}

func first(own, common string) string {
	if own != "" {
		return own
	}
	return common
}

var missing = map[string]identity.Missing{
	schema.MissingTenantLimitByIP: identity.ByIP,
	schema.MissingTenantDeny:      identity.Deny,
	schema.MissingTenantSkip:      identity.Skip,
	schema.MissingUserCredential:  identity.ByCredential,
	schema.MissingUserIP:          identity.ByIP,
}

// rules compiles how requests are identified, asking only for what some limit needs.
func (c *compiler) rules() {
	config := c.config
	r := identity.Rules{
		Anonymous:       config.AnonymousConsumers,
		OnMissingTenant: missing[config.OnMissingTenant],
		OnMissingUser:   missing[config.OnMissingUser],
		IPv6Prefix:      int(config.IPv6PrefixLength),
		CostHeader:      -1,
		CostHeaderMax:   config.CostHeaderMax,
		StrangersApart:  c.snapshot.anonymous != nil,
	}
	needed := c.needs(&r)
	var errs [3]error
	if r.NeedTenant {
		r.Tenant, errs[0] = identity.ParseSources(config.TenantFrom, &r.Headers)
		if len(c.snapshot.tiers) > 1 {
			r.Tier, errs[1] = identity.ParseSources(config.TierFrom, &r.Headers)
		}
	}
	if r.NeedUser {
		r.User, errs[2] = identity.ParseSources(config.UserFrom, &r.Headers)
	}
	for i, path := range [...]string{"tenant_from", "tier_from", "user_from"} {
		if errs[i] != nil {
			c.fault(path, errs[i])
		}
	}
	if config.CostHeader != "" && len(c.snapshot.Policies()) > 0 {
		r.CostHeader = identity.Header(config.CostHeader, &r.Headers)
	}
	r.Compile(needed)
	c.snapshot.Rules = r
}

// needs tells which facts the limits need beside the names of tenant and user, and which names they need.
func (c *compiler) needs(r *identity.Rules) identity.Facts {
	var facts identity.Facts
	if len(c.snapshot.patterns.list) > 0 {
		facts |= identity.TargetFact
	}
	r.NeedTenant = c.config.OnMissingTenant == schema.MissingTenantDeny || len(c.snapshot.anonymous) > 0
	for _, p := range c.snapshot.Policies() {
		r.NeedTenant = r.NeedTenant || p.Tier != ""
		r.NeedUser = r.NeedUser || p.Scope.ByUser()
		switch {
		case p.Scope == Credential:
			r.NeedCredential = true
			facts |= identity.CredentialFact
		case p.Scope == IP && p.Tier == "" && !slices.Contains(c.snapshot.anonymous, p):
			facts |= identity.IPFact // a global limit per address
		case p.Scope == IP && p.Tier != "":
			facts |= identity.IPFact
		case p.Scope.ByEndpoint() && p.Endpoint == "":
			facts |= identity.RouteFact
		}
	}
	return facts
}
