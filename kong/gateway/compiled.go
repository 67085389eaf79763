package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/fieldschema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/router"
)

// accessPhase is the only phase that is simulated.
const accessPhase = "access"

// workspaceID is the id of the default workspace; a real Kong makes one up when it migrates its database.
const workspaceID = "0dc6f45b-8f8d-40d2-a504-473544ee190b"

// compiledConfig is a decK file prepared for serving. It does not change once it serves.
type compiledConfig struct {
	router     *router.Router
	plugins    []*scopedPlugin      // in the order they run
	consumers  map[string]*Consumer // by id and by username
	keys       map[string]keyCredential
	secrets    map[string]jwtCredential
	transports map[*Service]*http.Transport
}

// keyCredential identifies a consumer by an API key.
type keyCredential struct {
	id       string
	consumer *Consumer
}

// jwtCredential identifies a consumer by tokens that are signed with the secret.
type jwtCredential struct {
	id       string
	consumer *Consumer
	secret   string
}

// scopedPlugin is a plugin with all its configurations. Only the most specific of them runs for a request.
type scopedPlugin struct {
	name     string
	priority int
	configs  map[scope]accessHandler
}

type scope struct {
	route    *Route
	service  *Service
	consumer *Consumer
}

// accessHandler runs one configuration of a plugin in the access phase of the given worker. It ends the request by
// setting x.exit; an error is a 500.
type accessHandler interface {
	access(x *exchange, worker int) error
}

// mostSpecific returns the configuration that runs for a request by Kong's order of scopes; nil if none does.
func (p *scopedPlugin) mostSpecific(x *exchange) accessHandler {
	r, s, c := x.route, x.service, x.consumer
	order := [...]scope{
		{r, s, c}, {route: r, consumer: c}, {service: s, consumer: c}, {route: r, service: s},
		{consumer: c}, {route: r}, {service: s}, {},
	}
	for _, candidate := range order {
		if config, ok := p.configs[candidate]; ok {
			return config
		}
	}
	return nil
}

// compile prepares a config for serving. sequence numbers the instances (__seq__).
func compile(
	config *Config, servers []*pluginServer, workers int, sequence *atomic.Int64,
) (*compiledConfig, error) {
	var infos []*PluginInfo
	byName := map[string]*pluginServer{}
	for _, s := range servers {
		infos = append(infos, s.info)
		byName[s.info.Name] = s
	}
	entries, err := applySchemas(config, infos)
	if err != nil {
		return nil, err
	}
	c := &compiledConfig{transports: map[*Service]*http.Transport{}}
	if c.router, err = router.New(config.Routes); err != nil {
		return nil, err
	}
	for _, service := range config.Services {
		c.transports[service] = newTransport(service)
	}
	c.indexConsumers(config)
	for _, entry := range entries {
		if !entry.Enabled {
			continue
		}
		handler, err := c.handlerFor(entry, byName[entry.Name], workers, sequence)
		if err != nil {
			return nil, err
		}
		c.plugin(entry.info).configs[scope{entry.Route, entry.Service, entry.Consumer}] = handler
	}
	slices.SortStableFunc(c.plugins, func(a, b *scopedPlugin) int {
		if a.priority != b.priority {
			return b.priority - a.priority
		}
		return strings.Compare(b.name, a.name)
	})
	return c, nil
}

// closeIdleConnections closes the idle connections to all services.
func (c *compiledConfig) closeIdleConnections() {
	for _, transport := range c.transports {
		transport.CloseIdleConnections()
	}
}

// plugin returns the plugin of this name, a new one the first time.
func (c *compiledConfig) plugin(info *PluginInfo) *scopedPlugin {
	for _, p := range c.plugins {
		if p.name == info.Name {
			return p
		}
	}
	p := &scopedPlugin{name: info.Name, priority: info.Priority, configs: map[scope]accessHandler{}}
	c.plugins = append(c.plugins, p)
	return p
}

func (c *compiledConfig) indexConsumers(config *Config) {
	c.consumers = map[string]*Consumer{}
	c.keys, c.secrets = map[string]keyCredential{}, map[string]jwtCredential{}
	for _, consumer := range config.Consumers {
		c.consumers[consumer.ID] = consumer
		if consumer.Username != "" {
			c.consumers[consumer.Username] = consumer
		}
		for _, key := range consumer.Keys {
			c.keys[key.Key] = keyCredential{key.ID, consumer}
		}
		for _, secret := range consumer.Secrets {
			c.secrets[secret.Key] = jwtCredential{secret.ID, consumer, secret.Secret}
		}
	}
}

func (c *compiledConfig) handlerFor(
	entry checkedPlugin, server *pluginServer, workers int, sequence *atomic.Int64,
) (accessHandler, error) {
	switch {
	case server != nil:
		return newExternalPlugin(entry, server, workers, sequence)
	case entry.Name == "key-auth":
		return newKeyAuth(c, entry.config), nil
	case entry.Name == "jwt":
		return newJWTAuth(c, entry.config), nil
	}
	return nil, fmt.Errorf("%s: no plugin %q", entry.Path, entry.Name)
}

// externalPlugin is one configuration of a plugin that a plugin server runs.
type externalPlugin struct {
	server  *pluginServer
	configs []*instanceConfig // by worker
}

// instanceConfig starts an instance of an external plugin in one worker.
type instanceConfig struct {
	plugin, pluginID string
	sequence         int64
	json             []byte
}

func (p *externalPlugin) access(x *exchange, worker int) error {
	return p.server.workers[worker].run(p.configs[worker], x, p.server.forgetInstances)
}

// newExternalPlugin encodes the JSON that starts an instance in each worker: the config without nulls, with its vault
// references resolved, and Kong's own fields.
func newExternalPlugin(
	entry checkedPlugin, server *pluginServer, workers int, sequence *atomic.Int64,
) (*externalPlugin, error) {
	p := &externalPlugin{server: server}
	config, _ := fieldschema.WithoutNulls(entry.info.schema.Resolve(entry.config, lookupEnvVault)).(map[string]any)
	var route, service, consumer string
	if entry.Route != nil {
		route = entry.Route.ID
		config["route_id"] = route
	}
	if entry.Service != nil {
		service = entry.Service.ID
		config["service_id"] = service
	}
	if entry.Consumer != nil {
		consumer = entry.Consumer.ID
		config["consumer_id"] = consumer
	}
	if entry.InstanceName != "" {
		config["plugin_instance_name"] = entry.InstanceName
	}
	config["__plugin_id"], config["__ws_id"] = entry.ID, workspaceID
	config["__key__"] = strings.Join([]string{"plugins", entry.Name, route, service, consumer, "", workspaceID}, ":")
	for range workers {
		number := sequence.Add(1)
		config["__seq__"] = number
		encoded, err := json.Marshal(config)
		if err != nil {
			return nil, fmt.Errorf("%s: encode config: %w", entry.Path, err)
		}
		p.configs = append(p.configs, &instanceConfig{entry.Name, entry.ID, number, encoded})
	}
	return p, nil
}
