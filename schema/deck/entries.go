package deck

import (
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// pluginEntry is one entry of a plugin in a decK file.
type pluginEntry struct {
	place
	name   string
	item   *yaml.Node // the entry, or an alias of it, in the list
	list   *yaml.Node
	path   string // of its config
	line   int    // of its config, or of the entry when it has none
	config *yaml.Node
	shared *yaml.Node // the entry of _plugin_configs that it names by _config; its own config wins
}

// pluginEntries finds the plugin's entries in every list called plugins, wherever it is nested, and the places at which
// the settling plugin is enabled.
func pluginEntries(document *yaml.Node) (entries []pluginEntry, settling []place, err error) {
	f, err := findEntries(document)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range f.entries {
		switch {
		case e.name == schema.Name:
			entries = append(entries, e)
		case e.name == schema.SettlingName && e.enabled:
			settling = append(settling, e.place)
		}
	}
	return entries, settling, nil
}

// findEntries finds the entries of all plugins.
func findEntries(document *yaml.Node) (*finder, error) {
	f := &finder{shared: sharedConfigs(document), bounds: deckfile.NewWalk(), serviceOf: map[string]string{}}
	if err := f.walk(document, ""); err != nil {
		return nil, err
	}
	for i := range f.entries {
		if e := &f.entries[i]; e.service == "" {
			e.service = f.serviceOf[e.route]
		}
	}
	return f, nil
}

type finder struct {
	shared    map[string]*yaml.Node
	entries   []pluginEntry
	within    place             // what the walk is in
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
		e := pluginEntry{
			place: f.placeOf(entry), name: name.Value, item: item, list: list,
			path: docpath.Item(path, i) + ".config", line: item.Line, config: deckfile.Get(entry, "config"),
		}
		if e.config != nil {
			e.line = e.config.Line
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

// encode converts the entry's config to JSON, over the one it shares.
func (e pluginEntry) encode(w *deckfile.Walk) (deckfile.Config, error) {
	config := e.config
	if e.shared != nil {
		config = e.withShared()
	}
	encoded, err := deckfile.Encode(config, w)
	if err != nil {
		return encoded, err
	}
	encoded.Lines[""] = e.line
	return encoded, nil
}

// withShared returns the entry's own config over the shared one, key by key, as decK merges them.
func (e pluginEntry) withShared() *yaml.Node {
	both := &yaml.Node{Kind: yaml.MappingNode, Line: e.line}
	own := map[string]bool{}
	if e.config != nil {
		for _, p := range deckfile.Pairs(e.config) {
			both.Content = append(both.Content, p.Key, p.Value)
			own[p.Key.Value] = true
		}
	}
	for _, p := range deckfile.Pairs(e.shared) {
		if !own[p.Key.Value] {
			both.Content = append(both.Content, p.Key, p.Value)
		}
	}
	return both
}
