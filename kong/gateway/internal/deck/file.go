package deck

import "gopkg.in/yaml.v3"

// The types of this file mirror the document. Pointers tell an absent value
// from a zero one where Kong has a default.

type file struct {
	FormatVersion string           `yaml:"_format_version"`
	Transform     *bool            `yaml:"_transform"`
	Info          map[string]any   `yaml:"_info"`
	Services      []serviceEntry   `yaml:"services"`
	Routes        []routeEntry     `yaml:"routes"`
	Consumers     []consumerEntry  `yaml:"consumers"`
	Plugins       []pluginEntry    `yaml:"plugins"`
	Upstreams     []map[string]any `yaml:"upstreams"`
}

type serviceEntry struct {
	ID             string        `yaml:"id"`
	Name           string        `yaml:"name"`
	URL            string        `yaml:"url"`
	Protocol       string        `yaml:"protocol"`
	Host           string        `yaml:"host"`
	Port           *int          `yaml:"port"`
	Path           string        `yaml:"path"`
	Retries        *int          `yaml:"retries"`
	ConnectTimeout *int          `yaml:"connect_timeout"`
	WriteTimeout   *int          `yaml:"write_timeout"`
	ReadTimeout    *int          `yaml:"read_timeout"`
	Enabled        *bool         `yaml:"enabled"`
	Tags           []string      `yaml:"tags"`
	CreatedAt      *int64        `yaml:"created_at"`
	UpdatedAt      *int64        `yaml:"updated_at"`
	Routes         []routeEntry  `yaml:"routes"`
	Plugins        []pluginEntry `yaml:"plugins"`
}

type routeEntry struct {
	ID                string              `yaml:"id"`
	Name              string              `yaml:"name"`
	Protocols         []string            `yaml:"protocols"`
	Methods           []string            `yaml:"methods"`
	Hosts             []string            `yaml:"hosts"`
	Paths             []string            `yaml:"paths"`
	Headers           map[string][]string `yaml:"headers"`
	RedirectStatus    *int                `yaml:"https_redirect_status_code"`
	RegexPriority     int                 `yaml:"regex_priority"`
	StripPath         *bool               `yaml:"strip_path"`
	PreserveHost      bool                `yaml:"preserve_host"`
	PathHandling      string              `yaml:"path_handling"`
	RequestBuffering  *bool               `yaml:"request_buffering"`
	ResponseBuffering *bool               `yaml:"response_buffering"`
	Tags              []string            `yaml:"tags"`
	CreatedAt         *int64              `yaml:"created_at"`
	UpdatedAt         *int64              `yaml:"updated_at"`
	Service           *reference          `yaml:"service"`
	Plugins           []pluginEntry       `yaml:"plugins"`
}

type consumerEntry struct {
	ID        string        `yaml:"id"`
	Username  string        `yaml:"username"`
	CustomID  string        `yaml:"custom_id"`
	Tags      []string      `yaml:"tags"`
	CreatedAt *int64        `yaml:"created_at"`
	UpdatedAt *int64        `yaml:"updated_at"`
	Keys      []keyEntry    `yaml:"keyauth_credentials"`
	Secrets   []secretEntry `yaml:"jwt_secrets"`
	Plugins   []pluginEntry `yaml:"plugins"`
}

type keyEntry struct {
	ID   string   `yaml:"id"`
	Key  string   `yaml:"key"`
	Tags []string `yaml:"tags"`
}

type secretEntry struct {
	ID        string   `yaml:"id"`
	Key       string   `yaml:"key"`
	Secret    string   `yaml:"secret"`
	Algorithm string   `yaml:"algorithm"`
	Tags      []string `yaml:"tags"`
}

type pluginEntry struct {
	ID           string     `yaml:"id"`
	Name         string     `yaml:"name"`
	InstanceName string     `yaml:"instance_name"`
	Enabled      *bool      `yaml:"enabled"`
	Protocols    []string   `yaml:"protocols"`
	Tags         []string   `yaml:"tags"`
	Config       yaml.Node  `yaml:"config"`
	Route        *reference `yaml:"route"`
	Service      *reference `yaml:"service"`
	Consumer     *reference `yaml:"consumer"`
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
	if err := node.Decode(&keyed); err != nil {
		return err
	}
	for _, key := range []string{keyed.ID, keyed.Name, keyed.Username} {
		if key != "" {
			r.key = key
			return nil
		}
	}
	return nil
}
