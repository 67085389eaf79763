package fromkong

import (
	"maps"
	"strconv"
	"strings"
)

const kongTimeout = 2000 // milliseconds: Kong's default

// readRedis converts the redis record of one of Kong's plugins.
func (e *entry) readRedis() *redis {
	var r redis
	e.read("redis", e.redisValues(), &r)
	e.redisServers(&r)
	switch {
	case !r.SSL:
		r.redisTLS = redisTLS{}
	case r.SSLVerify == nil:
		e.differs("redis-verify")
	case *r.SSLVerify:
		r.SSLVerify = nil
	}
	e.redisTimeouts(&r)
	if r.KeepaliveBacklog != nil || r.ClusterMaxRedirections != nil || r.RedisProxyType != nil {
		e.differs("redis-tuning")
	}
	if r.ConnectionIsProxied {
		e.fault("redis.connection_is_proxied", "is true: this plugin's scripts need a Redis, not a proxy")
	}
	var cloud cloudAuthentication
	if e.read("redis.cloud_authentication", r.CloudAuthentication, &cloud); cloud.AuthProvider != "" {
		e.fault("redis.cloud_authentication", "has no counterpart: use a password (a vault reference may stand there)")
	}
	return &r
}

// redisValues returns the redis record, with the fields of Kong before 3.6, such as redis_host, that it lacks.
func (e *entry) redisValues() map[string]any {
	values, old := map[string]any{}, maps.Clone(e.redis)
	for _, field := range [...]string{
		"host", "port", "timeout", "username", "password", "database", "ssl", "ssl_verify", "server_name",
	} {
		values[field] = old["redis_"+field]
		delete(old, "redis_"+field)
	}
	for field, value := range e.record("redis", old["redis"]) {
		if value != nil {
			values[field] = value
		}
	}
	delete(old, "redis")
	e.read("", old, new(struct{})) // reports the others as unknown
	return values
}

// redisServers keeps the addresses of one server, a cluster or Sentinels.
func (e *entry) redisServers(r *redis) {
	for _, a := range e.addresses("redis.cluster_addresses", r.ClusterAddresses) {
		r.ClusterNodes = append(r.ClusterNodes, clusterNode{IP: a.Host, Port: unless(6379, a.Port)})
	}
	for _, a := range e.addresses("redis.sentinel_addresses", r.SentinelAddresses) {
		r.SentinelNodes = append(r.SentinelNodes, sentinelNode{Host: a.Host, Port: unless(26379, a.Port)})
	}
	switch {
	case len(r.ClusterNodes) > 0:
		r.sentinels, r.server = sentinels{}, server{}
	case len(r.SentinelNodes) > 0:
		r.server = server{}
		if r.SentinelRole != "" && r.SentinelRole != "master" {
			e.differs("sentinel-role")
		}
	case r.Host == "":
		e.fault("redis.host", "is missing: which Redis is it? Kong's default, 127.0.0.1, depends on its version; write it")
	default:
		r.sentinels = sentinels{}
	}
}

func (e *entry) addresses(path string, texts []string) (servers []server) {
	for _, text := range texts {
		host, port, ok := SplitAddress(text)
		if !ok {
			e.fault(path, "must be a list of host:port, got %s", shown(text))
			return nil
		}
		servers = append(servers, server{host, port})
	}
	return servers
}

// redisTimeouts keeps timeouts that are not Kong's default.
func (e *entry) redisTimeouts(r *redis) {
	for _, timeout := range []*int64{&r.ConnectTimeout, &r.ReadTimeout, &r.SendTimeout} {
		if *timeout == 0 {
			*timeout = r.Timeout
		}
		if *timeout = unless(kongTimeout, *timeout); *timeout == 0 {
			e.differs("redis-timeouts")
		}
	}
}

// unless returns a number, or 0 if it is the usual one.
func unless(usual, n int64) int64 {
	if n == usual {
		return 0
	}
	return n
}

// SplitAddress splits host:port, where an IPv6 address stands in brackets.
func SplitAddress(address string) (host string, port int64, ok bool) {
	colon := strings.LastIndexByte(address, ':')
	if colon < 1 {
		return "", 0, false
	}
	host = strings.TrimSuffix(strings.TrimPrefix(address[:colon], "["), "]")
	number, err := strconv.ParseUint(address[colon+1:], 10, 16)
	return host, int64(number), err == nil && host != "" && number > 0
}
