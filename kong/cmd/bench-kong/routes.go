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

	"gopkg.in/yaml.v3"
)

// entity is an entity of Kong as declarative files have it.
type entity = map[string]any

// prefix begins the names of all entities that the bench adds, and is the API key of its requests.
const prefix = "bench-kong"

// route is one row of the table: a route of Kong, and how its requests must be answered.
type route struct {
	name   string // in paths and for -only
	title  string
	plugin string // the plugin that the row measures; "": none
	config entity // of the plugin
	redis  bool   // the config names a Redis
	status int    // of every answer, once the limit of a row that denies is used up
	header string // a header that the plugin sets; "": it sets none
}

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
		return s.only != nil && !s.only.MatchString(r.name) || s.skip != nil && s.skip.MatchString(r.name) ||
			r.redis && r.config["redis"] == nil
	})
	return b
}

// allRoutes returns every row. Redis is where buckets lie, see [settings].
func allRoutes(redis string) []route {
	limited, denied := http.StatusOK, http.StatusTooManyRequests
	return []route{
		{name: "none", title: "no limiter", status: limited},
		{
			name: "floor", title: "no-op Go plugin (floor)", plugin: "bench-floor", config: entity{"exit": false},
			status: limited,
		},
		pluginRoute("local", "ours, 4 limits, in memory", entity{"strategy": "local"}, false, limited),
		pluginRoute("leased", "ours, 4 limits, leased", inRedis(redis, "leased"), true, limited),
		pluginRoute("exact", "ours, 4 limits, exact", inRedis(redis, "exact"), true, limited),
		kongRoute("kong-local", "Kong rate-limiting, 3 windows, local", entity{"policy": "local"}, false, plenty),
		kongRoute("kong-redis", "Kong rate-limiting, 3 windows, redis", kongRedis(redis), true, plenty),
		{
			name: "denial-floor", title: "denial: bare exit (floor)", plugin: "bench-floor", config: entity{"exit": true},
			status: denied,
		},
		pluginRoute("denial-local", "denial: ours, in memory", entity{"strategy": "local"}, false, denied),
		pluginRoute("denial-no-id", "denial: ours, in memory, without its request id",
			entity{"strategy": "local", "denial_request_id": false}, false, denied),
		pluginRoute("denial-redis", "denial: ours, remembered", inRedis(redis, "leased"), true, denied),
		kongRoute("denial-kong-local", "denial: Kong, local", entity{"policy": "local"}, false, 1),
		kongRoute("denial-kong-redis", "denial: Kong, redis", kongRedis(redis), true, 1),
	}
}

// pluginRoute returns a row of this plugin with four limits per request, of which the first denies in rows of denials.
func pluginRoute(name, title string, where entity, redis bool, status int) route {
	daily := plenty
	if status == http.StatusTooManyRequests {
		daily = 1
	}
	limits := []entity{
		{"name": "daily", "scope": "tenant", "limit": daily, "window_size": 86400, "algorithm": "fixed_window"},
		{"name": "endpoint", "scope": "tenant+endpoint", "limit": plenty, "window_size": 60},
		{"name": "user", "scope": "user", "limit": plenty, "window_size": 60},
	}
	global := []entity{{"name": "all", "scope": "global", "limit": plenty, "window_size": 60}}
	config := entity{
		"tenant_from": []string{"consumer.custom_id"}, "user_from": []string{"consumer.username"},
		"default_tier": "bench", "tiers": []entity{{"name": "bench", "limits": limits}},
		"global":    entity{"limits": global},
		"namespace": prefix + "-" + name + "-" + rand.Text()[:8], // each run has full buckets
	}
	maps.Copy(config, where)
	return route{
		name: name, title: title, plugin: "tenant-rate-limiting", config: config, redis: redis, status: status,
		header: "RateLimit",
	}
}

// kongRoute returns a row of Kong's own plugin. All windows but the longest have room.
func kongRoute(name, title string, config entity, redis bool, daily int) route {
	status := http.StatusOK
	if daily == 1 {
		status = http.StatusTooManyRequests
	}
	all := entity{"minute": plenty, "hour": plenty, "day": plenty, "limit_by": "consumer"}
	if daily == 1 { // Kong wants longer windows to have higher limits
		all = entity{"day": daily, "month": plenty, "year": plenty, "limit_by": "consumer"}
	}
	maps.Copy(all, config)
	return route{
		name: name, title: title, plugin: "rate-limiting", config: all, redis: redis, status: status,
		header: "RateLimit-Limit",
	}
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
