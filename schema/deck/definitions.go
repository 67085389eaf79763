package deck

import (
	"cmp"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// limitKey identifies the limits that share their counters for one tenant, across configs. It includes the list (a
// tier, anonymous or global), because tiers define a limit of one name differently on purpose.
type limitKey struct{ namespace, list, name, endpoint string }

// definition holds the fields of a limit that change the counting, and the place that defined it first.
type definition struct {
	limit  schema.Limit
	settle string // how it settles, in words; "": it does not
	fair   string // how it is shared, in words; "": not fairly
	where  string
	line   int
}

// compareDefinitions warns if two configs of one namespace define one limit differently: they share its counter with
// different limits.
func (v *validator) compareDefinitions(e *Plugin, config deckfile.Config, c schema.Config) {
	for i, tier := range c.Tiers {
		v.compareList(e, config, c, limitKey{list: "tier " + tier.Name}, docpath.Item("tiers", i), tier.Limits)
	}
	v.compareList(e, config, c, limitKey{list: "anonymous"}, "anonymous", c.Anonymous.Limits)
	v.compareList(e, config, c, limitKey{list: "global"}, "global", c.Global.Limits)
}

func (v *validator) compareList(
	e *Plugin, config deckfile.Config, c schema.Config, key limitKey, path string, limits []schema.Limit,
) {
	for i, l := range limits {
		at := docpath.Item(path+".limits", i)
		key.namespace, key.name, key.endpoint = c.Namespace, l.Name, l.Endpoint
		here := definition{
			limit: countingPart(l, c), where: docpath.Join(e.configPath(), at), line: config.Line(at),
		}
		if l.Settle != nil {
			here.settle = l.Settle.Describe()
		}
		if l.Fair != nil {
			here.fair = l.Fair.Describe()
		}
		first, ok := v.definitions[key]
		if !ok {
			v.definitions[key] = here
			continue
		}
		if first.limit != here.limit || first.settle != here.settle || first.fair != here.fair {
			v.report(here.line, here.where, Warning, fmt.Sprintf(
				"defines limit %s of namespace %s otherwise than %s in line %d (%s there, %s here): both use the same counter; "+
					"give it another name, or one of the configs another namespace",
				l.Name, key.namespace, first.where, first.line, first.describe(), here.describe()))
		}
	}
}

func countingPart(l schema.Limit, c schema.Config) schema.Limit {
	counting := schema.Limit{
		Scope: l.Scope, Limit: l.Limit, WindowSize: l.WindowSize, Algorithm: l.Algorithm, Burst: l.Capacity(),
		SoftThresholdPct: l.SoftThresholdPct, HardThresholdPct: l.HardThresholdPct, SoftOnly: l.SoftOnly,
	}
	if c.Strategy == schema.StrategyRedis && l.Capacity() >= schema.LeastLeased && l.Settle == nil {
		counting.Accuracy = cmp.Or(l.Accuracy, c.Accuracy) // a leased limit has another capacity
	}
	return counting
}

// describe returns the definition in words.
func (d *definition) describe() string {
	l := &d.limit
	text := fmt.Sprintf("%d per %d s per %s, %s", l.Limit, l.WindowSize, l.Scope, l.Algorithm)
	if l.Burst != l.Limit {
		text += fmt.Sprintf(", burst %d", l.Burst)
	}
	if l.SoftThresholdPct != 0 || l.HardThresholdPct != 0 || l.SoftOnly {
		text += fmt.Sprintf(", soft %d %%, hard %d %%, soft only %t", l.SoftThresholdPct, l.HardThresholdPct, l.SoftOnly)
	}
	if l.Accuracy != "" {
		text += ", " + l.Accuracy
	}
	if d.settle != "" {
		text += ", " + d.settle
	}
	if d.fair != "" {
		text += ", " + d.fair
	}
	return text
}
