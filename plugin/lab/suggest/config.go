package suggest

import (
	"errors"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// unknownTier is the tier of a probe for tenants whose tier no config defines: it is the one that they claim.
const unknownTier = "(claimed)"

// Default returns a file with one config for all routes, for traffic without a decK file.
func Default() *routeconfig.File {
	return &routeconfig.File{Configs: []*routeconfig.Config{{Config: schema.Config{}.WithDefaults(), Where: "defaults"}}}
}

// Probe returns the configs of a file with one limit that denies nothing in each tier: their decisions show who a
// request is from, and what it costs.
func Probe(file *routeconfig.File) *routeconfig.File {
	return changed(file, func(config *schema.Config) {
		probe := []schema.Limit{{Name: "probe", Scope: "tenant", Limit: maxLimit, WindowSize: 1, Algorithm: "fixed_window"}}
		tiers := []schema.Tier{}
		for _, tier := range config.Tiers {
			tiers = append(tiers, schema.Tier{Name: tier.Name, Limits: probe})
		}
		if len(tiers) == 0 { // a second tier makes the plugin read which one a tenant claims
			tiers = append(tiers, schema.Tier{Name: unknownTier, Limits: probe}, schema.Tier{Name: "(none)"})
		}
		config.Tiers = tiers
	})
}

// Judge returns the configs of a file with the suggested limits in place of their own. The default tier is of configs
// without tiers.
func Judge(file *routeconfig.File, list []Suggestion, defaultTier string) *routeconfig.File {
	return changed(file, func(config *schema.Config) {
		defined := len(config.Tiers) > 0
		config.Tiers = tiersOf(list, config.Tiers)
		suggested := slices.ContainsFunc(config.Tiers, func(t schema.Tier) bool { return t.Name == defaultTier })
		if !defined && suggested {
			config.DefaultTier = defaultTier
		}
	})
}

// tiersOf returns the tiers of suggestions, in the order of a config's tiers, of which the first is the default.
func tiersOf(list []Suggestion, order []schema.Tier) []schema.Tier {
	tiers := []schema.Tier{}
	place := func(name string) *schema.Tier {
		i := slices.IndexFunc(tiers, func(t schema.Tier) bool { return t.Name == name })
		if i < 0 {
			i = len(tiers)
			tiers = append(tiers, schema.Tier{Name: name, Limits: []schema.Limit{}})
		}
		return &tiers[i]
	}
	for _, tier := range order {
		place(tier.Name)
	}
	for i := range list {
		tier := place(list[i].Tier)
		tier.Limits = append(tier.Limits, list[i].limitOf())
	}
	return tiers
}

// changed returns the configs of a file after a change, without limits that are not of tenants.
func changed(file *routeconfig.File, change func(*schema.Config)) *routeconfig.File {
	next := *file
	next.Configs = nil
	for _, from := range file.Configs {
		config := *from
		change(&config.Config)
		config.Mode, config.MetaLimit = schema.ModeEnforce, 0
		config.OnMissingTenant, config.OnMissingUser = schema.MissingTenantSkip, schema.MissingUserCredential
		config.Anonymous, config.Global = schema.Anonymous{}, schema.Global{}
		next.Configs = append(next.Configs, &config)
	}
	return &next
}

// withoutFaults returns the suggestions without those that no config can have beside the others, such as patterns that
// are ambiguous.
func withoutFaults(list []Suggestion) []Suggestion {
	for {
		config := schema.Config{Tiers: tiersOf(list, nil)}.WithDefaults()
		err := config.Validate()
		if err == nil {
			_, err = resolve.FromConfig(config)
		}
		var faults schema.Faults
		if !errors.As(err, &faults) {
			return list
		}
		faulty := map[[2]string]bool{}
		for _, l := range config.Limits() {
			if slices.ContainsFunc(faults, func(f schema.Fault) bool { return strings.HasPrefix(f.Path, l.Path) }) {
				faulty[[2]string{l.List, l.Name}] = true
			}
		}
		all := len(list)
		list = slices.DeleteFunc(list, func(s Suggestion) bool { return faulty[[2]string{"tier " + s.Tier, s.Name}] })
		if len(list) == all {
			return list
		}
	}
}
