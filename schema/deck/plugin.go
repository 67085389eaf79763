package deck

import (
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
)

// Plugin is an entry of any plugin in a decK file.
type Plugin struct {
	Name    string
	Path    string     // of the entry, from the root of the file
	Line    int        // of the entry
	Item    *yaml.Node // the entry, or an alias of it
	List    *yaml.Node // the list that holds it
	Enabled bool

	// Place names what the entry is enabled for.
	Place Place

	entry pluginEntry
}

// Place names the entities whose requests a plugin entry is for: those that it is nested in or refers to. "" stands for
// all.
type Place struct{ Service, Route, Consumer, Group string }

// Overlaps reports whether one request can be of both places.
func (p Place) Overlaps(other Place) bool {
	meet := func(a, b string) bool { return a == "" || b == "" || a == b }
	return meet(p.Service, other.Service) && meet(p.Route, other.Route) && meet(p.Consumer, other.Consumer) &&
		meet(p.Group, other.Group)
}

// String returns the place in words.
func (p Place) String() string {
	var parts []string
	for _, part := range [...][2]string{
		{"route ", p.Route}, {"service ", p.Service}, {"consumer ", p.Consumer}, {"consumer group ", p.Group},
	} {
		if part[1] != "" {
			parts = append(parts, part[0]+part[1])
		}
	}
	if len(parts) == 0 {
		return "all requests"
	}
	return strings.Join(parts, ", ")
}

// Plugins returns the entries of all plugins of a document, and the services of its routes, by route; "" stands for
// a route without one.
func Plugins(document *yaml.Node) (plugins []Plugin, services map[string]string, err error) {
	f, err := findEntries(document)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range f.entries {
		plugins = append(plugins, Plugin{
			Name: e.name, Path: strings.TrimSuffix(e.path, ".config"), Line: e.item.Line, Item: e.item, List: e.list,
			Enabled: e.enabled, Place: Place{e.service, e.route, e.consumer, e.group}, entry: e,
		})
	}
	return plugins, f.serviceOf, nil
}

// Config returns the entry's config, over the one of _plugin_configs that it names.
func (p *Plugin) Config(w *deckfile.Walk) (deckfile.Config, error) { return p.entry.encode(w) }
