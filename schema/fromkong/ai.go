package fromkong

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// dollars reads a cost as millionths of a US dollar.
var dollars = quantity{
	parse: func(n json.Number) (int64, bool) {
		price, err := schema.ParsePrice(n.String())
		return int64(price), err == nil
	},
	most:  maxLimit,
	takes: "costs from 0.000001 to 1000000, with at most 6 decimals",
}

// ai converts a config of ai-rate-limiting-advanced: each limit of a provider settles to what Kong's log says of the
// answers of that provider.
func (e *entry) ai() {
	var k aiAdvanced
	e.read("", e.values, &k)
	if list, ok := k.Policies.([]any); ok && len(list) > 0 {
		e.fault("policies", "has %d policies, and their order and counters have no counterpart: write a limit for each, "+
			"with match: {model, provider} as in docs/llm-budgets.md", len(list))
	} else if len(k.Providers) == 0 {
		e.fault("llm_providers", "is missing")
	}
	var windows []window
	for i, provider := range k.Providers {
		windows = append(windows, e.aiLimits(docpath.Item("llm_providers", i), provider, k.TokensCounted)...)
	}
	c := e.identify("identifier", k.Identifier, k.HeaderName, k.Path)
	k.denial = denial{k.ErrorCode, strings.TrimSuffix(k.ErrorMessage, " for provider(s): ")}
	e.advancedFields(k.advancedFields)
	e.count(c, windows, schema.AlgorithmFixedWindow, k.visibility)
	e.settles = true
	e.differs("ai-in-flight", "ai-log", "ai-streams")
	if k.WindowType == "sliding" {
		e.differs("ai-sliding")
	}
	if !k.ErrorHideProviders {
		e.differs("ai-message")
	}
}

// aiLimits returns the limits of the provider at a path, whose answers count by one of the numbers that Kong logs.
func (e *entry) aiLimits(path string, p aiProvider, counted string) []window {
	if p.Name == "requestPrompt" || p.Name == "customCost" {
		e.fault(docpath.Member(path, "name"), "is %s, which counts by a function in Lua: let a pre-function put the "+
			"number into a header for cost_header, or a post-function into kong.ctx.shared for settle", p.Name)
	}
	from, limit := source{From: "log.ai.*.usage." + counted}, wholeUpTo(maxLimit)
	unit := ""
	if counted == "cost" {
		from.Weight, limit, unit = 1_000_000, dollars, schema.UnitUSD
		e.differs("ai-cost")
	}
	windows := e.windowList(path, p.windowLists, limit)
	for i := range windows {
		w := &windows[i]
		w.name, w.unit = fmt.Sprintf("%s-%s", p.Name, w.name), unit
		w.match, w.settle = &match{p.Name}, &settle{[]source{from}}
	}
	return windows
}
