package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// entity is an entity of Kong as declarative files have it.
type entity = map[string]any

// prefix begins the names of all entities that the bench adds, and is the API key of its requests.
const prefix = "bench-kong"

// route is one row of the table: a route of Kong.
type route struct {
	name   string // in paths and for -only; that of a row of denials begins with denial
	title  string
	plugin string // the plugin that the row measures; "": none
	config entity // of the plugin
}

// denies reports whether the requests are denied, once the limit is used up.
func (r *route) denies() bool { return strings.HasPrefix(r.name, "denial") }

func (r *route) status() int {
	if r.denies() {
		return http.StatusTooManyRequests
	}
	return http.StatusOK
}

// headers has a header that a plugin sets. The floor sets none.
var headers = map[string]string{"tenant-rate-limiting": "RateLimit", "rate-limiting": "RateLimit-Limit"}

// bench is the routes to measure.
type bench struct {
	service string // URL
	routes  []route
}

// plenty is a limit that no run reaches.
const plenty = 1_000_000_000

// newBench returns the rows that the settings allow.
func newBench(s *settings) *bench {
	b := &bench{service: s.upstream, routes: allRoutes(s.redis)}
	b.routes = slices.DeleteFunc(b.routes, func(r route) bool {
		needsRedis := r.config["strategy"] == "redis" || r.config["policy"] == "redis"
		return s.only != nil && !s.only.MatchString(r.name) || s.skip != nil && s.skip.MatchString(r.name) ||
			needsRedis && r.config["redis"] == nil
	})
	return b
}

// allRoutes returns every row. Redis is where buckets lie, see [settings].
func allRoutes(redis string) []route {
	return []route{
		{name: "none", title: "no limiter"},
		{"floor", "no-op Go plugin (floor)", "bench-floor", entity{"exit": false}},
		pluginRoute("local", "ours, 4 limits, in memory", entity{"strategy": "local"}),
		pluginRoute("leased", "ours, 4 limits, leased", inRedis(redis, "leased")),
		pluginRoute("exact", "ours, 4 limits, exact", inRedis(redis, "exact")),
		kongRoute("kong-local", "Kong rate-limiting, 3 windows, local", entity{"policy": "local"}),
		kongRoute("kong-redis", "Kong rate-limiting, 3 windows, redis", kongRedis(redis)),
		{"denial-floor", "denial: bare exit (floor)", "bench-floor", entity{"exit": true}},
		pluginRoute("denial-local", "denial: ours, in memory", entity{"strategy": "local"}),
		pluginRoute("denial-no-id", "denial: ours, in memory, without its request id",
			entity{"strategy": "local", "denial_request_id": false}),
		pluginRoute("denial-redis", "denial: ours, remembered", inRedis(redis, "leased")),
		kongRoute("denial-kong-local", "denial: Kong, local", entity{"policy": "local"}),
		kongRoute("denial-kong-redis", "denial: Kong, redis", kongRedis(redis)),
	}
}

// pluginRoute returns a row of this plugin with four limits per request, of which the first denies in rows of denials.
func pluginRoute(name, title string, where entity) route {
	r := route{name: name, title: title, plugin: "tenant-rate-limiting"}
	daily := plenty
	if r.denies() {
		daily = 1
	}
	limits := []entity{
		{"name": "daily", "scope": "tenant", "limit": daily, "window_size": 86400, "algorithm": "fixed_window"},
		{"name": "endpoint", "scope": "tenant+endpoint", "limit": plenty, "window_size": 60},
		{"name": "user", "scope": "user", "limit": plenty, "window_size": 60},
	}
	global := []entity{{"name": "all", "scope": "global", "limit": plenty, "window_size": 60}}
	r.config = entity{
		"tenant_from": []string{"consumer.custom_id"}, "user_from": []string{"consumer.username"},
		"default_tier": "bench", "tiers": []entity{{"name": "bench", "limits": limits}},
		"global":    entity{"limits": global},
		"namespace": prefix + "-" + name + "-" + rand.Text()[:8], // each run has full buckets
	}
	maps.Copy(r.config, where)
	return r
}

// kongRoute returns a row of Kong's own plugin. All windows but the shortest of a row of denials have room.
func kongRoute(name, title string, config entity) route {
	r := route{name, title, "rate-limiting", entity{"minute": plenty, "hour": plenty, "day": plenty}}
	if r.denies() { // Kong wants longer windows to have higher limits
		r.config = entity{"day": 1, "month": plenty, "year": plenty}
	}
	r.config["limit_by"] = "consumer"
	maps.Copy(r.config, config)
	return r
}

// inRedis returns where our buckets lie: leased where the config allows it, or exact.
func inRedis(address, accuracy string) entity {
	config := entity{"strategy": "redis", "accuracy": accuracy}
	if host, port, ok := hostPort(address); ok {
		config["redis"] = entity{"host": host, "port": port}
	} else if address != "" {
		config["redis"] = entity{"socket": address}
	}
	return config
}

// kongRedis returns where Kong's counters lie. It cannot use a unix socket.
func kongRedis(address string) entity {
	config := entity{"policy": "redis"}
	if host, port, ok := hostPort(address); ok {
		config["redis"] = entity{"host": host, "port": port}
	}
	return config
}

func hostPort(address string) (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(text)
	return host, port, err == nil
}

var tags = []string{prefix}

func (r *route) path() string { return "/" + prefix + "/" + r.name }

func (r *route) plugins() []entity {
	all := []entity{{"name": "key-auth", "config": entity{"key_names": []string{"apikey"}}, "tags": tags}}
	if r.plugin != "" {
		all = append(all, entity{"name": r.plugin, "config": r.config, "tags": tags})
	}
	return all
}

// writeDeclarative writes the entities as a declarative file.
func (b *bench) writeDeclarative(w io.Writer) error {
	var routes []entity
	for i := range b.routes {
		r := &b.routes[i]
		routes = append(routes, entity{
			"name": prefix + "-" + r.name, "paths": []string{r.path()}, "tags": tags, "plugins": r.plugins(),
		})
	}
	document := entity{
		"_format_version": "3.0",
		"services":        []entity{{"name": prefix, "url": b.service, "tags": tags, "routes": routes}},
		"consumers": []entity{{
			"username": prefix, "custom_id": prefix, "tags": tags, "keyauth_credentials": []entity{{"key": prefix}},
		}},
	}
	if err := yaml.NewEncoder(w).Encode(document); err != nil {
		return fmt.Errorf("write the declarative file: %w", err)
	}
	return nil
}
