package schema

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Redis configures the connections to Redis, with the field names of Kong's redis block. It is read only if
// Config.Strategy is StrategyRedis.
//
//kong:check {"mutually_required": ["sentinel_nodes", "sentinel_master"]}
//kong:check {"mutually_exclusive": ["host", "socket", "cluster_nodes", "sentinel_nodes"]}
//kong:check {"conditional": {"if_field": "cluster_nodes", "if_match": {"required": true}, "then_field": "database", "then_match": {"eq": 0}, "then_err": "must be 0 beside cluster_nodes, because a Redis Cluster has only that one"}}
//kong:check {"mutually_required": ["client_cert", "client_key"]}
type Redis struct {
	// Host name or address of a single Redis server. Default: none; strategy redis needs this, socket, cluster_nodes or
	// sentinel_nodes.
	Host string `json:"host,omitempty" kong:"referenceable,len_max=255"`

	// TCP port of host, from 1 to 65535. Default: 6379.
	Port int64 `json:"port,omitempty" kong:"required,between=1..65535" default:"6379"`

	// Path of a unix socket on which a single Redis server listens, instead of host and port. Default: none.
	Socket string `json:"socket,omitempty" kong:"match=^/,len_max=107" kong_err:"must be an absolute path of at most 107 bytes"`

	// User name for Redis ACLs; a vault reference may stand here. Default: none, which is the user default of Redis.
	Username string `json:"username,omitempty" kong:"referenceable"`

	// Password for Redis; a vault reference may stand here. Default: none, no authentication.
	Password string `json:"password,omitempty" kong:"referenceable,encrypted,len_min=0"`

	// Number of the Redis database, 0 or more; a Redis Cluster has only 0. Default: 0.
	Database int64 `json:"database" kong:"required,between=0..2147483647" default:"0"`

	// Uses TLS for the connections to Redis. Default: false.
	SSL bool `json:"ssl" kong:"required" default:"false"`

	// Verifies the certificate of Redis when ssl is on. Default: true.
	SSLVerify bool `json:"ssl_verify" kong:"required" default:"true"`

	// Server name for TLS (SNI) and for verifying the certificate of Redis. Default: the host.
	ServerName string `json:"server_name,omitempty" kong:"len_max=255"`

	// Path of a PEM file with the authorities that may sign the certificate of Redis. Default: those of the system.
	CACert string `json:"ca_cert,omitempty" kong:"match=^/" kong_err:"must be an absolute path"`

	// Path of a PEM file with the client certificate for mutual TLS; it needs client_key. Default: none.
	ClientCert string `json:"client_cert,omitempty" kong:"match=^/" kong_err:"must be an absolute path"`

	// Path of a PEM file with the private key of client_cert. Default: none.
	ClientKey string `json:"client_key,omitempty" kong:"match=^/" kong_err:"must be an absolute path"`

	// How long a connection to Redis may take to open, in milliseconds. Default: 100 ms.
	ConnectTimeout int64 `json:"connect_timeout,omitempty" kong:"required,between=1..2147483646" default:"100"`

	// How long an answer of Redis may take, in milliseconds; later ones count as an outage and fail_mode decides. Default:
	// 50 ms.
	ReadTimeout int64 `json:"read_timeout,omitempty" kong:"required,between=1..2147483646" default:"50"`

	// How long sending a command to Redis may take, in milliseconds. Default: 50 ms.
	SendTimeout int64 `json:"send_timeout,omitempty" kong:"required,between=1..2147483646" default:"50"`

	// The most connections that the plugin's process keeps to each Redis server. Default: 64 connections.
	KeepalivePoolSize int64 `json:"keepalive_pool_size,omitempty" kong:"required,between=1..65535" default:"64"`

	// Sends the commands of concurrent requests to Redis together, which costs both sides less; a lone request is sent at
	// once. Default: true.
	Pipeline bool `json:"pipeline" kong:"required" default:"true"`

	// Some nodes of a Redis Cluster, from which the others are found. Default: none, no cluster.
	ClusterNodes []RedisClusterNode `json:"cluster_nodes,omitempty" kong:"len_min=1"`

	// The Redis Sentinels, which name the current master; they need sentinel_master. Default: none, no Sentinel.
	SentinelNodes []RedisSentinelNode `json:"sentinel_nodes,omitempty" kong:"len_min=1"`

	// The name by which the Sentinels know the master; it needs sentinel_nodes. Default: none.
	SentinelMaster string `json:"sentinel_master,omitempty" kong:"len_max=255"`

	// User name for the Sentinels; a vault reference may stand here. Default: none.
	SentinelUsername string `json:"sentinel_username,omitempty" kong:"referenceable"`

	// Password for the Sentinels; a vault reference may stand here. Default: none.
	SentinelPassword string `json:"sentinel_password,omitempty" kong:"referenceable,encrypted,len_min=0"`
}

// RedisPool is a Redis that has the counters of some tiers. It has the fields of the block redis.
//
//kong:check {"at_least_one_of": ["host", "socket", "cluster_nodes", "sentinel_nodes"]}
type RedisPool struct {
	// The name of the pool, by which tiers choose it: 1 to 64 letters, digits, dots, dashes or underscores. Required.
	Name string `json:"name" kong:"required,match=^[A-Za-z0-9_.-]+$,len_max=64" kong_err:"must be 1 to 64 letters, digits, dots, dashes or underscores"`

	Redis
}

// DefaultPool is the name of the pool that is the block redis.
const DefaultPool = "default"

