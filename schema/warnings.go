package schema

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// longWindow is the least window, in seconds, of limits that usually are quotas rather than rates.
const longWindow = 3600

// validReference matches a reference that Kong can look up: {vault://VAULT/NAME}, with a key and a query as options.
var validReference = regexp.MustCompile(`^\{vault://[A-Za-z0-9_.-]+/[^{}/?#\s]+(/[^{}?#\s]+)?/?(\?[^{}\s]*)?(#[0-9]+)?\}$`)

// Warnings returns warnings of valid values of c that are probably not expected. Zero fields count as their defaults.
// Of a config that shows usage these are only those about Redis: the others are about decisions, and the config that
// decides has the same limits.
func (c Config) Warnings() []Warning {
	if c.UsageOnly {
		return c.poolWarnings()
	}
	warnings := slices.Concat(c.tenantWarnings(), c.costWarnings(), c.exemptWarnings(), c.poolWarnings())
	for _, l := range c.Limits() {
		if l.inRange() {
			warnings = append(warnings, c.limitWarnings(l)...)
		}
	}
	return warnings
}

// warnings returns warnings of fields that have no effect for the servers of the block.
func (r Redis) warnings(path string) []Warning {
	var warnings findings
	type named struct{ name, value string }
	credentials := []named{{"sentinel_username", r.SentinelUsername}, {"sentinel_password", r.SentinelPassword}}
	all := append([]named{{"host", r.Host}, {"username", r.Username}, {"password", r.Password}}, credentials...)
	for _, f := range all {
		if strings.HasPrefix(f.value, "{vault") && !validReference.MatchString(f.value) {
			warnings.add(docpath.Member(path, f.name),
				"looks like a vault reference, but Kong finds no value by it: write {vault://VAULT/NAME}, such as {vault://env/redis-password}")
		}
	}
	unused := func(needed string, fields ...named) {
		for _, f := range fields {
			if f.value != "" {
				warnings.add(docpath.Member(path, f.name), "has no effect without %s", docpath.Member(path, needed))
			}
		}
	}
	if len(r.SentinelNodes) == 0 {
		unused("sentinel_nodes", credentials...)
	}
	if !r.SSL {
		unused("ssl", named{"server_name", r.ServerName}, named{"ca_cert", r.CACert}, named{"client_cert", r.ClientCert})
	}
	return warnings
}

func (c Config) tenantWarnings() []Warning {
	var warnings findings
	byIP := c.OnMissingTenant == MissingTenantLimitByIP || c.OnMissingTenant == ""
	hasAnonymous := len(c.Anonymous.Limits) > 0
	switch {
	case len(c.Limits()) == 0:
		warnings.add("tiers", "there are no limits at all: every request passes")
		return warnings
	case hasAnonymous && !byIP:
		warnings.add("anonymous", "has no effect, because on_missing_tenant is %s", c.OnMissingTenant)
	case !hasAnonymous && byIP && len(c.Tiers) > 0:
		warnings.add("anonymous", "is absent: requests without a tenant are counted by ip under the limits of tier %s",
			docpath.Shorten(cmp.Or(c.DefaultTier, c.Tiers[0].Name)))
	}
	if len(c.Tiers) > 1 && c.TierFrom != nil && len(c.TierFrom) == 0 {
		warnings.add("tier_from", "is empty: every tenant is on tier %s",
			docpath.Shorten(cmp.Or(c.DefaultTier, c.Tiers[0].Name)))
	}
	return warnings
}

// costWarnings returns warnings of endpoints whose requests cost more than a limit can hold, or more than it may admit
// while it is leased. Such requests may always be denied.
func (c Config) costWarnings() []Warning {
	var warnings findings
	charging := chargingLimits(c.Limits())
	for _, endpoint := range slices.Sorted(maps.Keys(c.Costs)) {
		path := docpath.Member("costs", endpoint)
		warnings.addProblem(path, methodProblem(endpoint))
		for _, problem := range c.costProblems(endpoint, c.Costs[endpoint], charging) {
			warnings.addProblem(path, problem)
		}
	}
	return warnings
}

// CostCheck returns a function with the warnings of costWarnings for a cost that a row sets, beside c with rows of
// policies. Rows of tiers go before the limits of c with their name.
func (c Config) CostCheck(rows []Policy) func(Cost) []string {
	limits := slices.DeleteFunc(c.Limits(), func(l LocatedLimit) bool {
		return slices.ContainsFunc(rows, func(p Policy) bool {
			return p.Tier != "" && l.List == "tier "+docpath.Shorten(p.Tier) && l.Name == p.Name &&
				CanonicalEndpoint(l.Endpoint) == CanonicalEndpoint(p.Endpoint)
		})
	})
	for _, p := range rows {
		limits = append(limits, LocatedLimit{Limit: p.Limit, List: p.Target()})
	}
	charging := chargingLimits(limits)
	return func(cost Cost) []string { return c.costProblems(cost.Endpoint, *cost.Cost, charging) }
}

