package deck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Plugin is an entry of any plugin in a decK file.
type Plugin struct {
	Name    string
	Path    string     // of the entry, from the root of the file
	Line    int        // of the entry
	Item    *yaml.Node // the entry, or an alias of it
	List    *yaml.Node // the list that holds it
	Enabled bool
	Place   Place // what the entry is enabled for

	config *yaml.Node
	shared *yaml.Node // the config that it names by _config, or nil
	fault  error      // of _config
}

// Place names the entities whose requests a plugin entry is for, by their kinds: those that it is nested in or refers
// to. "" stands for all.
type Place [len(kinds)]string

// The kinds of entities.
const (
	OfRoute = iota
	OfService
	OfConsumer
	OfGroup
)

// kinds holds the names of the kinds. A list of entities has the name of its kind with an s.
var kinds = [...]string{"route", "service", "consumer", "consumer_group"}

// or returns p with the names that other has and p lacks.
func (p Place) or(other Place) Place {
	for kind := range p {
		p[kind] = cmp.Or(p[kind], other[kind])
	}
	return p
}

// Overlaps reports whether one request can be of both places.
func (p Place) Overlaps(other Place) bool { return p.or(other) == other.or(p) }

// covers reports whether p is at least as wide as other.
func (p Place) covers(other Place) bool { return p.or(other) == other }

// Entities returns the kinds and names of the entities that an entry for p names: of a route and its service the route.
func (p Place) Entities() (list [][2]string) {
	if p[OfRoute] != "" {
		p[OfService] = ""
	}
	for kind, name := range p {
		if name != "" {
			list = append(list, [2]string{kinds[kind], name})
		}
	}
	return list
}

// String returns the place in words.
func (p Place) String() string {
	text := ""
	for kind, name := range p {
		if name != "" {
			text += ", " + strings.ReplaceAll(kinds[kind], "_", " ") + " " + name
		}
	}
	return cmp.Or(strings.TrimPrefix(text, ", "), "all requests")
}

// Document is what a document of a decK file declares. It has the names of entities also where the file refers to them
// by their ids.
type Document struct {
	Plugins   []Plugin          // in every list called plugins, wherever it is nested
	Services  map[string]string // of the routes, by route; "": a route without one
	Routes    []Route           // that have a name
	Consumers []*yaml.Node
}

// Route is a route of a document.
type Route struct {
	Name   string
	Fields *yaml.Node
}

// Read returns what a document declares.
func Read(document *yaml.Node) (*Document, error) {
	f := finder{
		Document: Document{Services: map[string]string{}}, bounds: deckfile.NewWalk(), names: map[entity]string{},
		shared: cmp.Or(deckfile.Get(deckfile.Root(document), "_plugin_configs"), new(yaml.Node)),
	}
	if err := f.walk(document, ""); err != nil {
		return nil, err
	}
	for route, service := range f.Services {
		f.Services[route] = f.nameOf("services", service)
	}
	for i := range f.Plugins {
		place := &f.Plugins[i].Place
		for kind, id := range place {
			place[kind] = f.nameOf(kinds[kind]+"s", id)
		}
		if place[OfService] == "" {
			place[OfService] = f.Services[place[OfRoute]]
		}
	}
	return &f.Document, nil
}

type finder struct {
	Document
	shared *yaml.Node        // _plugin_configs; without content if there are none
	within Place             // what the walk is in
	names  map[entity]string // of entities that have an id
	bounds *deckfile.Walk
}

// entity identifies an entity by the list that holds it and its id.
type entity struct{ list, id string }

// nameOf returns the name of the entity of a list that has an id, or else the id, which may be its name.
func (f *finder) nameOf(list, id string) string { return cmp.Or(f.names[entity{list, id}], id) }

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
			Enabled: enabled == nil || enabled.Value != "false", Place: f.placeOf(entry),
			config: deckfile.Get(entry, "config"),
		}
		e.shared, e.fault = deckfile.Shared(f.shared, deckfile.Get(entry, "_config"))
		f.Plugins = append(f.Plugins, e)
	}
	return nil
}

// enter notes what an item of a list is: a service, a route, a consumer or a consumer group. One without a name has its
// path as one.
func (f *finder) enter(item *yaml.Node, list, path string) {
	name := cmp.Or(reference(item), path)
	if list == "consumers" {
		f.Consumers = append(f.Consumers, item)
	}
	list = list[strings.LastIndexByte(list, '.')+1:]
	if id := deckfile.Get(item, "id"); id != nil {
		f.names[entity{list, id.Value}] = name
	}
	kind := slices.IndexFunc(kinds[:], func(kind string) bool { return list == kind+"s" })
	if kind >= 0 {
		f.within[kind] = name
	}
	if kind == OfRoute {
		f.within[OfService] = cmp.Or(f.within[OfService], reference(deckfile.Get(item, "service")))
		f.Services[name] = f.within[OfService]
		if name != path {
			f.Routes = append(f.Routes, Route{name, item})
		}
	}
}

// placeOf returns where a plugin entry is enabled: within what it is nested in, and what it names itself.
func (f *finder) placeOf(entry *yaml.Node) Place {
	p := f.within
	for kind, key := range kinds {
		p[kind] = cmp.Or(reference(deckfile.Get(entry, key)), p[kind])
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

func (p *Plugin) configPath() string { return p.Path + ".config" }

// configLine returns the line of the entry's config, or of the entry when it has none.
func (p *Plugin) configLine() int {
	if p.config != nil {
		return p.config.Line
	}
	return p.Line
}

// Config returns the entry's config as JSON, with what only the one of _plugin_configs that it names has.
func (p *Plugin) Config(w *deckfile.Walk) (deckfile.Config, error) {
	config, err := deckfile.Merge(p.config, p.shared, w)
	if err = cmp.Or(p.fault, err); err != nil {
		return deckfile.Config{}, fmt.Errorf("cannot be read: %w", err)
	}
	encoded, err := deckfile.Encode(config, w)
	if err != nil {
		return encoded, err
	}
	encoded.Lines[""] = p.configLine()
	return encoded, nil
}

// requireSettling warns of limits that need the plugin that settles, and lack it: reservations stay charged, and
// requests count as in flight until max_duration.
func (v *validator) requireSettling(e *Plugin, config deckfile.Config, c schema.Config, settling []Place) {
	limits := c.Limits()
	i := slices.IndexFunc(limits, func(l schema.LocatedLimit) bool { return l.Settle != nil || l.MaxDuration != 0 })
	if i < 0 || !e.Enabled || slices.ContainsFunc(settling, func(p Place) bool { return p.covers(e.Place) }) {
		return
	}
	field, otherwise := "settle", "keeps its whole reservation"
	if limits[i].MaxDuration != 0 {
		field, otherwise = "max_duration", "counts as in flight for all of this time"
	}
	at := docpath.Member(limits[i].Path, field)
	list := e.Path[:strings.LastIndex(e.Path, "[")]
	entry := "name: " + schema.SettlingName
	if entities := e.Place.Entities(); list == "plugins" && len(entities) > 0 {
		for _, named := range entities {
			entry += ", " + named[0] + ": " + named[1]
		}
		entry = "{" + entry + "}"
	}
	v.report(config.Line(at), docpath.Join(e.configPath(), at), Warning, fmt.Sprintf(
		"needs the plugin %s for the same requests, else each %s: add %q to %s",
		schema.SettlingName, otherwise, "- "+entry, list))
}
