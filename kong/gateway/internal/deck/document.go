package deck

import (
	"cmp"

	"gopkg.in/yaml.v3"
)

// document mirrors a decK file. The entries hold what a file adds to the entities: nested ones and references. Pointers
// distinguish an absent value from false where Kong's default is true.
type document struct {
	FormatVersion string          `yaml:"_format_version"`
	Transform     *bool           `yaml:"_transform"`
	Info          map[string]any  `yaml:"_info"`
	Services      []serviceEntry  `yaml:"services"`
	Routes        []routeEntry    `yaml:"routes"`
	Consumers     []consumerEntry `yaml:"consumers"`
	Plugins       []pluginEntry   `yaml:"plugins"`
}

type serviceEntry struct {
	Service `yaml:",inline"`

	URL         string        `yaml:"url"`
	Retries     *int          `yaml:"retries"`
	ReadTimeout *int          `yaml:"read_timeout"`
	Routes      []routeEntry  `yaml:"routes"`
	Plugins     []pluginEntry `yaml:"plugins"`
}

type routeEntry struct {
	Route `yaml:",inline"`

	StripPath *bool         `yaml:"strip_path"`
	Service   *reference    `yaml:"service"`
	Plugins   []pluginEntry `yaml:"plugins"`
}

type consumerEntry struct {
	Consumer `yaml:",inline"`

	Plugins []pluginEntry `yaml:"plugins"`
}

type pluginEntry struct {
	Plugin `yaml:",inline"`

	Enabled  *bool      `yaml:"enabled"`
	Config   yaml.Node  `yaml:"config"`
	Route    *reference `yaml:"route"`
	Service  *reference `yaml:"service"`
	Consumer *reference `yaml:"consumer"`
}

// reference is a name or an id; decK writes it bare or as {name: …}, {id: …}.
type reference struct {
	key string
}

func (r *reference) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&r.key)
	}
	var keyed struct {
		ID       string `yaml:"id"`
		Name     string `yaml:"name"`
		Username string `yaml:"username"`
	}
	err := node.Decode(&keyed)
	r.key = cmp.Or(keyed.ID, keyed.Name, keyed.Username)
	return err
}