// PoolName returns the name of a pool by its number: DefaultPool for 0, else that of redis_pools in its order.
func (c *Config) PoolName(pool int) string {
	if pool == 0 {
		return DefaultPool
	}
	return c.RedisPools[pool-1].Name
}

// PoolOf returns the number of the pool that has the counters of a tier; 0: the block redis, or no Redis at all.
func (c *Config) PoolOf(tier string) int {
	at := slices.IndexFunc(c.Tiers, func(t Tier) bool { return t.Name == tier })
	if at < 0 || c.Strategy != StrategyRedis {
		return 0
	}
	isNamed := func(p RedisPool) bool { return p.Name == c.Tiers[at].RedisPool }
	return slices.IndexFunc(c.RedisPools, isNamed) + 1
}

// Pools returns a config for each pool, by its number: c with the servers of that pool alone.
func (c *Config) Pools() []Config {
	pools := []Config{*c}
	if c.Strategy == StrategyRedis {
		for i := range c.RedisPools {
			pools = append(pools, *c)
			pools[i+1].Redis = c.RedisPools[i].Redis
		}
	}
	for i := range pools {
		pools[i].RedisPools = nil
	}
	return pools
}

// poolFaults finds pools without a name of their own, and tiers that name none.
func (c Config) poolFaults() []Fault {
	faults := findings(c.Redis.faults("redis"))
	names := []string{DefaultPool}
	for i, pool := range c.RedisPools {
		path := docpath.Item("redis_pools", i)
		switch first := slices.Index(names, pool.Name); {
		case first == 0:
			faults.add(path+".name", "must not be default, which is the pool of the block redis: choose another name")
		case first > 0 && pool.Name != "":
			faults.add(path+".name", "is the name of redis_pools[%d] too: %q", first-1, docpath.Shorten(pool.Name))
		}
		names = append(names, pool.Name)
		faults = append(faults, pool.faults(path)...)
	}
	for i, tier := range c.Tiers {
		if name := tier.RedisPool; name != "" && !slices.Contains(names, name) {
			faults.add(docpath.Item("tiers", i)+".redis_pool", "names no pool of redis_pools: %q%s", docpath.Shorten(name),
				hint(name, names))
		}
	}
	return faults
}

// poolWarnings returns warnings of pools that no tier uses, and of limits that are counted once in each pool.
func (c Config) poolWarnings() []Warning {
	warnings := findings(c.Redis.warnings("redis"))
	used := map[string]bool{DefaultPool: true} // also by requests without a tier
	counting := map[string]map[string]bool{}   // the pools that count limits of a name that tenants share
	for _, tier := range c.Tiers {
		pool := cmp.Or(tier.RedisPool, DefaultPool)
		used[pool] = true
		for _, l := range tier.Limits {
			if counting[l.Name] == nil {
				counting[l.Name] = map[string]bool{}
			}
			counting[l.Name][pool] = true
		}
	}
	for i, pool := range c.RedisPools {
		path := docpath.Item("redis_pools", i)
		if warnings = append(warnings, pool.warnings(path)...); !used[pool.Name] {
			warnings.add(path, "is used by no tier: set redis_pool to %s in one", docpath.Shorten(pool.Name))
		}
	}
	for _, l := range c.Limits() {
		pools := counting[l.Name]
		if strings.HasPrefix(l.Path, "global.") {
			pools = used
		}
		isShared := slices.Contains([]string{"ip", "endpoint", "global"}, l.Scope)
		if n := len(pools); n > 1 && isShared && c.Strategy == StrategyRedis {
			warnings.add(l.Path, "is counted by each pool of Redis for itself: the %d pools that count it admit %[1]d times the "+
				"limit together", n)
		}
	}
	return warnings
}

const redacted = "(set)"

// Format prints r with every verb, wherever r is nested, without its secrets. It only shows whether a password is set.
func (r Redis) Format(f fmt.State, verb rune) {
	if r.Password != "" {
		r.Password = redacted
	}
	if r.SentinelPassword != "" {
		r.SentinelPassword = redacted
	}
	type plain Redis // has no Format
	fmt.Fprintf(f, fmt.FormatString(f, verb), plain(r))
}

// RedisClusterNode is one node of a Redis Cluster.
type RedisClusterNode struct {
	// Host name or address of a node of the Redis Cluster. Required.
	IP string `json:"ip" kong:"required,len_max=255"`

	// TCP port of the node, from 1 to 65535. Default: 6379.
	Port int64 `json:"port,omitempty" kong:"required,between=1..65535" default:"6379"`
}

// RedisSentinelNode is one Redis Sentinel.
type RedisSentinelNode struct {
	// Host name or address of the Sentinel. Required.
	Host string `json:"host" kong:"required,len_max=255"`

	// TCP port of the Sentinel, from 1 to 65535. Default: 26379.
	Port int64 `json:"port,omitempty" kong:"required,between=1..65535" default:"26379"`
}

// faults finds hosts that are no names of servers.
func (r Redis) faults(path string) []Fault {
	var faults findings
	host := func(field, name string) {
		if strings.HasPrefix(name, "{vault://") {
			return // Kong replaces it by a secret
		}
		if _, err := netip.ParseAddr(name); err != nil && strings.ContainsAny(name, ":/ ") {
			faults.add(docpath.Join(path, field), "must be a host name or an address alone, without a port or scheme, got %q",
				docpath.Shorten(name))
		}
	}
	host("host", r.Host)
	for i, node := range r.ClusterNodes {
		host(docpath.Item("cluster_nodes", i)+".ip", node.IP)
	}
	for i, node := range r.SentinelNodes {
		host(docpath.Item("sentinel_nodes", i)+".host", node.Host)
	}
	return faults
}
