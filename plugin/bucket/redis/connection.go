package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// connection is a client of one Redis, shared by all that use it.
type connection struct {
	backend  backend
	settings *settings
	script   *script
	store    *Store
	timeout  time.Duration
	gates    Gates
	refusal  atomic.Pointer[refusal] // nil: the last check found nothing impossible
	closed   chan struct{}
	close    func() error // ends the connection; once is enough
	users    int          // under the registry's lock
}

// refusal is what a check has found to be impossible. Its gate is told of every call that it turns away, so that the
// store counts as away for as long.
type refusal struct {
	err  error
	gate Gate
}

// refuse turns all calls away from now on, because of err; nil: none any more.
func (c *connection) refuse(err error) {
	var now *refusal
	before := c.refusal.Load()
	switch {
	case err == nil && before == nil:
		return
	case err != nil && before != nil:
		now = &refusal{err, before.gate}
	case err != nil:
		now = &refusal{err, c.gates(c.settings.place(), c.settings.place(), c.timeout)}
	}
	c.refusal.Store(now)
	if now == nil {
		before.gate.Close()
		return
	}
	select {
	case <-c.closed: // perhaps too early to have found this gate
		now.gate.Close()
	default:
	}
}

// turnAway is the error of a call.
func (r *refusal) turnAway() error {
	wait, ok := r.gate.Enter()
	if !ok {
		return &Error{Kind: Refused, Wait: wait, err: fmt.Errorf("%w: %w", errGate, r.err)}
	}
	r.gate.Leave(0, true)
	return &Error{Kind: Refused, err: r.err}
}

// backend is a transport and the servers behind it.
type backend interface {
	transport
	// masters visits every server that buckets may live on, possibly at the same time.
	masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error
	Close() error
}

// connect makes a client, which connects when it is first used.
func connect(s *settings, script *script, gates Gates) (*connection, error) {
	c := &connection{settings: s, script: script, gates: gates, timeout: s.readTimeout(), closed: make(chan struct{})}
	c.close = sync.OnceValue(func() error {
		close(c.closed)
		if r := c.refusal.Load(); r != nil {
			r.gate.Close()
		}
		return c.backend.Close()
	})
	options := c.settings.options()
	if s.clustered() {
		c.backend = newCluster(options, func(address string) Gate { return gates(s.place(), address, c.timeout) }, s.Pipeline)
		return c, nil
	}
	var client *redis.Client
	if s.SentinelMaster != "" {
		client = redis.NewFailoverClient(options.Failover())
	} else {
		client = redis.NewClient(options.Simple())
	}
	one, err := newServer(client, gates(s.place(), s.place(), c.timeout), s.Pipeline)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	c.backend = single{one}
	return c, nil
}

// Groups implements transport.
func (c *connection) Groups() bool { return c.backend.Groups() }

// Probe implements transport. A Redis that the check refuses may live; it is of no use all the same.
func (c *connection) Probe(ctx context.Context) {
	if c.refusal.Load() == nil {
		c.backend.Probe(ctx)
	}
}

// Ping asks all servers at once whether they answer. A Redis that the check refuses is of no use.
func (c *connection) Ping(ctx context.Context) error {
	if refusal := c.refusal.Load(); refusal != nil {
		return refusal.err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.backend.masters(ctx, func(ctx context.Context, client *redis.Client) error { return client.Ping(ctx).Err() })
}

// Run implements transport. It waits no longer than read_timeout, whatever ctx allows: a call that needs a new connection
// has no more time for it, but the connection is made all the same, for the next. Every error is an *Error.
func (c *connection) Run(ctx context.Context, script *script, keys []string, args []any) ([]any, error) {
	if refusal := c.refusal.Load(); refusal != nil {
		return nil, refusal.turnAway()
	}
	if err := ctx.Err(); err != nil {
		return nil, &Error{Kind: NotSent, err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	reply, err := c.backend.Run(ctx, script, keys, args)
	if err != nil {
		return nil, classify(err)
	}
	return reply, nil
}
