package fromkong

import (
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

const kongTimeout = 2000 // milliseconds: Kong's default

// redisTarget converts the redis record of one of Kong's plugins.
func (e *entry) redis(s *settings) record {
	r := s.record("redis")
	r.takeDeprecated(s)
	var out record
	e.redisServers(r, &out)
	for _, field := range [...]string{"username", "password"} {
		addUnless(&out, field, r.text(field, ""), "")
	}
	addUnless(&out, "database", r.integer("database", 0, 0, 1<<31-1), 0)
	e.redisTLS(r, &out)
	e.redisTimeouts(r, &out)
	addUnless(&out, "keepalive_pool_size", r.integer("keepalive_pool_size", 0, 1, 65535), 0)
	if len(r.ignore("keepalive_backlog", "cluster_max_redirections", "redis_proxy_type")) > 0 {
		e.differs(RedisTuning)
	}
	if r.flag("connection_is_proxied", false) {
		r.problem("connection_is_proxied", "is true: this plugin's scripts need a Redis, not a proxy")
	}
	e.redisCloud(r)
	r.finish()
	return out
}

// takeDeprecated reads the fields of Kong before 3.6, such as redis_host, into the record where it lacks them.
func (r *settings) takeDeprecated(s *settings) {
	for _, field := range [...]string{
		"host", "port", "timeout", "username", "password", "database", "ssl", "ssl_verify", "server_name",
	} {
		old, ok := s.value("redis_" + field)
		if !ok || r.has(field) {
			continue
		}
		if r.values == nil {
			r.values = map[string]any{}
		}
		r.values[field] = old
	}
}

// redisServers converts the addresses: of one server, a cluster or Sentinels.
func (e *entry) redisServers(r *settings, out *record) {
	cluster := r.addresses("cluster_nodes", "cluster_addresses", "ip", 6379)
	sentinels := r.addresses("sentinel_nodes", "sentinel_addresses", "host", 26379)
	host, port := r.text("host", ""), r.integer("port", 6379, 1, 65535)
	master := r.text("sentinel_master", "")
	role := r.text("sentinel_role", "")
	user, password := r.text("sentinel_username", ""), r.text("sentinel_password", "")
	switch {
	case len(cluster) > 0:
		out.add("cluster_nodes", cluster)
	case len(sentinels) > 0:
		out.add("sentinel_nodes", sentinels)
		out.add("sentinel_master", master)
		addUnless(out, "sentinel_username", user, "")
		addUnless(out, "sentinel_password", password, "")
		if role != "" && role != "master" {
			e.differs(SentinelRole)
		}
	case host == "":
		r.problem("host", "is missing: which Redis is it? Kong's default, 127.0.0.1, depends on its version; write it")
	default:
		out.add("host", host)
		addUnless(out, "port", port, 6379)
	}
}

// addresses reads a list of nodes, or the list of host:port of older versions.
func (r *settings) addresses(field, older, hostKey string, defaultPort int64) []record {
	var nodes []record
	add := func(host string, port int64) {
		node := record{{hostKey, host}}
		addUnless(&node, "port", port, defaultPort)
		nodes = append(nodes, node)
	}
	for i, v := range r.list(field) {
		values, ok := v.(map[string]any)
		if !ok {
			r.problem(field, "must be a list of records, got %s", shown(v))
			return nil
		}
		node := &settings{
			values: values, path: docpath.Item(docpath.Member(r.path, field), i), read: map[string]bool{}, shared: r.shared,
		}
		add(node.text(hostKey, "127.0.0.1"), node.integer("port", defaultPort, 1, 65535))
		node.finish()
	}
	for _, address := range r.texts(older) {
		host, port, ok := splitAddress(address)
		if !ok {
			r.problem(older, "must be a list of host:port, got %s", shown(address))
			return nil
		}
		add(host, port)
	}
	return nodes
}

func (e *entry) redisTLS(r *settings, out *record) {
	ssl, explicit := r.flag("ssl", false), r.has("ssl_verify")
	verify, server := r.flag("ssl_verify", true), r.text("server_name", "")
	if !ssl {
		return
	}
	out.add("ssl", true)
	addUnless(out, "ssl_verify", verify, true)
	addUnless(out, "server_name", server, "")
	if !explicit {
		e.differs(RedisVerify)
	}
}

// redisTimeouts keeps timeouts that are not Kong's default.
func (e *entry) redisTimeouts(r *settings, out *record) {
	common := r.integer("timeout", kongTimeout, 1, 1<<31-2)
	for _, field := range [...]string{"connect_timeout", "read_timeout", "send_timeout"} {
		if timeout := r.integer(field, common, 1, 1<<31-2); timeout != kongTimeout {
			out.add(field, timeout)
		} else {
			e.differs(RedisTimeouts)
		}
	}
}

// redisCloud adds a problem where Kong logs in to Redis by an identity of a cloud.
func (e *entry) redisCloud(r *settings) {
	if cloud := r.record("cloud_authentication"); cloud.text("auth_provider", "") != "" {
		r.problem("cloud_authentication", "has no counterpart: use a password (a vault reference may stand there)")
	}
}

// splitAddress splits host:port, where an IPv6 address stands in brackets.
func splitAddress(address string) (host string, port int64, ok bool) {
	colon := strings.LastIndexByte(address, ':')
	if colon < 1 {
		return "", 0, false
	}
	host = strings.TrimSuffix(strings.TrimPrefix(address[:colon], "["), "]")
	port, err := strconv.ParseInt(address[colon+1:], 10, 32)
	return host, port, err == nil && host != "" && port > 0 && port <= 65535
}
