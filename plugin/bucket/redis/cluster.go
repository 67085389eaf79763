package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxRedirects is how often one call follows a redirection.
	maxRedirects = 3
	// maxServers is how many servers are kept: more than a cluster has at one time. Beyond it all are dropped, and those
	// in use come back with their next call.
	maxServers = 1024
	// maxProbeKeys is how many keys are tried for one that a master keeps.
	maxProbeKeys = 4096
)

// cluster is a Redis Cluster. Every master has a pipeline of its own, so that one that hangs delays no calls of others:
// in go-redis's pipeline for a whole cluster all calls wait for the slowest server.
type cluster struct {
	client    *redis.ClusterClient
	connect   func(address string) *redis.Client // to a server that a redirection leads to
	gate      func(address string) Gate
	pipelined bool

	searchGate Gate // admits the search for the cluster's servers, until they are found
	searched   atomic.Bool

	servers sync.Map // *redis.Client, which ClusterClient owns → *server

	mu       sync.Mutex
	made     int                // how many servers were made since all were dropped
	targets  map[string]*server // address → a server that a redirection led to, with a client that we own
	isClosed bool
}

func newCluster(options *redis.UniversalOptions, gate func(address string) Gate, pipelined bool) *cluster {
	return &cluster{
		client: redis.NewClusterClient(options.Cluster()), gate: gate, searchGate: gate("any"), pipelined: pipelined,
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

// Run implements transport. A redirection means that the script did not run there, so it is followed at once. The state
// of the cluster is reloaded in the background, after a failure too, because a master that died cannot redirect.
func (c *cluster) Run(ctx context.Context, script *script, call *call) error {
	s, err := c.masterOf(ctx, call.keys[0])
	if err != nil {
		return err
	}
	err = s.run(ctx, script, call, false)
	for hops := 0; err != nil && hops < maxRedirects; hops++ {
		c.client.ReloadState(ctx)
		address, asking := redirection(err, s.client.Options().Addr)
		if address == "" {
			break
		}
		if s, err = c.targetAt(address); err != nil {
			return &Error{Kind: NotSent, err: err}
		}
		err = s.run(ctx, script, call, asking)
	}
	return err
}

// masterOf returns the server that a key belongs to. Until the cluster's servers are found, a call has to search for
// them and waits for those that the settings name: one call at a time, if they do not answer.
func (c *cluster) masterOf(ctx context.Context, key string) (*server, error) {
	if c.searched.Load() {
		return c.findMaster(ctx, key)
	}
	wait, ok := c.searchGate.Enter()
	if !ok {
		return nil, &Error{Kind: NotSent, Wait: wait, err: errGate}
	}
	s, err := c.search(ctx, key)
	if err == nil && !c.searched.Swap(true) {
		c.searchGate.Close()
	}
	return s, err
}

// search finds a key's master, after the search gate has admitted it.
func (c *cluster) search(ctx context.Context, key string) (s *server, err error) {
	err = errUnfinished
	defer leaveGate(c.searchGate, time.Now(), &err)
	return c.findMaster(ctx, key)
}

func (c *cluster) findMaster(ctx context.Context, key string) (*server, error) {
	client, err := c.client.MasterForKey(ctx, key)
	if err != nil {
		return nil, &Error{Kind: NotSent, err: fmt.Errorf("find the master of a key: %w", err)}
	}
	s, err := c.serverOf(client)
	if err != nil {
		return nil, &Error{Kind: NotSent, err: err}
	}
	return s, nil
}

// redirection returns the address that err points to, "" when it is none, and whether that server wants ASKING. A
// server without a name of its own leaves the host out: then it is the host of the server which answered.
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

// serverOf returns the server of a client of the ClusterClient's.
func (c *cluster) serverOf(client *redis.Client) (*server, error) {
	if s, ok := c.servers.Load(client); ok {
		return s.(*server), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.servers.Load(client); ok {
		return s.(*server), nil
	}
	if c.isClosed {
		return nil, redis.ErrClosed
	}
	s := c.newServer(client, client.Options().Addr)
	if c.made++; c.made > maxServers {
		c.dropMasters(func(*redis.Client) bool { return true })
		c.made = 1
	}
	c.servers.Store(client, s)
	return s, nil
}

// newServer returns a server of the cluster, whose calls are of many slots.
func (c *cluster) newServer(client *redis.Client, address string) *server {
	s := newServer(client, c.gate(address), c.pipelined)
	if s.pipeline != nil {
		s.pipeline.apart.Store(true)
	}
	return s
}

// dropMasters drops the servers whose clients dropped reports, though the ClusterClient may still have them.
func (c *cluster) dropMasters(dropped func(*redis.Client) bool) {
	c.servers.Range(func(client, s any) bool {
		if dropped(client.(*redis.Client)) {
			c.servers.Delete(client)
			s.(*server).drop()
		}
		return true
	})
}

// targetAt returns the server at an address that a redirection named. Most are masters of the ClusterClient too, but
// not all, and it lends out clients by key only.
func (c *cluster) targetAt(address string) (*server, error) {
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
	s := c.newServer(c.connect(address), address)
	c.targets[address] = s
	return s, nil
}

// closeTargets closes and drops all targets; calls in flight there fail. The caller holds c.mu.
func (c *cluster) closeTargets() error {
	var errs []error
	for address, s := range c.targets {
		s.drop()
		errs = append(errs, s.client.Close())
		delete(c.targets, address)
	}
	return errors.Join(errs...)
}

func (c *cluster) masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error {
	return c.client.ForEachMaster(ctx, visit)
}

// Probe implements transport. It drops the servers that are masters no more.
func (c *cluster) Probe(ctx context.Context) {
	var current, addresses sync.Map
	err := c.client.ForEachMaster(ctx, func(ctx context.Context, client *redis.Client) error {
		current.Store(client, nil)
		addresses.Store(client.Options().Addr, nil)
		s, err := c.serverOf(client)
		if err == nil {
			s.probe(ctx, func() string { return c.probeKeyOf(ctx, client.Options().Addr) })
		}
		return err
	})
	if err != nil {
		return // the masters are unknown; the gates of their servers have the cause
	}
	c.dropMasters(func(client *redis.Client) bool {
		_, ok := current.Load(client)
		return !ok
	})
	c.probeTargets(ctx, &addresses)
}

// probeKeyOf returns a key that the master at an address keeps, "" if none is found.
func (c *cluster) probeKeyOf(ctx context.Context, address string) string {
	for i := range maxProbeKeys {
		key := probeKey(i)
		if master, err := c.client.MasterForKey(ctx, key); err != nil {
			return ""
		} else if master.Options().Addr == address {
			return key
		}
	}
	return ""
}

// probeTargets pings the servers that redirections led to. One that does not answer, and is no master either, is
// dropped: no request goes there any more that could find out whether it is back.
func (c *cluster) probeTargets(ctx context.Context, masters *sync.Map) {
	c.mu.Lock()
	targets := maps.Clone(c.targets)
	c.mu.Unlock()
	for address, s := range targets {
		if _, ok := masters.Load(address); ok {
			s.probe(ctx, func() string { return c.probeKeyOf(ctx, address) })
			continue
		}
		if s.probe(ctx, func() string { return "" }) {
			continue
		}
		c.mu.Lock()
		if c.targets[address] == s {
			delete(c.targets, address)
			s.drop()
			_ = s.client.Close() // whatever is wrong with it, it was given up for that
		}
		c.mu.Unlock()
	}
}

// Close ends the connections and pipelines to all servers.
func (c *cluster) Close() error {
	c.mu.Lock()
	c.isClosed = true
	ending := slices.Collect(maps.Values(c.targets))
	err := c.closeTargets()
	c.mu.Unlock()
	c.searchGate.Close()
	c.dropMasters(func(client *redis.Client) bool {
		if s, ok := c.servers.Load(client); ok {
			ending = append(ending, s.(*server))
		}
		return true
	})
	for _, s := range ending {
		s.wait()
	}
	return errors.Join(err, c.client.Close())
}
