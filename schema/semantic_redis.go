package schema

import (
	"net/netip"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// redisFaults finds hosts that are no names of servers, and a second Redis without a first one or with the same server.
func (c Config) redisFaults() []Fault {
	faults := findings(append(c.Redis.hostFaults("redis"), c.AddressRedis.hostFaults("address_redis")...))
	if !c.AddressRedis.IsZero() && c.Strategy != StrategyRedis {
		faults.add("address_redis", "needs strategy redis, which is %s: set strategy to redis, or leave address_redis out",
			c.Strategy)
	}
	if path := c.Redis.sharedServer(c.AddressRedis); path != "" {
		faults.add("address_redis."+path, "names a server of redis, whose memory addresses would fill all the same, "+
			"in another database too: name a server of its own, or leave address_redis out")
	}
	return faults
}

// hostFaults finds invalid hosts in the block at a path.
func (r Redis) hostFaults(path string) []Fault {
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

// sharedServer returns the field of second that names a server of r, or "" if there is none. The nodes of a Cluster and
// a single host are compared with each other; Sentinels only among themselves.
func (r Redis) sharedServer(second Redis) string {
	switch {
	case len(second.SentinelNodes) > 0:
		for _, node := range second.SentinelNodes {
			for _, other := range r.SentinelNodes {
				if second.SentinelMaster == r.SentinelMaster && sameHost(node.Host, other.Host) && node.Port == other.Port {
					return "sentinel_master"
				}
			}
		}
	case second.Socket != "":
		if second.Socket == r.Socket {
			return "socket"
		}
	default:
		for _, server := range second.servers() {
			for _, other := range r.servers() {
				if sameHost(server.host, other.host) && server.port == other.port {
					return server.path
				}
			}
		}
	}
	return ""
}

// redisServer is a server that a block of settings names by its address.
type redisServer struct {
	path string // of the field that names it
	host string
	port int64
}

// servers returns the nodes of a Cluster, or the single host; none for Sentinels and a socket.
func (r Redis) servers() []redisServer {
	var list []redisServer
	for i, node := range r.ClusterNodes {
		list = append(list, redisServer{docpath.Item("cluster_nodes", i), node.IP, node.Port})
	}
	if r.Host != "" && r.Socket == "" && len(r.ClusterNodes) == 0 && len(r.SentinelNodes) == 0 {
		list = append(list, redisServer{"host", r.Host, r.Port})
	}
	return list
}

// sameHost reports whether two names are surely those of one host.
func sameHost(a, b string) bool { return a != "" && canonicalHost(a) == canonicalHost(b) }

// canonicalHost returns a host in one spelling: in lower case, without the dot of the root, addresses in their shortest
// form, and localhost for all loopback addresses.
func canonicalHost(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	switch {
	case err != nil:
		return name
	case addr.Unmap().IsLoopback():
		return "localhost"
	}
	return addr.Unmap().String()
}
