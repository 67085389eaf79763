package redis

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// settings is a redis block in which every field matters: two that reach the same Redis in the same way are equal.
type settings struct {
	schema.Redis                  // without its passwords
	passwords    func() passwords // a function is printed as an address
}

type passwords struct{ redis, sentinel string }

// normalize fills in defaults (booleans stay as they are), and drops what the settings do not use. It fails when they
// name no Redis, or certificates that cannot be read.
func normalize(block schema.Redis) (*settings, error) {
	r := schema.Config{Redis: block}.WithDefaults().Redis
	if err := oneTopology(&r); err != nil {
		return nil, err
	}
	if !r.SSL {
		r.SSLVerify, r.ServerName, r.CACert, r.ClientCert, r.ClientKey = false, "", "", "", ""
	}
	secret := passwords{r.Password, r.SentinelPassword}
	r.Password, r.SentinelPassword = "", ""
	s := &settings{r, func() passwords { return secret }}
	if !r.SSL {
		return s, nil
	}
	if r.Socket != "" && r.SSLVerify && r.ServerName == "" {
		return nil, errors.New("ssl over a socket needs server_name, because there is no host to verify")
	}
	if _, err := s.tls(); err != nil {
		return nil, err
	}
	return s, nil
}

// oneTopology clears the fields of all topologies but one, and sorts lists whose order means nothing. Of several the
// first of Cluster, Sentinel, socket and host counts, because Kong's own redis blocks give host a default.
func oneTopology(r *schema.Redis) error {
	if len(r.ClusterNodes) > 0 {
		r.SentinelNodes, r.Database = nil, 0
		r.ClusterNodes = slices.Clone(r.ClusterNodes)
		slices.SortFunc(r.ClusterNodes, func(a, b schema.RedisClusterNode) int {
			return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.Port, b.Port))
		})
	}
	if len(r.SentinelNodes) > 0 {
		r.SentinelNodes = slices.Clone(r.SentinelNodes)
		slices.SortFunc(r.SentinelNodes, func(a, b schema.RedisSentinelNode) int {
			return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
		})
	} else {
		r.SentinelMaster, r.SentinelUsername, r.SentinelPassword = "", "", ""
	}
	if len(r.ClusterNodes) > 0 || len(r.SentinelNodes) > 0 {
		r.Socket = ""
	} else if r.Socket == "" {
		if r.Host == "" {
			return errors.New("host, socket, cluster_nodes or sentinel_nodes is needed")
		}
		return nil
	}
	r.Host, r.Port = "", 0
	return nil
}

func (s *settings) isCluster() bool { return len(s.ClusterNodes) > 0 }

// fingerprint returns a hash of settings. It identifies them in this process, and is never shown.
func (s *settings) fingerprint() [sha256.Size]byte {
	secret := s.passwords()
	text, err := json.Marshal([]any{s.Redis, secret.redis, secret.sentinel})
	if err != nil {
		panic(fmt.Sprintf("redis: settings cannot be encoded: %v", err)) // they have strings, integers and booleans
	}
	return sha256.Sum256(text)
}

// place returns where the Redis is, for logs: "redis.internal:6379", "a cluster at 10.0.0.1:6379, 10.0.0.2:6379".
func (s *settings) place() string {
	switch addresses := s.addresses(); {
	case s.isCluster():
		return fmt.Sprintf("a cluster at %s", joinFirst(addresses))
	case s.SentinelMaster != "":
		return fmt.Sprintf("master %s of the sentinels at %s", s.SentinelMaster, joinFirst(addresses))
	default:
		return addresses[0]
	}
}

// location returns where the data is: the addresses, and the database or the master.
func (s *settings) location() string {
	return fmt.Sprintf("%q %q %d", s.addresses(), s.SentinelMaster, s.Database)
}

// joinFirst joins the first few addresses.
func joinFirst(addresses []string) string {
	const few = 3
	text := addresses[0]
	for _, address := range addresses[1:min(len(addresses), few)] {
		text += ", " + address
	}
	if more := len(addresses) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// addresses returns the addresses of the cluster's nodes, of the Sentinels, or of the one server.
func (s *settings) addresses() []string {
	var addresses []string
	add := func(host string, port int64) {
		addresses = append(addresses, net.JoinHostPort(host, strconv.FormatInt(port, 10)))
	}
	switch {
	case s.isCluster():
		for _, node := range s.ClusterNodes {
			add(node.IP, node.Port)
		}
	case len(s.SentinelNodes) > 0:
		for _, node := range s.SentinelNodes {
			add(node.Host, node.Port)
		}
	case s.Socket != "":
		return []string{s.Socket}
	default:
		add(s.Host, s.Port)
	}
	return addresses
}

func (s *settings) readTimeout() time.Duration {
	return time.Duration(s.ReadTimeout) * time.Millisecond
}

// options returns the options of go-redis for every topology. A script is sent once, so nothing is retried. The
// protocol is RESP2, because push messages are not used. No client name or library is set, because an ACL user may not
// be allowed to.
func (s *settings) options() *redis.UniversalOptions {
	secret := s.passwords()
	return &redis.UniversalOptions{
		Addrs:            s.addresses(),
		DB:               int(s.Database),
		Dialer:           s.dial,
		Protocol:         2,
		Username:         s.Username,
		Password:         secret.redis,
		MasterName:       s.SentinelMaster,
		SentinelUsername: s.SentinelUsername,
		SentinelPassword: secret.sentinel,
		MaxRetries:       -1,
		DialerRetries:    1,
		DialTimeout:      time.Duration(s.ConnectTimeout) * time.Millisecond,
		ReadTimeout:      s.readTimeout(),
		WriteTimeout:     time.Duration(s.SendTimeout) * time.Millisecond,
		PoolTimeout:      s.readTimeout(),
		PoolSize:         int(s.KeepalivePoolSize),
		// One pool for all: a second one for pipelines would be tried first and doubles the wait for a server that hangs.
		PipelinePoolSize:         -1,
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// dial opens a connection for go-redis.
func (s *settings) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := s.connect(ctx, network, address)
	if err != nil {
		return nil, &dialError{address, err}
	}
	if socket, ok := conn.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			return &peekedConn{conn, raw}, nil
		}
	}
	return conn, nil
}

// peekedConn is a connection that keeps its RawConn. go-redis gets it before each command, to see whether the server
// has closed the connection, and package net would allocate one each time.
type peekedConn struct {
	net.Conn
	raw syscall.RawConn
}

// SyscallConn implements syscall.Conn.
func (c *peekedConn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// connect opens a connection. It reads the certificates anew each time, so that they can be replaced while the process
// runs.
func (s *settings) connect(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: time.Duration(s.ConnectTimeout) * time.Millisecond}
	if !s.SSL {
		return dialer.DialContext(ctx, network, address)
	}
	config, err := s.tls()
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{NetDialer: &dialer, Config: config}).DialContext(ctx, network, address)
}

// tls reads the certificate files. An empty server name is later taken from the address.
func (s *settings) tls() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         s.ServerName,
		InsecureSkipVerify: !s.SSLVerify, // ssl_verify: false
	}
	if s.CACert != "" {
		pem, err := os.ReadFile(s.CACert)
		if err != nil {
			return nil, fmt.Errorf("read ca_cert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_cert: no certificate in %s", s.CACert)
		}
	}
	if s.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(s.ClientCert, s.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("read client_cert and client_key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
