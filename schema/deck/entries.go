package deck

import (
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/internal/docpath"
)

// pluginEntry is one enabling of the plugin in a decK file.
type pluginEntry struct {
	path   string // of its config
	line   int    // of its config, or of the entry when it has none
	config *yaml.Node
	shared *yaml.Node // the entry of _plugin_configs that it names by _config; its own config wins
}

// pluginEntries finds the plugin's entries in every list called plugins, wherever it is nested.
func pluginEntries(document *yaml.Node) ([]pluginEntry, error) {
	f := finder{shared: sharedConfigs(document), tour: newTour()}
	if err := f.walk(document, ""); err != nil {
		return nil, err
	}
	return f.entries, nil
}

type finder struct {
	shared  map[string]*yaml.Node
	entries []pluginEntry
	tour    tour
}

func (f *finder) walk(n *yaml.Node, path string) error {
	n = resolve(n)
	if err := f.tour.enter(n); err != nil {
		return err
	}
	defer f.tour.leave(n)
	switch n.Kind {
	case yaml.DocumentNode:
		for _, inner := range n.Content {
			if err := f.walk(inner, path); err != nil {
				return err
			}
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if err := f.walk(item, docpath.Item(path, i)); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		for _, p := range pairs(n) {
			if err := f.member(p, docpath.Member(path, p.key.Value)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *finder) member(p pair, path string) error {
	switch p.key.Value {
	case "plugins":
		return f.plugins(resolve(p.value), path)
	case "config": // inside a config nothing is decK's own
		return nil
	}
	return f.walk(p.value, path)
}

func (f *finder) plugins(list *yaml.Node, path string) error {
	if list.Kind != yaml.SequenceNode {
		return nil
	}
	for i, item := range list.Content {
		entry := resolve(item)
		if err := f.tour.enter(entry); err != nil {
			return err
		}
		f.tour.leave(entry) // nothing is nested in a plugin entry
		name := get(entry, "name")
		if name == nil || name.Value != schema.Name {
			continue
		}
		e := pluginEntry{path: docpath.Item(path, i) + ".config", line: item.Line, config: get(entry, "config")}
		if e.config != nil {
			e.line = e.config.Line
		}
		if shared := get(entry, "_config"); shared != nil {
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
	configs := get(resolve(document.Content[0]), "_plugin_configs")
	if configs == nil {
		return shared
	}
	for _, p := range pairs(configs) {
		shared[p.key.Value] = resolve(p.value)
	}
	return shared
}

// get returns the value of key in a mapping, resolved; nil when there is none.
func get(n *yaml.Node, key string) *yaml.Node {
	for _, p := range pairs(n) {
		if p.key.Value == key {
			return resolve(p.value)
		}
	}
	return nil
}

type pair struct{ key, value *yaml.Node }

// pairs returns the keys and values of a mapping in order, then what its merge keys (<<) bring in beyond them; what is
// no mapping has none. A key given twice is there twice, so that it can be reported.
func pairs(n *yaml.Node) []pair {
	m := merger{own: map[string]bool{}, seen: map[*yaml.Node]bool{}}
	m.add(n)
	return m.pairs
}

type merger struct {
	pairs []pair
	own   map[string]bool     // keys of the mappings before the one being added
	seen  map[*yaml.Node]bool // mappings already added: a merge can lead back to one
}

func (m *merger) add(n *yaml.Node) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode || m.seen[n] {
		return
	}
	m.seen[n] = true
	var sources []*yaml.Node
	start := len(m.pairs)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.ShortTag() == "!!merge" {
			sources = append(sources, value)
		} else if !m.own[key.Value] {
			m.pairs = append(m.pairs, pair{key, value})
		}
	}
	for _, p := range m.pairs[start:] {
		m.own[p.key.Value] = true
	}
	for _, source := range sources {
		if list := resolve(source); list.Kind == yaml.SequenceNode {
			for _, item := range list.Content {
				m.add(item)
			}
			continue
		}
		m.add(source)
	}
}
