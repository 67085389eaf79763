package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// The phases that are simulated.
const (
	accessPhase = "access" // before the request goes to the upstream
	logPhase    = "log"    // after the client has its response
)

// workspaceID is the id of the default workspace; a real Kong makes one up when it migrates its database.
const workspaceID = "0dc6f45b-8f8d-40d2-a504-473544ee190b"

// compiledConfig is a decK file prepared for serving. It does not change once it serves.
type compiledConfig struct {
	router     []match
	plugins    []*scopedPlugin       // in the order they run
	consumers  map[string]*Consumer  // by id and by username
	keys       map[string]credential // by API key
	secrets    map[string]credential // by the key that a token names
	transports map[*Service]*http.Transport
}

// credential identifies a consumer, by an API key or by tokens that are signed with the secret.
type credential struct {
	id       string
	consumer *Consumer
	secret   string
}

// scopedPlugin is a plugin with all its configurations. Only the most specific of them runs for a request.
type scopedPlugin struct {
	info    *PluginInfo
	configs map[scope]accessHandler
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
		{r, s, c},
		{route: r, consumer: c},
		{service: s, consumer: c},
		{route: r, service: s},
		{consumer: c},
		{route: r},
		{service: s},
		{},
	}
	for _, candidate := range order {
		if config, ok := p.configs[candidate]; ok {
			return config
		}
	}
	return nil
}

// compile prepares a config for serving.
func (g *Gateway) compile(config *Config) (*compiledConfig, error) {
	var infos []*PluginInfo
	for _, s := range g.servers {
		infos = append(infos, s.info)
	}
	for i := range g.options.Plugins {
		infos = append(infos, g.options.Plugins[i].Info)
	}
	entries, err := applySchemas(config, infos)
	if err != nil {
		return nil, err
	}
	c := &compiledConfig{router: newRouter(config.Routes), transports: map[*Service]*http.Transport{}}
	for _, service := range config.Services {
		c.transports[service] = newTransport(service)
	}
	c.indexConsumers(config)
	plugins := map[*PluginInfo]*scopedPlugin{}
	for _, entry := range entries {
		if !entry.Enabled {
			continue
		}
		p := plugins[entry.info]
		if p == nil {
			p = &scopedPlugin{info: entry.info, configs: map[scope]accessHandler{}}
			plugins[entry.info], c.plugins = p, append(c.plugins, p)
		}
		p.configs[scope{entry.Route, entry.Service, entry.Consumer}] = g.newHandler(entry)
	}
	slices.SortStableFunc(c.plugins, func(a, b *scopedPlugin) int {
		return cmp.Or(b.info.Priority-a.info.Priority, strings.Compare(b.info.Name, a.info.Name))
	})
	return c, nil
}

// closeIdleConnections closes the idle connections to all services.
func (c *compiledConfig) closeIdleConnections() {
	for _, transport := range c.transports {
		transport.CloseIdleConnections()
	}
}

func (c *compiledConfig) indexConsumers(config *Config) {
	c.consumers = map[string]*Consumer{}
	c.keys, c.secrets = map[string]credential{}, map[string]credential{}
	for _, consumer := range config.Consumers {
		c.consumers[consumer.ID] = consumer
		if consumer.Username != "" {
			c.consumers[consumer.Username] = consumer
		}
		for _, key := range consumer.Keys {
			c.keys[key.Key] = credential{id: key.ID, consumer: consumer}
		}
		for _, secret := range consumer.Secrets {
			c.secrets[secret.Key] = credential{secret.ID, consumer, secret.Secret}
		}
	}
}

// newHandler returns what runs a configuration of a plugin: a plugin server, or a plugin within the gateway.
func (g *Gateway) newHandler(entry checkedPlugin) accessHandler {
	for _, server := range g.servers {
		if server.info == entry.info {
			return g.newExternalPlugin(entry, server)
		}
	}
	inner := slices.Concat(bundled, g.options.Plugins)
	i := slices.IndexFunc(inner, func(p Plugin) bool { return p.Info == entry.info })
	return &innerPlugin{&inner[i], entry.config}
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
	return p.run(accessPhase, x, worker)
}

// run runs a phase in the given worker, if the plugin has it.
func (p *externalPlugin) run(phase string, x *exchange, worker int) error {
	if !slices.Contains(p.server.info.Phases, phase) {
		return nil
	}
	return p.server.workers[worker].run(phase, p.configs[worker], x, p.server.forgetInstances)
}

// newExternalPlugin encodes the JSON that starts an instance in each worker: the config, and Kong's own fields.
func (g *Gateway) newExternalPlugin(entry checkedPlugin, server *pluginServer) *externalPlugin {
	p := &externalPlugin{server: server}
	config := entry.config
	route, service, consumer := entry.scopeIDs()
	for name, value := range map[string]string{
		"route_id": route, "service_id": service, "consumer_id": consumer, "plugin_instance_name": entry.InstanceName,
	} {
		if value != "" {
			config[name] = value
		}
	}
	config["__plugin_id"], config["__ws_id"] = entry.ID, workspaceID
	config["__key__"] = strings.Join([]string{"plugins", entry.Name, route, service, consumer, "", workspaceID}, ":")
	for range server.workers {
		number := g.sequence.Add(1)
		config["__seq__"] = number
		encoded, err := json.Marshal(config)
		if err != nil {
			panic(fmt.Sprintf("gateway: a config cannot be encoded: %v", err)) // it was decoded from JSON
		}
		p.configs = append(p.configs, &instanceConfig{entry.Name, entry.ID, number, encoded})
	}
	return p
}
