package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/internal/docpath"
)

// longWindow is the window, in seconds, from which on a limit is usually meant as a quota rather than as a rate.
const longWindow = 3600

// Warnings lists what is legal in c but probably not what its author expects. Zero fields count as their defaults.
func (c Config) Warnings() []Warning {
	warnings := slices.Concat(c.tenantWarnings(), c.costWarnings())
	for _, l := range c.limits() {
		if l.inRange() {
			warnings = append(warnings, c.limitWarnings(l)...)
		}
	}
	return warnings
}

func (c Config) tenantWarnings() []Warning {
	var warnings []Warning
	warn := func(path, format string, args ...any) {
		warnings = append(warnings, Warning{path, fmt.Sprintf(format, args...)})
	}
	byIP := c.OnMissingTenant == MissingTenantLimitByIP || c.OnMissingTenant == ""
	strangers := len(c.Anonymous.Limits) > 0
	switch {
	case len(c.limits()) == 0:
		warn("tiers", "there are no limits at all: every request passes")
		return warnings
	case strangers && !byIP:
		warn("anonymous", "has no effect, because on_missing_tenant is %s", c.OnMissingTenant)
	case !strangers && byIP && len(c.Tiers) > 0:
		warn("anonymous", "is absent: requests without a tenant are counted by ip under the limits of tier %s", docpath.Shorten(c.defaultTier()))
	}
	if len(c.Tiers) > 1 && c.TierFrom != nil && len(c.TierFrom) == 0 {
		warn("tier_from", "is empty: every tenant is on tier %s", docpath.Shorten(c.defaultTier()))
	}
	return warnings
}

// defaultTier is the name of the tier that default_tier stands for; there must be a tier.
func (c Config) defaultTier() string {
	if c.DefaultTier != "" {
		return c.DefaultTier
	}
	return c.Tiers[0].Name
}

// costWarnings names the endpoints whose cost some limit can never pay: such requests are refused for ever.
func (c Config) costWarnings() []Warning {
	var warnings []Warning
	byEndpoint := c.chargingLimits()
	for _, endpoint := range sortedKeys(c.Costs) {
		cost := c.Costs[endpoint]
		var tooSmall []string
		for _, limits := range [][]locatedLimit{byEndpoint[""], byEndpoint[canonicalEndpoint(endpoint)]} {
			tooSmall = append(tooSmall, cannotHold(limits, cost)...)
		}
		if len(tooSmall) > 0 {
			warnings = append(warnings, Warning{docpath.Member("costs", endpoint), fmt.Sprintf(
				"costs %d tokens, more than some limits can ever hold, so they always refuse it: %s", cost, strings.Join(tooSmall, ", "))})
		}
	}
	return warnings
}

// chargingLimits groups the limits that can refuse a request because of its cost in the table by the endpoint that they
// cover ("" = all), those that hold least first.
func (c Config) chargingLimits() map[string][]locatedLimit {
	groups := map[string][]locatedLimit{}
	for _, l := range c.limits() {
		if l.Cost == nil && !l.SoftOnly && l.inRange() {
			endpoint := canonicalEndpoint(l.Endpoint)
			groups[endpoint] = append(groups[endpoint], l)
		}
	}
	for _, limits := range groups {
		slices.SortStableFunc(limits, func(a, b locatedLimit) int { return cmp.Compare(a.ceiling(), b.ceiling()) })
	}
	return groups
}

// cannotHold describes the first few of limits, which are sorted by what they can hold, that can never hold cost.
func cannotHold(limits []locatedLimit, cost int64) []string {
	const named = 3
	var found []string
	for _, l := range limits {
		if cost <= l.ceiling() {
			break
		}
		if len(found) == named {
			return append(found, "and others")
		}
		found = append(found, fmt.Sprintf("%s of %s (%d)", l.Name, l.list, l.ceiling()))
	}
	return found
}

func (c Config) limitWarnings(l locatedLimit) []Warning {
	var warnings []Warning
	warn := func(field, format string, args ...any) {
		warnings = append(warnings, Warning{l.path + field, fmt.Sprintf(format, args...)})
	}
	if l.HardThresholdPct > 0 && l.SoftThresholdPct == 0 {
		warn(".hard_threshold_pct", "is ignored without soft_threshold_pct")
	}
	if l.isUser() && c.UserFrom != nil && len(c.UserFrom) == 0 {
		warn(".scope", "is %s but user_from is empty: on_missing_user decides for every request", l.Scope)
	}
	quantity, burst := l.Limit.Limit, l.Capacity()
	modest := max(quantity/20, 1)
	if l.isTokenBucket() && l.WindowSize >= longWindow && burst > modest {
		warn("", "a window of %d s can see up to %d requests, because a token_bucket lets a burst of %d pass on top of the limit of %d; for a quota use algorithm fixed_window, for a rate a burst of at most %d",
			l.WindowSize, quantity+burst, burst, quantity, modest)
	}
	return warnings
}

func (l Limit) isUser() bool {
	return l.Scope == ScopeUser || l.Scope == ScopeUserEndpoint
}

func (l Limit) isTokenBucket() bool {
	return l.Algorithm == AlgorithmTokenBucket || l.Algorithm == ""
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
