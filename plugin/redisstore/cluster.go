package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	// maxRedirects is how often one call follows a redirection.
	maxRedirects = 3
	// maxServers is how many servers are remembered: more than a cluster has at one time. Beyond it all are forgotten,
	// and those in use come back with their next call.
	maxServers = 1024
)

// cluster is a Redis Cluster. Every master has a pipeline of its own, so that one that hangs delays nobody else: that
// of go-redis for the whole cluster has all wait for the slowest.
type cluster struct {
	client    *redis.ClusterClient
	connect   func(address string) *redis.Client // to a server that a redirection leads to
	script    *script
	pipelined bool

	masterServers sync.Map // *redis.Client, which ClusterClient owns → *server

	mu       sync.Mutex
	known    int                // how many masterServers there are
	targets  map[string]*server // address → a server that a redirection led to, with a client that we own
	isClosed bool
}

func newCluster(options *redis.UniversalOptions, script *script, pipelined bool) *cluster {
	return &cluster{
		client: redis.NewClusterClient(options.Cluster()), script: script, pipelined: pipelined,
		connect: func(address string) *redis.Client {
			one := options.Simple()
			one.Addr = address
			return redis.NewClient(one)
		},
		targets: map[string]*server{},
	}
}

// Groups implements transport.
func (*cluster) Groups() bool { return true }

// Run implements transport. A redirection says that the script did not run there, so it is followed at once; what the
// cluster looks like now is learnt in the background, after a failure too, because a master that died cannot redirect.
func (c *cluster) Run(ctx context.Context, keys []string, args []any) ([]any, error) {
	master, err := c.client.MasterForKey(ctx, keys[0])
	if err != nil {
		return nil, &Error{NotSent, fmt.Errorf("find the master of a key: %w", err)}
	}
	s, err := c.master(master)
	if err != nil {
		return nil, &Error{NotSent, err}
	}
	command := c.script.evalsha(keys, args)
	reply, err := s.run(ctx, command, false)
	for hops := 0; err != nil && hops < maxRedirects; hops++ {
		c.client.ReloadState(ctx)
		address, asking := redirection(err, s.client.Options().Addr)
		if address == "" {
			break
		}
		if s, err = c.target(address); err != nil {
			return nil, &Error{NotSent, err}
		}
		reply, err = s.run(ctx, command, asking)
	}
	return reply, err
}

// redirection is the address that err points to, "" when it is none, and whether that server wants ASKING. A server that
// does not know its own name leaves the host out: then it is that of the server which answered.
func redirection(err error, from string) (target string, asking bool) {
	address, moved := redis.IsMovedError(err)
	if !moved {
		address, asking = redis.IsAskError(err)
	}
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return "", false
	}
	host := strings.Trim(address[:colon], "[]") // IPv6 comes with brackets and without
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(host, address[colon+1:]), asking
}

// master is the server behind a client of the ClusterClient's.
func (c *cluster) master(client *redis.Client) (*server, error) {
	if s, ok := c.masterServers.Load(client); ok {
		return s.(*server), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.masterServers.Load(client); ok {
		return s.(*server), nil
	}
	s, err := newServer(client, c.script, c.pipelined)
	if err != nil {
		return nil, err
	}
	if c.known++; c.known > maxServers {
		c.masterServers.Clear()
		c.known = 1
	}
	c.masterServers.Store(client, s)
	return s, nil
}

// target is the server at an address that a redirection named. Most are masters that the ClusterClient knows too, but
// not all, and it lends out clients by key only.
func (c *cluster) target(address string) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, redis.ErrClosed
	}
	if s, ok := c.targets[address]; ok {
		return s, nil
	}
	if len(c.targets) >= maxServers {
		if err := c.closeTargets(); err != nil {
			return nil, err
		}
	}
	client := c.connect(address)
	s, err := newServer(client, c.script, c.pipelined)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	c.targets[address] = s
	return s, nil
}

// closeTargets closes and forgets; what is in flight there fails. c.mu is held.
func (c *cluster) closeTargets() error {
	var errs []error
	for address, s := range c.targets {
		errs = append(errs, s.client.Close())
		delete(c.targets, address)
	}
	return errors.Join(errs...)
}

func (c *cluster) masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error {
	return c.client.ForEachMaster(ctx, visit)
}

// Close ends the connections and pipelines to all servers.
func (c *cluster) Close() error {
	c.mu.Lock()
	c.isClosed = true
	err := c.closeTargets()
	c.mu.Unlock()
	return errors.Join(err, c.client.Close())
}