// costProblems returns what is wrong with the cost of an endpoint beside the limits that charge it.
func (c Config) costProblems(endpoint string, cost int64, charging map[string][]LocatedLimit) (problems []string) {
	var tooSmall, tooNear []string
	for _, covered := range [...]string{"", CanonicalEndpoint(endpoint)} {
		small, near := []LocatedLimit(nil), []LocatedLimit(nil)
		for _, l := range charging[covered] {
			if l.ceiling()*LeasedCostPct >= 100*cost {
				break // as all behind it, whose capacities are as large
			}
			if l.ceiling() < cost {
				small = append(small, l)
			} else if c.reducedByLeases(l) {
				near = append(near, l)
			}
		}
		tooSmall, tooNear = append(tooSmall, named(small)...), append(tooNear, named(near)...)
	}
	add := func(limits []string, format string, args ...any) {
		if len(limits) > 0 {
			problems = append(problems, fmt.Sprintf(format, args...)+": "+strings.Join(limits, ", "))
		}
	}
	add(tooSmall, "costs %d tokens, more than some limits can ever hold, so they always deny it", cost)
	add(tooNear, "costs %d tokens, more than %d percent of some limits that are leased, so they may never admit "+
		"it; accuracy exact lifts that", cost, LeasedCostPct)
	return problems
}

// chargingLimits returns the limits that can deny a request because of a cost in the table, by their endpoint ("" =
// all), in the order of their capacities.
func chargingLimits(all []LocatedLimit) map[string][]LocatedLimit {
	groups := map[string][]LocatedLimit{}
	for _, l := range all {
		charges := l.Algorithm != AlgorithmConcurrency && (l.Settle == nil || l.Settle.Reserve == 0)
		if l.Cost == nil && !l.SoftOnly && l.inRange() && charges {
			endpoint := CanonicalEndpoint(l.Endpoint)
			groups[endpoint] = append(groups[endpoint], l)
		}
	}
	for _, limits := range groups {
		slices.SortStableFunc(limits, func(a, b LocatedLimit) int { return cmp.Compare(a.ceiling(), b.ceiling()) })
	}
	return groups
}

// reducedByLeases reports whether the capacity of a limit is reduced because tokens may be out on lease: the one of a
// bucket is, and the one of a window is not.
func (c Config) reducedByLeases(l LocatedLimit) bool {
	return c.Strategy == StrategyRedis && l.isTokenBucket() && l.Settle == nil && l.Capacity() >= LeastLeased &&
		cmp.Or(l.Accuracy, c.Accuracy) != AccuracyExact
}

// named describes the first few of limits.
func named(limits []LocatedLimit) []string {
	const most = 3
	var names []string
	for i, l := range limits {
		if i == most {
			return append(names, "and others")
		}
		names = append(names, fmt.Sprintf("%s of %s (%d)", l.Name, l.List, l.ceiling()))
	}
	return names
}

func (c Config) limitWarnings(l LocatedLimit) []Warning {
	warnings := findings(slices.Concat(l.settleWarnings(), c.callWarnings(l), c.fairWarnings(l)))
	warn := func(field, format string, args ...any) { warnings.add(l.Path+field, format, args...) }
	if l.HardThresholdPct > 0 && l.SoftThresholdPct == 0 {
		warn(".hard_threshold_pct", "is ignored without soft_threshold_pct")
	}
	warnings.addProblem(l.Path+".endpoint", methodProblem(l.Endpoint))
	isUser := l.Scope == ScopeUser || l.Scope == ScopeUserEndpoint
	if isUser && c.UserFrom != nil && len(c.UserFrom) == 0 {
		warn(".scope", "is %s but user_from is empty: on_missing_user decides for every request", l.Scope)
	}
	if c.Strategy == StrategyRedis && l.Scope == ScopeIP && l.Algorithm == AlgorithmSlidingLog {
		warn(".algorithm", "remembers up to %d requests of every address in Redis, for which there is little room "+
			"(-max-addresses × 230 bytes a node; some 70 bytes a request are reserved): for addresses use sliding_window",
			l.Limit.Limit)
	}
	quantity, burst := l.Limit.Limit, l.Capacity()
	modest := max(quantity/20, 1)
	if l.isTokenBucket() && l.WindowSize >= longWindow && burst > modest {
		warn("", "a window of %d s can see up to %d requests, because a token_bucket lets a burst of %d pass on top "+
			"of the limit of %d; for a quota use algorithm fixed_window, for a rate a burst of at most %d", l.WindowSize,
			quantity+burst, burst, quantity, modest)
	}
	return warnings
}

func (l Limit) isTokenBucket() bool {
	return l.Algorithm == AlgorithmTokenBucket || l.Algorithm == ""
}
