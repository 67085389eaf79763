package gateway

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Config holds everything that a decK file (format 3.0) declares, with nested entities lifted to the top, references
// resolved, Kong's defaults set and missing ids derived as Kong derives them. ParseConfig builds it; it is not changed
// afterwards.
type Config struct {
	Services  []*Service
	Routes    []*Route
	Consumers []*Consumer
	Plugins   []*PluginConfig // of every level, in document order
}

// Service is an upstream.
type Service struct {
	ID       string   `yaml:"id"`
	Name     string   `yaml:"name"`
	Protocol string   `yaml:"protocol"` // http or grpc
	Host     string   `yaml:"host"`
	Port     int      `yaml:"port"`
	Tags     []string `yaml:"tags"`
	// ReadTimeout bounds the wait for the headers of a response, in milliseconds.
	ReadTimeout int `yaml:"read_timeout"`
}

// Route selects the requests that go to a service. A route without a Service only runs plugins. Times are in seconds
// since the epoch, here and in the other entities.
type Route struct {
	ID        string   `yaml:"id"`
	Name      string   `yaml:"name"`
	Protocols []string `yaml:"protocols"`
	Methods   []string `yaml:"methods"`
	Hosts     []string `yaml:"hosts"` // without ports and wildcards
	Paths     []string `yaml:"paths"`
	StripPath bool     `yaml:"-"`
	Tags      []string `yaml:"tags"`
	Service   *Service `yaml:"-"`
	CreatedAt int64    `yaml:"created_at"`
	UpdatedAt int64    `yaml:"updated_at"`
}

// speaksGRPC reports whether the route is one for gRPC calls. In Kong such a route takes no others.
func (r *Route) speaksGRPC() bool {
	return slices.Contains(r.Protocols, "grpc") || slices.Contains(r.Protocols, "grpcs")
}

// Consumer is a caller that Kong identifies by one of the credentials.
type Consumer struct {
	ID        string    `yaml:"id"`
	Username  string    `yaml:"username"`
	CustomID  string    `yaml:"custom_id"`
	Tags      []string  `yaml:"tags"`
	Groups    []Group   `yaml:"acls"`
	Keys      []*Key    `yaml:"keyauth_credentials"`
	Secrets   []*Secret `yaml:"jwt_secrets"`
	CreatedAt int64     `yaml:"created_at"`
	UpdatedAt int64     `yaml:"updated_at"`
}

// Group is a group of Kong's acl plugin that a consumer is in.
type Group struct {
	Name string `yaml:"group"`
}

// Key is a key-auth credential.
type Key struct {
	ID  string `yaml:"id"`
	Key string `yaml:"key"`
}

// Secret is a jwt credential: Key is compared with the token's key claim, Secret verifies its signature by HS256.
type Secret struct {
	ID        string `yaml:"id"`
	Key       string `yaml:"key"`
	Secret    string `yaml:"secret"`
	Algorithm string `yaml:"algorithm"`
}

// PluginConfig is one configuration of a plugin, for the requests of its scope: nil Route, Service and Consumer mean
// all of them.
type PluginConfig struct {
	ID           string   `yaml:"id"`
	Name         string   `yaml:"name"`
	InstanceName string   `yaml:"instance_name"`
	Protocols    []string `yaml:"protocols"`
	Tags         []string `yaml:"tags"`

	Enabled  bool      `yaml:"-"`
	Route    *Route    `yaml:"-"`
	Service  *Service  `yaml:"-"`
	Consumer *Consumer `yaml:"-"`
	// Config holds nil, bool, float64, string, []any and map[string]any. Nil is a null in the file, which Kong denies.
	Config any `yaml:"-"`
	// Path is where the file declares it, such as "services[0].routes[1].plugins[0]".
	Path string `yaml:"-"`
}

// scopeIDs returns the ids of the plugin's route, service and consumer, "" for none.
func (p *PluginConfig) scopeIDs() (route, service, consumer string) {
	if p.Route != nil {
		route = p.Route.ID
	}
	if p.Service != nil {
		service = p.Service.ID
	}
	if p.Consumer != nil {
		consumer = p.Consumer.ID
	}
	return route, service, consumer
}

// Fault is one thing that is wrong in a file.
type Fault struct {
	Path, Message string
}

// Faults lists all that is wrong in a file, as an error.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Path + ": " + fault.Message
	}
	return strings.Join(lines, "\n")
}

// document mirrors a decK file. The entries hold what a file adds to the entities: nested ones and references, which
// are names or ids. Pointers distinguish an absent value from false where Kong's default is true.
type document struct {
	FormatVersion string          `yaml:"_format_version"`
	Services      []serviceEntry  `yaml:"services"`
	Routes        []routeEntry    `yaml:"routes"`
	Consumers     []consumerEntry `yaml:"consumers"`
	Plugins       []pluginEntry   `yaml:"plugins"`
	// PluginConfigs holds configs by name. decK resolves them when it syncs; a real Kong does not know them.
	PluginConfigs yaml.Node `yaml:"_plugin_configs"`
}

type serviceEntry struct {
	Service `yaml:",inline"`

	URL     string        `yaml:"url"`
	Routes  []routeEntry  `yaml:"routes"`
	Plugins []pluginEntry `yaml:"plugins"`
}

type routeEntry struct {
	Route `yaml:",inline"`

	StripPath *bool         `yaml:"strip_path"`
	Plugins   []pluginEntry `yaml:"plugins"`
}

type consumerEntry struct {
	Consumer `yaml:",inline"`

	Plugins []pluginEntry `yaml:"plugins"`
}

type pluginEntry struct {
	PluginConfig `yaml:",inline"`

	Enabled  *bool     `yaml:"enabled"`
	Config   yaml.Node `yaml:"config"`
	Shared   yaml.Node `yaml:"_config"` // names one of the document's PluginConfigs
	Route    string    `yaml:"route"`
	Service  string    `yaml:"service"`
	Consumer string    `yaml:"consumer"`
}
