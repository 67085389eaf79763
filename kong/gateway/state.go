package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/fieldschema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/router"
)

// accessPhase is the only phase simulated.
const accessPhase = "access"

// workspaceID is that of the default workspace; a real Kong makes one up when
// it migrates its database.
const workspaceID = "0dc6f45b-8f8d-40d2-a504-473544ee190b"

// state is one compiled configuration. It is not changed once it serves.
type state struct {
	router     *router.Router
	kinds      []*kind
	consumers  map[string]*Consumer // by id and by username
	keys       map[string]holder
	secrets    map[string]secretHolder
	transports map[*Service]*http.Transport
}

// holder is a credential with whose it is.
type holder struct {
	id       string
	consumer *Consumer
}

type secretHolder struct {
	holder
	secret string
}

// kind is a plugin with all its configurations. Of these only the most
// specific one runs for a request.
type kind struct {
	name     string
	priority int
	configs  map[scopeKey]accessor
}

type scopeKey struct {
	route    *Route
	service  *Service
	consumer *Consumer
}

// accessor runs one configuration of a plugin in the access phase of the given
// worker. It ends the request by setting x.exit; an error is a 500.
type accessor interface {
	access(x *exchange, worker int) error
}

// lookup finds the configuration that runs: Kong's order of scopes.
func (k *kind) lookup(x *exchange) accessor {
	r, s, c := x.route, x.service, x.consumer
	order := [...]scopeKey{
		{r, s, c},
		{route: r, consumer: c},
		{service: s, consumer: c},
		{route: r, service: s},
		{consumer: c},
		{route: r},
		{service: s},
		{},
	}
	for _, key := range order {
		if config, ok := k.configs[key]; ok {
			return config
		}
	}
	return nil
}

// consumer finds a consumer by id or, if asked to, by username.
func (s *state) consumer(name string, byUsername bool) *Consumer {
	c := s.consumers[name]
	if c == nil || c.ID != name && !byUsername {
		return nil
	}
	return c
}

// external is one configuration of an external plugin in one worker.
type external struct {
	plugin, pluginID string
	sequence         int64
	json             []byte
}

// externalPlugin is one configuration of an external plugin: what each worker
// knows of it.
type externalPlugin struct {
	server  *server
	workers []*external
}

func (p *externalPlugin) access(x *exchange, worker int) error {
	return p.server.workers[worker].run(p.workers[worker], x, p.server.resetAll)
}

// compile builds the state. sequence hands out __seq__; servers are the
// external plugins by name.
func compile(config *Config, servers map[string]*server, workers int, sequence *atomic.Int64) (*state, error) {
	infos := map[string]*PluginInfo{}
	for name, s := range servers {
		infos[name] = s.info
	}
	entries, err := applySchemas(config, infos)
	if err != nil {
		return nil, err
	}
	s := &state{
		consumers: map[string]*Consumer{}, keys: map[string]holder{}, secrets: map[string]secretHolder{},
		transports: map[*Service]*http.Transport{},
	}
	if s.router, err = router.New(config.Routes); err != nil {
		return nil, err
	}
	for _, service := range config.Services {
		s.transports[service] = newTransport(service)
	}
	s.indexConsumers(config)
	kinds := map[string]*kind{}
	for _, entry := range entries {
		if !entry.entry.Enabled {
			continue
		}
		k := kinds[entry.info.Name]
		if k == nil {
			k = &kind{name: entry.info.Name, priority: entry.info.Priority, configs: map[scopeKey]accessor{}}
			kinds[k.name], s.kinds = k, append(s.kinds, k)
		}
		accessor, err := s.accessor(entry, servers[k.name], workers, sequence)
		if err != nil {
			return nil, err
		}
		k.configs[scopeKey{entry.entry.Route, entry.entry.Service, entry.entry.Consumer}] = accessor
	}
	slices.SortStableFunc(s.kinds, func(a, b *kind) int {
		if a.priority != b.priority {
			return b.priority - a.priority
		}
		return strings.Compare(b.name, a.name)
	})
	return s, nil
}

func (s *state) indexConsumers(config *Config) {
	for _, c := range config.Consumers {
		s.consumers[c.ID] = c
		if c.Username != "" {
			s.consumers[c.Username] = c
		}
		for _, key := range c.Keys {
			s.keys[key.Key] = holder{key.ID, c}
		}
		for _, secret := range c.Secrets {
			s.secrets[secret.Key] = secretHolder{holder{secret.ID, c}, secret.Secret}
		}
	}
}

func (s *state) accessor(entry applied, from *server, workers int, sequence *atomic.Int64) (accessor, error) {
	switch {
	case from != nil:
		return newExternalPlugin(entry, from, workers, sequence)
	case entry.info.Name == "key-auth":
		return newKeyAuth(s, entry.config), nil
	case entry.info.Name == "jwt":
		return newJWTAuth(s, entry.config), nil
	}
	return nil, fmt.Errorf("%s: no plugin %q", entry.entry.Path, entry.info.Name)
}

// newExternalPlugin prepares the JSON that starts an instance in each worker:
// the config without nulls, references resolved, and Kong's own fields.
func newExternalPlugin(entry applied, from *server, workers int, sequence *atomic.Int64) (*externalPlugin, error) {
	p, e := &externalPlugin{server: from}, entry.entry
	config, _ := fieldschema.WithoutNulls(entry.info.schema.Resolve(entry.config, lookupEnvVault)).(map[string]any)
	var route, service, consumer string
	if e.Route != nil {
		route = e.Route.ID
		config["route_id"] = route
	}
	if e.Service != nil {
		service = e.Service.ID
		config["service_id"] = service
	}
	if e.Consumer != nil {
		consumer = e.Consumer.ID
		config["consumer_id"] = consumer
	}
	if e.InstanceName != "" {
		config["plugin_instance_name"] = e.InstanceName
	}
	config["__plugin_id"], config["__ws_id"] = e.ID, workspaceID
	config["__key__"] = "plugins:" + e.Name + ":" + route + ":" + service + ":" + consumer + "::" + workspaceID
	for range workers {
		number := sequence.Add(1)
		config["__seq__"] = float64(number)
		encoded, err := luaJSON(config)
		if err != nil {
			return nil, fmt.Errorf("%s: encode config: %w", e.Path, err)
		}
		p.workers = append(p.workers, &external{e.Name, e.ID, number, encoded})
	}
	return p, nil
}

// luaJSON encodes a tree as Kong's cjson does: numbers with 16 significant
// digits, whole ones without a fraction.
func luaJSON(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(spelled(value)); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

func spelled(value any) any {
	switch v := value.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e16 {
			return int64(v)
		}
		return json.Number(strconv.FormatFloat(v, 'g', 16, 64))
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = spelled(item)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = spelled(item)
		}
		return out
	}
	return value
}
