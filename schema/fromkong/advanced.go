package fromkong

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

func (e *entry) advanced() {
	var k advanced
	e.read("", e.values, &k)
	algorithm := schema.AlgorithmSlidingWindow
	if k.WindowType == "fixed" {
		algorithm = schema.AlgorithmFixedWindow
	} else {
		e.differs("sliding-estimate")
	}
	if k.WindowType == "fixed" || !k.DisablePenalty {
		e.differs("denials-spend-advanced")
	}
	windows := e.windowList("", k.windowLists, wholeUpTo(maxLimit))
	c := e.advancedIdentifier(k)
	e.consumerGroups(k)
	var t throttling
	if e.read("throttling", k.Throttling, &t); t.Enabled {
		e.fault("throttling", "is enabled: this plugin denies requests, and never delays them")
	}
	if k.LockDictionaryName != nil {
		e.differs("dictionary")
	}
	e.advancedFields(k.advancedFields)
	e.count(c, windows, algorithm, k.visibility)
}

// advancedFields sets where a config counts, and what it answers to denied requests.
func (e *entry) advancedFields(k advancedFields) {
	if k.DictionaryName != nil {
		e.differs("dictionary")
	}
	if e.config.Namespace = e.place(); k.Namespace != "" {
		e.config.Namespace = namespaceName(k.Namespace)
	}
	e.strategy(k)
	e.config.denial, e.config.jitter = k.denial, k.jitter
}

// windowList returns the windows of the record at a path.
func (e *entry) windowList(path string, k windowLists, limit quantity) []window {
	before := len(e.problems)
	limits := e.quantities(docpath.Member(path, "limit"), k.Limit, limit)
	sizes := e.quantities(docpath.Member(path, "window_size"), k.WindowSize, wholeUpTo(31_622_400))
	switch {
	case len(e.problems) > before:
	case len(limits) != len(sizes):
		e.fault(docpath.Member(path, "window_size"), "has %d windows for %d limits", len(sizes), len(limits))
	case len(limits) == 0:
		e.fault(docpath.Member(path, "limit"), "is missing")
	}
	var windows []window
	uses := map[string]int{}
	for i := range min(len(limits), len(sizes)) {
		name := windowName(sizes[i])
		if uses[name]++; uses[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, uses[name])
		}
		windows = append(windows, window{name: name, limit: limits[i], over: schema.Window{WindowSize: sizes[i]}})
	}
	return windows
}

// quantity reads a number that must not be 0.
type quantity struct {
	parse func(json.Number) (n int64, ok bool)
	most  int64
	takes string // what it may be
}

func wholeUpTo(most int64) quantity {
	return quantity{wholeNumber, most, fmt.Sprintf("whole numbers from 1 to %d", most)}
}

// quantities returns a list of numbers, or a single one.
func (e *entry) quantities(path string, v any, q quantity) []int64 {
	list, isList := v.([]any)
	if !isList && v != nil {
		list = []any{v}
	}
	numbers := make([]int64, len(list))
	for i, v := range list {
		n, ok := v.(json.Number)
		if !ok {
			e.readValue(path, v, reflect.ValueOf(&n).Elem(), "") // reports it
			continue
		}
		if numbers[i], ok = q.parse(n); !ok || numbers[i] < 1 || numbers[i] > q.most {
			e.fault(path, "has %s in place %d, and this plugin takes %s", n, i+1, q.takes)
		}
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

func (e *entry) advancedIdentifier(k advanced) counting {
	identifier, field := k.Identifier, "identifier"
	if n := len(k.CompoundIdentifier); n == 1 {
		identifier, field = k.CompoundIdentifier[0], "compound_identifier"
	} else if n > 1 {
		e.fault("compound_identifier", "counts by %d identifiers together, which this plugin cannot: it counts by one, "+
			"and has several limits that must all pass", n)
	}
	c := e.identify(field, identifier, k.HeaderName, k.Path)
	if identifier == "consumer" {
		c.tenant = []string{k.CounterKey}
	}
	return c
}

func (e *entry) consumerGroups(k advanced) {
	if !k.EnforceConsumerGroups {
		return
	}
	for _, group := range k.ConsumerGroups {
		if !e.groups[group] {
			e.fault("consumer_groups", "names the group %s, whose limits are not in this file", shown(group))
		}
	}
	if e.info != nil && e.Place[deck.OfService]+e.Place[deck.OfRoute]+e.Place[deck.OfConsumer] != "" {
		e.fault("enforce_consumer_groups", "is true for %s, where the overrides of consumer groups cannot be converted: "+
			"give each group an entry of its own", e.Place)
	}
}

func (e *entry) strategy(k advancedFields) {
	rate, err := k.SyncRate.Float64()
	switch {
	case k.Strategy == "local":
		e.inProcess()
		return
	case rate == -1:
		e.inProcess()
		e.differs("sync-rate-never")
		return
	case k.SyncRate == "":
		e.fault("sync_rate", "is missing, and Kong requires it beside strategy %s", k.Strategy)
	case err != nil || rate < 0:
		e.fault("sync_rate", "is %s: it must be -1, 0, or a number of seconds from 0.02", k.SyncRate)
	}
	if rate == 0 {
		e.config.Accuracy = schema.AccuracyExact
	} else {
		e.differs("sync-rate")
	}
	e.shared(k.Strategy == "cluster", "strategy")
	e.differs("local-fallback")
}

// overridesKey is the key under _info by which decK marks a file for Kong before 3.4, where the plugins of consumer
// groups are overrides of rate-limiting-advanced.
const overridesKey = "consumer_group_policy_overrides"

// overridesInfo returns the mapping with overridesKey if that is true, and the mapping that it is in; or nil.
func overridesInfo(document *yaml.Node) (info, root *yaml.Node) {
	root = deckfile.Root(document)
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
		if e.info == nil || e.Place[deck.OfGroup] == "" {
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
		if e.info == nil || e.Place[deck.OfGroup] == "" || e.Name != "rate-limiting-advanced" || e.values == nil {
			continue
		}
		var bases []*entry
		for _, base := range f.entries {
			if base.document == e.document && base.Name == e.Name && base.Enabled && base.values != nil &&
				base.Place[deck.OfGroup] == "" && base.values["enforce_consumer_groups"] == true {
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
		e.values = e.mergedOver(bases[0].values)
		e.differs("group-override")
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
	maps.Copy(merged, e.values)
	return merged
}
