package gateway

import (
	"bytes"
	"cmp"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// ParseConfig reads a decK document. The error is Faults with the paths of all that is wrong, or a yaml error with a
// line where the document has not the shape of a decK file, or has a key that is not simulated. CheckConfig checks the
// plugin configs.
func ParseConfig(data []byte) (*Config, error) {
	var d document
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse decK file: %w", err)
	}
	r := &deckReader{
		now: time.Now().Unix(), walk: deckfile.NewWalk(), ids: map[string]string{}, shared: &d.PluginConfigs,
		services: map[string]*Service{}, routes: map[string]*Route{}, consumers: map[string]*Consumer{},
	}
	if d.FormatVersion != "3.0" {
		r.fault("_format_version", "expected \"3.0\", got %q", d.FormatVersion)
	}
	for i := range d.Services {
		r.service(docpath.Item("services", i), &d.Services[i])
	}
	r.addRoutes("", d.Routes, nil)
	for i := range d.Consumers {
		r.consumer(docpath.Item("consumers", i), &d.Consumers[i])
	}
	r.addPlugins("", d.Plugins, PluginConfig{})
	for _, resolve := range r.pending {
		resolve()
	}
	if len(r.faults) > 0 {
		return nil, r.faults
	}
	return &r.config, nil
}

// deckReader collects entities from the document. It resolves the references of plugins last, when it has all names.
type deckReader struct {
	now       int64
	config    Config
	faults    Faults
	walk      *deckfile.Walk
	shared    *yaml.Node          // _plugin_configs
	ids       map[string]string   // the path of the entity that has an id
	services  map[string]*Service // by id and by name, as the others
	routes    map[string]*Route
	consumers map[string]*Consumer
	pending   []func()
}

