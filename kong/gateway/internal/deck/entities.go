package deck

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

func (r *reader) route(path string, e *routeEntry, parent *Service) {
	route := &Route{
		Name: e.Name, Protocols: e.Protocols, Methods: e.Methods, Hosts: e.Hosts, Paths: e.Paths, Headers: e.Headers,
		RedirectStatus: deref(e.RedirectStatus, 426), RegexPriority: e.RegexPriority,
		PreserveHost: e.PreserveHost,
		Tags:         e.Tags, Service: parent,
		CreatedAt: deref(e.CreatedAt, r.now), UpdatedAt: deref(e.UpdatedAt, r.now),
	}
	if len(route.Protocols) == 0 {
		route.Protocols = []string{"http", "https"}
	}
	route.StripPath = deref(e.StripPath, !route.SpeaksGRPC())
	route.ID = r.id(e.ID, "routes", or(e.Name, path), path)
	r.claim("route name", route.Name, path)
	r.checkRoute(path, route)
	if e.PathHandling != "" && e.PathHandling != "v0" {
		r.faults.add(path+".path_handling", "only v0 is simulated")
	}
	if e.Service != nil {
		r.pending = append(r.pending, func() {
			route.Service = find(r, r.services, path+".service", e.Service, parent)
		})
	}
	r.routes[route.ID] = route
	if route.Name != "" {
		r.routes[route.Name] = route
	}
	r.config.Routes = append(r.config.Routes, route)
	r.plugins(path+".", e.Plugins, scope{route: route})
}

func (r *reader) checkRoute(path string, route *Route) {
	for i, protocol := range route.Protocols {
		if !oneOf(protocol, httpProtocols) {
			r.faults.add(fmt.Sprintf("%s.protocols[%d]", path, i), "expected one of: %s", strings.Join(httpProtocols, ", "))
		}
	}
	if len(route.Methods)+len(route.Hosts)+len(route.Paths)+len(route.Headers) == 0 {
		r.faults.add(path, "must set one of 'methods', 'hosts', 'headers', 'paths'")
	}
	for i, p := range route.Paths {
		at := fmt.Sprintf("%s.paths[%d]", path, i)
		switch {
		case strings.HasPrefix(p, "~"):
			if _, err := regexp.Compile(p[1:]); err != nil {
				r.faults.add(at, "not a valid regex: %v", err)
			}
		case !strings.HasPrefix(p, "/"):
			r.faults.add(at, "should start with: / (fixed path) or ~/ (regex path)")
		}
	}
	for i, method := range route.Methods {
		if method == "" || strings.ToUpper(method) != method {
			r.faults.add(fmt.Sprintf("%s.methods[%d]", path, i), "invalid value: %s", method)
		}
	}
}

func (r *reader) consumer(path string, e *consumerEntry) {
	c := &Consumer{
		Username: e.Username, CustomID: e.CustomID, Tags: e.Tags,
		CreatedAt: deref(e.CreatedAt, r.now), UpdatedAt: deref(e.UpdatedAt, r.now),
	}
	if c.Username == "" && c.CustomID == "" {
		r.faults.add(path, "at least one of these fields must be non-empty: 'custom_id', 'username'")
	}
	c.ID = r.id(e.ID, "consumers", or(e.Username, path), path)
	r.claim("username", c.Username, path)
	r.claim("custom_id", c.CustomID, path)
	r.people[c.ID] = c
	if c.Username != "" {
		r.people[c.Username] = c
	}
	r.config.Consumers = append(r.config.Consumers, c)
	r.credentials(path, c, e)
	r.plugins(path+".", e.Plugins, scope{consumer: c})
}

