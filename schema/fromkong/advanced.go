package fromkong

import (
	"fmt"
	"maps"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// advanced converts a config of rate-limiting-advanced.
func (e *entry) advanced(s *settings) {
	algorithm := schema.AlgorithmSlidingWindow
	penalty := !s.flag("disable_penalty", false)
	if s.choice("window_type", "sliding", "fixed") == "fixed" {
		algorithm, penalty = schema.AlgorithmFixedWindow, true
	} else {
		e.differs(SlidingEstimate)
	}
	if penalty {
		e.differs(DenialsSpendAdvanced)
	}
	windows := e.windowList(s)
	c := e.advancedIdentifier(s)
	e.consumerGroups(s)
	if s.record("throttling").allowOff() {
		s.problem("throttling", "is enabled: this plugin denies requests, and never delays them")
	}
	if len(s.ignore("dictionary_name", "lock_dictionary_name")) > 0 {
		e.differs(Dictionary)
	}
	if e.namespace = e.place(); s.has("namespace") {
		e.namespace = namespaceName(s.text("namespace", ""))
	}
	e.begin()
	e.strategy(s)
	e.visible(c, s.flag("hide_client_headers", false))
	e.denial(s)
	addUnless(&e.config, "retry_after_jitter_max", s.integer("retry_after_jitter_max", 0, 0, 86400), 0)
	e.identity(c)
	e.count(c, windows, algorithm)
}

// allowOff reports whether a record has enabled: true, and reads its other fields.
func (s *settings) allowOff() (enabled bool) {
	enabled = s.flag("enabled", false)
	s.ignore(slices.Collect(maps.Keys(s.values))...)
	return enabled
}

// windowList pairs the limits with their windows.
func (e *entry) windowList(s *settings) []window {
	limits, sizes := e.integers(s, "limit", maxLimit), e.integers(s, "window_size", 31_622_400)
	if len(limits) != len(sizes) && len(s.shared.problems) == 0 {
		s.problem("window_size", "has %d windows for %d limits", len(sizes), len(limits))
	}
	if len(limits) == 0 && len(s.shared.problems) == 0 {
		s.problem("limit", "is missing")
	}
	var windows []window
	uses := map[string]int{}
	for i := range min(len(limits), len(sizes)) {
		name := windowName(sizes[i])
		if uses[name]++; uses[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, uses[name])
		}
		windows = append(windows, window{name: name, limit: limits[i], seconds: sizes[i]})
	}
	return windows
}

// integers reads a list of whole numbers from 1 to most, or a single one.
func (e *entry) integers(s *settings, field string, most int64) []int64 {
	if _, single := s.values[field].([]any); !single && s.has(field) {
		s.values[field] = []any{s.values[field]}
	}
	list := s.list(field)
	numbers := make([]int64, 0, len(list))
	for i, v := range list {
		item := &settings{values: map[string]any{"": v}, path: s.path, read: map[string]bool{}, shared: s.shared}
		n, ok := item.number("")
		whole, isWhole := wholeNumber(n)
		if ok && (!isWhole || whole < 1 || whole > most) {
			s.problem(field, "has %s in place %d, and this plugin takes whole numbers from 1 to %d", n, i+1, most)
		}
		numbers = append(numbers, whole)
	}
	return numbers
}

// windowName names a limit by its window, as Kong's headers do.
func windowName(seconds int64) string {
	for _, p := range periods {
		if p.seconds == seconds {
			return p.name
		}
	}
	return fmt.Sprintf("%ds", seconds)
}

// advancedIdentifier returns what the limits count by.
func (e *entry) advancedIdentifier(s *settings) counting {
	identifier := s.choice("identifier",
		"consumer", "credential", "ip", "service", "header", "path", "route", "consumer-group")
	field := "identifier"
	if compound := s.texts("compound_identifier"); len(compound) == 1 {
		identifier, field = compound[0], "compound_identifier"
	} else if len(compound) > 1 {
		s.problem("compound_identifier", "counts by %d identifiers together, which this plugin cannot: it counts by one, "+
			"and has several limits that must all pass", len(compound))
	}
	c := e.identify(s, field, identifier)
	s.ignore("header_name", "path")
	if key := s.text("counter_key", "consumer.id"); identifier == "consumer" && key != "consumer.id" {
		c.tenant = []string{key}
	}
	return c
}

