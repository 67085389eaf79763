package deck

import (
	"cmp"
	"crypto/sha1"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// httpProtocols are the protocols of the simulated entities, which have no streams.
var httpProtocols = []string{"http", "https", "grpc", "grpcs"}

func (r *reader) service(path string, e *serviceEntry) {
	s := &e.Service
	s.Protocol, s.Port, s.ReadTimeout = cmp.Or(s.Protocol, "http"), cmp.Or(s.Port, 80), cmp.Or(s.ReadTimeout, 60_000)
	s.ID = r.id(s.ID, "services", cmp.Or(s.Name, path), path)
	if e.URL != "" {
		r.serviceURL(path, s, e.URL)
	}
	if s.Host == "" {
		r.faults.add(path+".host", "required field missing")
	}
	if !slices.Contains(httpProtocols, s.Protocol) {
		r.faults.add(path+".protocol", "expected one of: %s", strings.Join(httpProtocols, ", "))
	}
	r.requireUnique("service name", s.Name, path)
	r.services[s.ID] = s
	if s.Name != "" {
		r.services[s.Name] = s
	}
	r.config.Services = append(r.config.Services, s)
	r.addRoutes(path, e.Routes, s)
	r.addPlugins(path, e.Plugins, parent{service: s})
}

func (r *reader) serviceURL(path string, s *Service, raw string) {
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Hostname() == "" {
		r.faults.add(path+".url", "invalid value: %s", raw)
		return
	}
	s.Protocol, s.Host, s.Path, s.Port = parsed.Scheme, parsed.Hostname(), parsed.Path, 80
	if s.Protocol == "https" {
		s.Port = 443
	}
	if port, err := strconv.Atoi(parsed.Port()); err == nil { // url.Parse has checked that it is a number, or absent
		s.Port = port
	}
}

// addRoutes reads the routes of the entity at path, "" for the document.
func (r *reader) addRoutes(path string, entries []routeEntry, service *Service) {
	for i := range entries {
		r.route(docpath.Item(docpath.Join(path, "routes"), i), &entries[i], service)
	}
}

func (r *reader) route(path string, e *routeEntry, service *Service) {
	route := &e.Route
	route.Service = service
	route.CreatedAt, route.UpdatedAt = cmp.Or(route.CreatedAt, r.now), cmp.Or(route.UpdatedAt, r.now)
	if len(route.Protocols) == 0 {
		route.Protocols = []string{"http", "https"}
	}
	route.StripPath = !route.SpeaksGRPC()
	if e.StripPath != nil {
		route.StripPath = *e.StripPath
	}
	route.ID = r.id(route.ID, "routes", cmp.Or(route.Name, path), path)
	r.requireUnique("route name", route.Name, path)
	r.checkRoute(path, route)
	if e.Service != nil {
		r.pending = append(r.pending, func() {
			route.Service = find(r, r.services, path+".service", e.Service, service)
		})
	}
	r.routes[route.ID] = route
	if route.Name != "" {
		r.routes[route.Name] = route
	}
	r.config.Routes = append(r.config.Routes, route)
	r.addPlugins(path, e.Plugins, parent{route: route})
}

func (r *reader) checkRoute(path string, route *Route) {
	for i, protocol := range route.Protocols {
		if !slices.Contains(httpProtocols, protocol) {
			r.faults.add(docpath.Item(path+".protocols", i), "expected one of: %s", strings.Join(httpProtocols, ", "))
		}
	}
	if len(route.Methods)+len(route.Hosts)+len(route.Paths) == 0 {
		r.faults.add(path, "must set one of 'methods', 'hosts', 'paths'")
	}
	for i, host := range route.Hosts {
		if strings.Contains(host, "*") {
			r.faults.add(docpath.Item(path+".hosts", i), "wildcards are not simulated")
		}
	}
	for i, p := range route.Paths {
		at := docpath.Item(path+".paths", i)
		if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~/") {
			r.faults.add(at, "should start with: / (fixed path) or ~/ (regex path)")
		}
	}
}

func (r *reader) consumer(path string, e *consumerEntry) {
	c := &e.Consumer
	c.CreatedAt, c.UpdatedAt = cmp.Or(c.CreatedAt, r.now), cmp.Or(c.UpdatedAt, r.now)
	if c.Username == "" && c.CustomID == "" {
		r.faults.add(path, "at least one of these fields must be non-empty: 'custom_id', 'username'")
	}
	c.ID = r.id(c.ID, "consumers", cmp.Or(c.Username, path), path)
	r.requireUnique("username", c.Username, path)
	r.requireUnique("custom_id", c.CustomID, path)
	r.consumers[c.ID] = c
	if c.Username != "" {
		r.consumers[c.Username] = c
	}
	r.config.Consumers = append(r.config.Consumers, c)
	r.checkCredentials(path, c)
	r.addPlugins(path, e.Plugins, parent{consumer: c})
}

func (r *reader) checkCredentials(path string, c *Consumer) {
	for i, k := range c.Keys {
		at := docpath.Item(path+".keyauth_credentials", i)
		if k.Key == "" {
			r.faults.add(at+".key", "required field missing")
		}
		r.requireUnique("API key", k.Key, at)
		k.ID = r.id(k.ID, "keyauth_credentials", k.Key, at)
	}
	for i, s := range c.Secrets {
		at := docpath.Item(path+".jwt_secrets", i)
		if s.Key == "" {
			r.faults.add(at+".key", "required field missing")
		}
		if s.Secret == "" {
			r.faults.add(at+".secret", "required field missing")
		}
		if s.Algorithm != "" && s.Algorithm != "HS256" {
			r.faults.add(at+".algorithm", "only HS256 is simulated")
		}
		r.requireUnique("jwt key", s.Key, at)
		s.ID = r.id(s.ID, "jwt_secrets", s.Key, at)
	}
}

// kongNamespace is the namespace of the ids that a Kong without a database derives
// (kong/db/schema/others/declarative_config.lua): an entity's id is the version 5 UUID (RFC 9562 section 5.5) of its
// key in the namespace of its kind, which is the version 5 UUID of the kind's name in this one.
var kongNamespace = [16]byte{
	0xfd, 0x02, 0x80, 0x1f, 0x09, 0x57, 0x4a, 0x15, 0xa5, 0x5a, 0xc8, 0xd9, 0x60, 0x6f, 0x30, 0xb5,
}

// derivedID returns the id that Kong gives an entity of kind (a table's name, such as "routes") that has none.
func derivedID(kind, key string) string {
	id := uuidV5(uuidV5(kongNamespace, kind), key)
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// pluginKey returns the key of a plugin's id: its name and its scope.
func pluginKey(name, route, service, consumer string) string {
	return fmt.Sprintf("plugins:*:%s:%s:%s:%s", name, route, service, consumer)
}

func uuidV5(namespace [16]byte, name string) [16]byte {
	sum := sha1.Sum(append(namespace[:], name...))
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}
