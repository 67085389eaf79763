package deck

import (
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Plugins returns the entries of all plugins of a document, and the services of its routes, by route; "" stands for
// a route without one.
func Plugins(document *yaml.Node) (plugins []Plugin, services map[string]string, err error) {
	f := &finder{shared: sharedConfigs(document), bounds: deckfile.NewWalk(), serviceOf: map[string]string{}}
	if err := f.walk(document, ""); err != nil {
		return nil, nil, err
	}
	for i := range f.entries {
		if p := &f.entries[i].Place; p.Service == "" {
			p.Service = f.serviceOf[p.Route]
		}
	}
	return f.entries, f.serviceOf, nil
}

type finder struct {
	shared    map[string]*yaml.Node
	entries   []Plugin
	within    Place             // what the walk is in
	serviceOf map[string]string // by route
	bounds    *deckfile.Walk
}

func (f *finder) walk(n *yaml.Node, path string) error {
	n = deckfile.Resolve(n)
	if err := f.bounds.Enter(n); err != nil {
		return err
	}
	defer f.bounds.Leave(n)
	switch n.Kind {
	case yaml.DocumentNode:
		for _, inner := range n.Content {
			if err := f.walk(inner, path); err != nil {
				return err
			}
		}
	case yaml.SequenceNode:
		outer := f.within
		for i, item := range n.Content {
			f.enter(deckfile.Resolve(item), path, docpath.Item(path, i))
			if err := f.walk(item, docpath.Item(path, i)); err != nil {
				return err
			}
			f.within = outer
		}
	case yaml.MappingNode:
		for _, p := range deckfile.Pairs(n) {
			if err := f.member(p, docpath.Member(path, p.Key.Value)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *finder) member(p deckfile.Pair, path string) error {
	switch p.Key.Value {
	case "plugins":
		return f.plugins(deckfile.Resolve(p.Value), path)
	case "config": // inside a config nothing is decK's own
		return nil
	}
	return f.walk(p.Value, path)
}

func (f *finder) plugins(list *yaml.Node, path string) error {
	if list.Kind != yaml.SequenceNode {
		return nil
	}
	for i, item := range list.Content {
		entry := deckfile.Resolve(item)
		if err := f.bounds.Enter(entry); err != nil {
			return err
		}
		f.bounds.Leave(entry) // nothing is nested in a plugin entry
		name := deckfile.Get(entry, "name")
		if name == nil {
			continue
		}
		enabled := deckfile.Get(entry, "enabled")
		e := Plugin{
			Name: name.Value, Path: docpath.Item(path, i), Line: item.Line, Item: item, List: list,
			Enabled: enabled == nil || enabled.Value != "false", Place: f.placeOf(entry), config: deckfile.Get(entry, "config"),
		}
		if shared := deckfile.Get(entry, "_config"); shared != nil {
			e.shared = f.shared[shared.Value]
		}
		f.entries = append(f.entries, e)
	}
	return nil
}

// sharedConfigs returns the configs under _plugin_configs, which plugin entries can name.
func sharedConfigs(document *yaml.Node) map[string]*yaml.Node {
	shared := map[string]*yaml.Node{}
	if document.Kind != yaml.DocumentNode || len(document.Content) == 0 {
		return shared
	}
	configs := deckfile.Get(deckfile.Resolve(document.Content[0]), "_plugin_configs")
	if configs == nil {
		return shared
	}
	for _, p := range deckfile.Pairs(configs) {
		shared[p.Key.Value] = deckfile.Resolve(p.Value)
	}
	return shared
}

// enter notes what an item of a list is: a service, a route, a consumer or a consumer group. One without a name has its
// path as one.
func (f *finder) enter(item *yaml.Node, list, path string) {
	name := path
	if own := reference(item); own != "" {
		name = own
	}
	switch list[strings.LastIndexByte(list, '.')+1:] {
	case "services":
		f.within.Service = name
	case "routes":
		f.within.Route = name
		if f.within.Service == "" {
			f.within.Service = reference(deckfile.Get(item, "service"))
		}
		f.serviceOf[name] = f.within.Service
	case "consumers":
		f.within.Consumer = name
	case "consumer_groups":
		f.within.Group = name
	}
}

// placeOf returns where a plugin entry is enabled: within what it is nested in, and what it names itself.
func (f *finder) placeOf(entry *yaml.Node) Place {
	p := f.within
	for key, to := range map[string]*string{
		"service": &p.Service, "route": &p.Route, "consumer": &p.Consumer, "consumer_group": &p.Group,
	} {
		if named := reference(deckfile.Get(entry, key)); named != "" {
			*to = named
		}
	}
	return p
}

// reference returns the name by which a node refers to an entity: itself, or its name, username or id.
func reference(n *yaml.Node) string {
	if n == nil || n.Kind == yaml.ScalarNode {
		if n == nil || n.Tag == "!!null" {
			return ""
		}
		return n.Value
	}
	for _, key := range []string{"name", "username", "id"} {
		if value := deckfile.Get(n, key); value != nil && value.Kind == yaml.ScalarNode {
			return value.Value
		}
	}
	return ""
}
