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

	config *yaml.Node // nil: it has none
	shared *yaml.Node // the entry of _plugin_configs that it names by _config; its own config wins
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

// covers reports whether p is at least as wide as other.
func (p Place) covers(other Place) bool {
	within := func(wide, narrow string) bool { return wide == "" || wide == narrow }
	return within(p.Service, other.Service) && within(p.Route, other.Route) && within(p.Consumer, other.Consumer) &&
		within(p.Group, other.Group)
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

// configPath returns the path of the entry's config.
func (p *Plugin) configPath() string { return p.Path + ".config" }

// configLine returns the line of the entry's config, or of the entry if it has none.
func (p *Plugin) configLine() int {
	if p.config == nil {
		return p.Line
	}
	return p.config.Line
}

// Config returns the entry's config as JSON, over the one of _plugin_configs that it names.
func (p *Plugin) Config(w *deckfile.Walk) (deckfile.Config, error) {
	config := p.config
	if p.shared != nil {
		config = p.withShared()
	}
	encoded, err := deckfile.Encode(config, w)
	if err != nil {
		return encoded, err
	}
	encoded.Lines[""] = p.configLine()
	return encoded, nil
}

// withShared returns the entry's own config over the shared one, key by key, as decK merges them.
func (p *Plugin) withShared() *yaml.Node {
	both := &yaml.Node{Kind: yaml.MappingNode, Line: p.configLine()}
	own := map[string]bool{}
	if p.config != nil {
		for _, pair := range deckfile.Pairs(p.config) {
			both.Content = append(both.Content, pair.Key, pair.Value)
			own[pair.Key.Value] = true
		}
	}
	for _, pair := range deckfile.Pairs(p.shared) {
		if !own[pair.Key.Value] {
			both.Content = append(both.Content, pair.Key, pair.Value)
		}
	}
	return both
}