func (r *deckReader) fault(path, format string, args ...any) {
	r.faults = append(r.faults, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// require reports a fault if a value is empty.
func (r *deckReader) require(value, path string) {
	if value == "" {
		r.fault(path, "required field missing")
	}
}

func (r *deckReader) service(path string, e *serviceEntry) {
	s := &e.Service
	s.Protocol, s.Port, s.ReadTimeout = cmp.Or(s.Protocol, "http"), cmp.Or(s.Port, 80), cmp.Or(s.ReadTimeout, 60_000)
	s.ID = r.id(s.ID, "services", cmp.Or(s.Name, path), path)
	if e.URL != "" {
		r.serviceURL(path+".url", s, e.URL)
	}
	r.require(s.Host, path+".host")
	if s.Protocol != "http" && s.Protocol != "grpc" {
		r.fault(path+".protocol", "only http and grpc are simulated")
	}
	r.services[s.ID], r.services[cmp.Or(s.Name, s.ID)] = s, s
	r.config.Services = append(r.config.Services, s)
	r.addRoutes(path, e.Routes, s)
	r.addPlugins(path, e.Plugins, PluginConfig{Service: s})
}

func (r *deckReader) serviceURL(path string, s *Service, raw string) {
	parsed, err := url.Parse(raw)
	switch {
	case err != nil || parsed.Hostname() == "":
		r.fault(path, "invalid value: %s", raw)
		return
	case strings.Trim(parsed.Path, "/") != "":
		r.fault(path, "a path is not simulated")
	}
	s.Protocol, s.Host = parsed.Scheme, parsed.Hostname()
	if port, err := strconv.Atoi(parsed.Port()); err == nil { // url.Parse has checked that it is a number, or absent
		s.Port = port
	}
}

// addRoutes reads the routes of the entity at path, "" for the document.
func (r *deckReader) addRoutes(path string, entries []routeEntry, service *Service) {
	for i := range entries {
		r.route(docpath.Item(docpath.Join(path, "routes"), i), &entries[i], service)
	}
}

func (r *deckReader) route(path string, e *routeEntry, service *Service) {
	route := &e.Route
	route.Service = service
	route.CreatedAt, route.UpdatedAt = cmp.Or(route.CreatedAt, r.now), cmp.Or(route.UpdatedAt, r.now)
	if len(route.Protocols) == 0 {
		route.Protocols = []string{"http", "https"}
	}
	route.StripPath = !route.speaksGRPC()
	if e.StripPath != nil {
		route.StripPath = *e.StripPath
	}
	route.ID = r.id(route.ID, "routes", cmp.Or(route.Name, path), path)
	if len(route.Methods)+len(route.Hosts)+len(route.Paths) == 0 {
		r.fault(path, "must set one of 'methods', 'hosts', 'paths'")
	}
	for i, p := range route.Paths {
		if !strings.HasPrefix(p, "/") {
			r.fault(docpath.Item(path+".paths", i), "should start with: / (patterns are not simulated)")
		}
	}
	r.routes[route.ID], r.routes[cmp.Or(route.Name, route.ID)] = route, route
	r.config.Routes = append(r.config.Routes, route)
	r.addPlugins(path, e.Plugins, PluginConfig{Route: route})
}

func (r *deckReader) consumer(path string, e *consumerEntry) {
	c := &e.Consumer
	c.CreatedAt, c.UpdatedAt = cmp.Or(c.CreatedAt, r.now), cmp.Or(c.UpdatedAt, r.now)
	if c.Username == "" && c.CustomID == "" {
		r.fault(path, "at least one of these fields must be non-empty: 'custom_id', 'username'")
	}
	c.ID = r.id(c.ID, "consumers", cmp.Or(c.Username, path), path)
	r.consumers[c.ID], r.consumers[cmp.Or(c.Username, c.ID)] = c, c
	r.config.Consumers = append(r.config.Consumers, c)
	for i, k := range c.Keys {
		at := docpath.Item(path+".keyauth_credentials", i)
		r.require(k.Key, at+".key")
		k.ID = r.id(k.ID, "keyauth_credentials", k.Key, at)
	}
	for i, s := range c.Secrets {
		at := docpath.Item(path+".jwt_secrets", i)
		r.require(s.Key, at+".key")
		r.require(s.Secret, at+".secret")
		if s.Algorithm != "" && s.Algorithm != "HS256" {
			r.fault(at+".algorithm", "only HS256 is simulated")
		}
		s.ID = r.id(s.ID, "jwt_secrets", s.Key, at)
	}
	r.addPlugins(path, e.Plugins, PluginConfig{Consumer: c})
}

// addPlugins reads the plugins of the entity at path, "" for the document. scope has the entity.
func (r *deckReader) addPlugins(path string, entries []pluginEntry, scope PluginConfig) {
	for i := range entries {
		e := &entries[i]
		p := &e.PluginConfig
		p.Route, p.Service, p.Consumer = scope.Route, scope.Service, scope.Consumer
		p.Enabled, p.Path = e.Enabled == nil || *e.Enabled, docpath.Item(docpath.Join(path, "plugins"), i)
		r.require(p.Name, p.Path+".name")
		p.Config = r.readConfig(p.Path, e)
		r.config.Plugins = append(r.config.Plugins, p)
		r.pending = append(r.pending, func() { r.resolvePlugin(e) })
	}
}

// readConfig decodes the config of the entry at path through JSON, as decK sends it: Lua has one kind of number and
// string keys only.
func (r *deckReader) readConfig(path string, e *pluginEntry) (config any) {
	shared, err := deckfile.Shared(r.shared, &e.Shared)
	if err != nil {
		r.fault(path+"._config", "%v", err)
	}
	node, err := deckfile.Merge(&e.Config, shared, r.walk)
	if err == nil && node.IsZero() {
		return map[string]any{}
	}
	if err == nil {
		err = node.Decode(new(any)) // a key that is given twice, an alias within itself
	}
	if err == nil {
		var encoded deckfile.Config
		if encoded, err = deckfile.Encode(node, r.walk); err == nil {
			err = json.Unmarshal(encoded.JSON, &config)
		}
	}
	if err != nil {
		r.fault(path+".config", "%v", err)
	}
	return config
}

// resolvePlugin resolves the plugin's references and sets its id. In the id an entity around the plugin counts by its
// id and a reference by its text, as in Kong.
func (r *deckReader) resolvePlugin(e *pluginEntry) {
	p := &e.PluginConfig
	route, service, consumer := p.scopeIDs()
	resolve(r, r.routes, p.Path+".route", e.Route, &p.Route)
	resolve(r, r.services, p.Path+".service", e.Service, &p.Service)
	resolve(r, r.consumers, p.Path+".consumer", e.Consumer, &p.Consumer)
	key := fmt.Sprintf("plugins:*:%s:%s:%s:%s",
		p.Name, cmp.Or(e.Route, route), cmp.Or(e.Service, service), cmp.Or(e.Consumer, consumer))
	p.ID = r.id(p.ID, "plugins", key, p.Path)
}

// resolve sets the entity that a reference names, if there is a reference.
func resolve[T any](r *deckReader, named map[string]*T, path, reference string, entity **T) {
	if reference == "" {
		return
	}
	if *entity = named[reference]; *entity == nil {
		r.fault(path, "could not find %q", reference)
	}
}

// id returns the given id, or else the one that Kong derives from the key of an entity of a kind, which is a table's
// name, such as "routes". Two entities with one id are a fault.
func (r *deckReader) id(given, kind, key, path string) string {
	id := cmp.Or(given, derivedID(kind, key))
	if first, taken := r.ids[kind+id]; taken {
		r.fault(path, "%q is already the id of %s", id, first)
	}
	r.ids[kind+id] = path
	return id
}

// kongNamespace is the namespace of the ids that a Kong without a database derives
// (kong/db/schema/others/declarative_config.lua): an entity's id is the version 5 UUID (RFC 9562 section 5.5) of its
// key in the namespace of its kind, which is the version 5 UUID of the kind's name in this one.
var kongNamespace = [16]byte{
	0xfd, 0x02, 0x80, 0x1f, 0x09, 0x57, 0x4a, 0x15, 0xa5, 0x5a, 0xc8, 0xd9, 0x60, 0x6f, 0x30, 0xb5,
}

func derivedID(kind, key string) string {
	id := uuidV5(uuidV5(kongNamespace, kind), key)
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func uuidV5(namespace [16]byte, name string) [16]byte {
	sum := sha1.Sum(append(namespace[:], name...))
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}