func (r *reader) credentials(path string, c *Consumer, e *consumerEntry) {
	for i, k := range e.Keys {
		at := fmt.Sprintf("%s.keyauth_credentials[%d]", path, i)
		if k.Key == "" {
			r.faults.add(at+".key", "required field missing")
		}
		r.claim("API key", k.Key, at)
		c.Keys = append(c.Keys, &Key{ID: r.id(k.ID, "keyauth_credentials", k.Key, at), Key: k.Key})
	}
	for i, s := range e.Secrets {
		at := fmt.Sprintf("%s.jwt_secrets[%d]", path, i)
		if s.Key == "" {
			r.faults.add(at+".key", "required field missing")
		}
		if s.Secret == "" {
			r.faults.add(at+".secret", "required field missing")
		}
		if s.Algorithm != "" && s.Algorithm != "HS256" {
			r.faults.add(at+".algorithm", "only HS256 is simulated")
		}
		r.claim("jwt key", s.Key, at)
		c.Secrets = append(c.Secrets, &Secret{
			ID: r.id(s.ID, "jwt_secrets", s.Key, at), Key: s.Key, Secret: s.Secret, Algorithm: "HS256",
		})
	}
}

func (r *reader) plugins(parent string, entries []pluginEntry, in scope) {
	for i := range entries {
		path, e := fmt.Sprintf("%splugins[%d]", parent, i), &entries[i]
		p := &Plugin{
			Name: e.Name, InstanceName: e.InstanceName, Enabled: deref(e.Enabled, true), Protocols: e.Protocols,
			Tags: e.Tags, Route: in.route, Service: in.service, Consumer: in.consumer, Path: path,
		}
		if p.Name == "" {
			r.faults.add(path+".name", "required field missing")
		}
		r.pluginConfig(p, &e.Config)
		r.config.Plugins = append(r.config.Plugins, p)
		r.pending = append(r.pending, func() { r.finishPlugin(p, e, in) })
	}
}

// pluginConfig reads what an entry has as its config. A config that is written as null is given.
func (r *reader) pluginConfig(p *Plugin, node *yaml.Node) {
	if node.IsZero() {
		return
	}
	var value any
	if err := node.Decode(&value); err != nil {
		r.faults.add(p.Path+".config", "%v", err)
		return
	}
	p.Config, p.ConfigNull = r.tree(p.Path+".config", value), value == nil
}

// finishPlugin resolves the plugin's references and gives it its id. A parent
// counts by id in the key, a reference by what is written, as in Kong.
func (r *reader) finishPlugin(p *Plugin, e *pluginEntry, in scope) {
	p.Route = find(r, r.routes, p.Path+".route", e.Route, in.route)
	p.Service = find(r, r.services, p.Path+".service", e.Service, in.service)
	p.Consumer = find(r, r.people, p.Path+".consumer", e.Consumer, in.consumer)
	var route, service, consumer string
	if p.Route != nil {
		route = p.Route.ID
	}
	if p.Service != nil {
		service = p.Service.ID
	}
	if p.Consumer != nil {
		consumer = p.Consumer.ID
	}
	r.claim("plugin and scope", p.Name+":"+route+":"+service+":"+consumer, p.Path)
	r.claim("instance_name", p.InstanceName, p.Path)
	p.ID = r.id(e.ID, "plugins",
		pluginKey(p.Name, written(e.Route, route), written(e.Service, service), written(e.Consumer, consumer)), p.Path)
}

func written(ref *reference, id string) string {
	if ref != nil {
		return ref.key
	}
	return id
}

// find resolves a reference among named; without one the parent stays.
func find[T any](r *reader, named map[string]*T, path string, ref *reference, parent *T) *T {
	if ref == nil {
		return parent
	}
	target, known := named[ref.key]
	switch {
	case !known:
		r.faults.add(path, "could not find %q", ref.key)
	case parent != nil && target != parent:
		r.faults.add(path, "%q is not the entity it is nested in", ref.key)
	}
	return target
}

// tree turns a decoded YAML value into what Kong would hold: Lua knows one
// kind of number and string keys only.
func (r *reader) tree(path string, value any) any {
	switch v := value.(type) {
	case nil, bool, string:
		return v
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			r.faults.add(path, "expected a number, got %v", v)
		}
		return v
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = r.tree(fmt.Sprintf("%s[%d]", path, i), v[i])
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for _, key := range sortedKeys(v) {
			object[key] = r.tree(path+"."+key, v[key])
		}
		return object
	default:
		r.faults.add(path, "cannot use a value of type %T", value)
		return nil
	}
}
