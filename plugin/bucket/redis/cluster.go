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

	"github.com/redis/go-redis/v9"
)

const (
	// maxRedirects is how often one call follows a redirection.
	maxRedirects = 3
	// maxProbeKeys is how many keys are tried for one that a master keeps.
	maxProbeKeys = 4096
)

// cluster is a Redis Cluster. Every server has a client and a pipeline of its own, so that one that hangs delays no
// calls of others: in go-redis's pipeline for a whole cluster all calls wait for the slowest server.
type cluster struct {
	client    *redis.ClusterClient // finds the masters
	newServer func(address string) *server

	searchGate Gate // admits the search for the cluster's servers, until they are found
	searched   atomic.Bool

	mu       sync.RWMutex
	servers  map[string]*server // by address: masters, and where redirections led to
	isClosed bool
}

func newCluster(options *redis.UniversalOptions, gate func(address string) Gate, pipelined bool) *cluster {
	newServer := func(address string) *server {
		s := newServer(func() *redis.Client {
			one := options.Simple()
			one.Addr = address
			return redis.NewClient(one)
		}, gate(address), pipelined)
		s.pipeline.apart.Store(true) // its calls are of many slots
		return s
	}
	return &cluster{
		client: redis.NewClusterClient(options.Cluster()), newServer: newServer, searchGate: gate("any"),
		servers: map[string]*server{},
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
		if s, err = c.serverAt(address); err != nil {
			return err
		}
		err = s.run(ctx, script, call, asking)
	}
	return err
}

// masterOf returns the server that a key belongs to. Until the cluster's servers are found, a call has to search for
// them and waits for those that the settings name: one call at a time, if they do not answer.
func (c *cluster) masterOf(ctx context.Context, key string) (s *server, err error) {
	if c.searched.Load() {
		return c.findMaster(ctx, key)
	}
	err = runBehind(c.searchGate, func() error {
		s, err = c.findMaster(ctx, key)
		return err
	})
	if err == nil && !c.searched.Swap(true) {
		c.searchGate.Close()
	}
	return s, err
}

func (c *cluster) findMaster(ctx context.Context, key string) (*server, error) {
	client, err := c.client.MasterForKey(ctx, key)
	if err != nil {
		return nil, &Error{Kind: NotSent, err: fmt.Errorf("find the master of a key: %w", err)}
	}
	return c.serverAt(client.Options().Addr)
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

func (c *cluster) serverAt(address string) (*server, error) {
	c.mu.RLock()
	s := c.servers[address]
	c.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s = c.servers[address]; s != nil {
		return s, nil
	}
	if c.isClosed {
		return nil, notSent(redis.ErrClosed)
	}
	s = c.newServer(address)
	c.servers[address] = s
	return s, nil
}

func (c *cluster) masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error {
	return c.client.ForEachMaster(ctx, visit)
}

// Probe implements transport. A server that does not answer, and is no master any more, is dropped: no request goes
// there that could find out whether it is back.
func (c *cluster) Probe(ctx context.Context) {
	var masters sync.Map // by address
	err := c.client.ForEachMaster(ctx, func(ctx context.Context, client *redis.Client) error {
		address := client.Options().Addr
		masters.Store(address, nil)
		s, err := c.serverAt(address)
		if err == nil {
			s.probe(ctx, c.probeKeyOf(ctx, address))
		}
		return err
	})
	if err != nil {
		return // the masters are unknown; the gates of their servers have the cause
	}
	c.mu.RLock()
	others := maps.Clone(c.servers)
	c.mu.RUnlock()
	for address, s := range others {
		if _, ok := masters.Load(address); !ok && !s.probe(ctx, probeKey(0)) {
			c.drop(address, s)
		}
	}
}

// drop closes and drops a server.
func (c *cluster) drop(address string, s *server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers[address] == s {
		delete(c.servers, address)
		s.drop()
		_ = s.client.Close() // whatever is wrong with it, it was given up for that
	}
}

// probeKeyOf returns a key that the master at an address keeps, or any if none is found.
func (c *cluster) probeKeyOf(ctx context.Context, address string) string {
	for i := range maxProbeKeys {
		key := probeKey(i)
		if master, err := c.client.MasterForKey(ctx, key); err == nil && master.Options().Addr == address {
			return key
		}
	}
	return probeKey(0)
}

// Close ends the connections and pipelines to all servers. Calls in flight there fail.
func (c *cluster) Close() error {
	c.mu.Lock()
	c.isClosed = true
	ending := slices.Collect(maps.Values(c.servers))
	clear(c.servers)
	c.mu.Unlock()
	c.searchGate.Close()
	var errs []error
	for _, s := range ending {
		s.drop()
		errs = append(errs, s.client.Close())
		s.pipeline.serving.Wait()
	}
	return errors.Join(append(errs, c.client.Close())...)
}