// consumerGroups reads which groups have limits of their own: those have entries in the file.
func (e *entry) consumerGroups(s *settings) {
	enforced, groups := s.flag("enforce_consumer_groups", false), s.texts("consumer_groups")
	if !enforced {
		return
	}
	for _, group := range groups {
		if !e.groups[group] {
			s.problem("consumer_groups", "names the group %s, whose limits are not in this file", shown(group))
		}
	}
	if e.info != nil && (e.Place.Service != "" || e.Place.Route != "" || e.Place.Consumer != "") {
		s.problem("enforce_consumer_groups", "is true for %s, where the overrides of consumer groups cannot be converted: "+
			"give each group an entry of its own", e.Place)
	}
}

// strategy adds where rate-limiting-advanced counts.
func (e *entry) strategy(s *settings) {
	strategy := s.choice("strategy", "local", "redis", "cluster")
	sync, given := s.number("sync_rate")
	rate, err := sync.Float64()
	switch {
	case strategy == "local":
		e.inProcess(s)
		return
	case err == nil && rate == -1:
		e.inProcess(s)
		e.differs(SyncRateNever)
		return
	case !given && s.values["sync_rate"] == nil:
		s.problem("sync_rate", "is missing, and Kong requires it beside strategy %s", strategy)
	case given && (err != nil || rate < 0):
		s.problem("sync_rate", "is %s: it must be -1, 0, or a number of seconds from 0.02", sync)
	}
	e.config.add("strategy", schema.StrategyRedis)
	if rate == 0 {
		e.config.add("accuracy", schema.AccuracyExact)
	} else {
		e.differs(SyncRate)
	}
	e.shared(s, strategy == "cluster", "strategy")
	e.differs(LocalFallback)
}

// overridesKey is the key under _info by which decK marks a file for Kong before 3.4, where the plugins of consumer
// groups are overrides of rate-limiting-advanced.
const overridesKey = "consumer_group_policy_overrides"

// overridesInfo returns the mapping with overridesKey if that is true, and the mapping that it is in; or nil.
func overridesInfo(document *yaml.Node) (info, root *yaml.Node) {
	if document.Kind != yaml.DocumentNode || len(document.Content) == 0 {
		return nil, nil
	}
	root = deckfile.Resolve(document.Content[0])
	if info = deckfile.Get(root, "_info"); info == nil {
		return nil, nil
	}
	if flag := deckfile.Get(info, overridesKey); flag == nil || flag.Value != "true" {
		return nil, nil
	}
	return info, root
}

// removeOverridesKey removes overridesKey from documents whose overrides are converted, and _info if that was all of
// it. It returns the indexes of its lines.
func (f *file) removeOverridesKey(changed []*entry) []int {
	var lines []int
	for _, e := range changed {
		if e.info == nil || e.Place.Group == "" {
			continue
		}
		lines = append(lines, removeKey(e.info, overridesKey)...)
		if len(e.info.Content) == 0 {
			lines = append(lines, removeKey(e.root, "_info")...)
		}
	}
	return lines
}

// removeKey removes a key from a mapping, and returns the index of its line.
func removeKey(mapping *yaml.Node, key string) []int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if k := mapping.Content[i]; k.Value == key {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
			return []int{k.Line - 1}
		}
	}
	return nil
}

// mergeOverrides completes the overrides of consumer groups by the config that they override: that of the one global
// entry with enforce_consumer_groups.
func (f *file) mergeOverrides() {
	for _, e := range f.entries {
		if e.info == nil || e.Place.Group == "" || e.Name != "rate-limiting-advanced" || e.settings == nil {
			continue
		}
		var bases []*entry
		for _, base := range f.entries {
			if base.document == e.document && base.Name == e.Name && base.Enabled && base.settings != nil &&
				base.Place.Group == "" && base.settings.values["enforce_consumer_groups"] == true {
				bases = append(bases, base)
			}
		}
		if len(bases) != 1 || bases[0].Place.String() != "all requests" {
			e.problem("overrides %d entries with enforce_consumer_groups, and can be converted for one that is for all "+
				"requests", len(bases))
			continue
		}
		if f.SideBySide {
			e.problem("cannot have an entry beside it: decK takes all plugins of the group for overrides, as long as _info "+
				"has %s", overridesKey)
		}
		e.settings.values = e.mergedOver(bases[0].settings.values)
		e.differs(GroupOverride)
	}
}

// mergedOver returns the values of an override over those of the config that it changes.
func (e *entry) mergedOver(base map[string]any) map[string]any {
	merged := maps.Clone(base)
	delete(merged, "enforce_consumer_groups")
	delete(merged, "consumer_groups")
	switch merged["identifier"] {
	case nil, "consumer", "credential":
		delete(merged, "namespace") // no other entry counts the consumers of the group
	}
	maps.Copy(merged, e.settings.values)
	return merged
}
