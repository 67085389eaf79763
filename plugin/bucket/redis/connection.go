package redis

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// connection is a client of one Redis, shared by all that use it.
type connection struct {
	backend   backend
	settings  *settings
	script    *script
	store     *Store
	timeout   time.Duration
	newGate   func(server string) Gate
	rejection atomic.Pointer[rejection] // nil: the last check found no fatal fault
	closed    chan struct{}
	close     func() error // ends the connection; once is enough
	users     int          // under the registry's lock
}

// rejection is a fatal fault that a check has found. Every call that it rejects counts as a failure at its gate, so
// that the store counts as unavailable.
type rejection struct {
	err  error
	gate Gate
}

// reject makes all calls fail with err from now on; nil: none any more.
func (c *connection) reject(err error) {
	before := c.rejection.Load()
	if err == nil {
		if c.rejection.Store(nil); before != nil {
			before.gate.Close()
		}
		return
	}
	now := &rejection{err: err}
	if before != nil {
		now.gate = before.gate
	} else {
		now.gate = c.newGate(c.settings.place())
	}
	c.rejection.Store(now)
	select {
	case <-c.closed: // close may have run before it could see this gate
		now.gate.Close()
	default:
	}
}

// callError returns the error of a rejected call, and counts the call at the gate.
func (r *rejection) callError() error {
	wait, ok := r.gate.Enter()
	if !ok {
		return &Error{Kind: Rejected, Wait: wait, err: fmt.Errorf("%w: %w", errGate, r.err)}
	}
	r.gate.Leave(0, true)
	return &Error{Kind: Rejected, err: r.err}
}

// backend is a transport and the servers behind it.
type backend interface {
	transport
	// masters calls visit for every server that may keep buckets, possibly at the same time.
	masters(ctx context.Context, visit func(context.Context, *redis.Client) error) error
	Close() error
}

// connect returns a connection, whose client connects when it is first used.
func connect(s *settings, script *script, newGate NewGate) *connection {
	c := &connection{
		settings: s, script: script, timeout: s.readTimeout(), closed: make(chan struct{}),
		newGate: func(server string) Gate { return newGate(s.place(), server, s.readTimeout()) },
	}
	c.close = sync.OnceValue(func() error {
		close(c.closed)
		if r := c.rejection.Load(); r != nil {
			r.gate.Close()
		}
		return c.backend.Close()
	})
	options := s.options()
	if s.isCluster() {
		c.backend = newCluster(options, c.newGate, s.Pipeline)
		return c
	}
	newClient := func() *redis.Client { return redis.NewClient(options.Simple()) }
	if s.SentinelMaster != "" {
		newClient = func() *redis.Client { return redis.NewFailoverClient(options.Failover()) }
	}
	c.backend = single{newServer(newClient, c.newGate(s.place()), s.Pipeline)}
	return c
}

// Groups implements transport.
func (c *connection) Groups() bool { return c.backend.Groups() }

// Probe implements transport. It leaves out a Redis that the check has rejected.
func (c *connection) Probe(ctx context.Context) {
	if c.rejection.Load() == nil {
		c.backend.Probe(ctx)
	}
}

// Ping pings all servers at once. It fails for a Redis that the check has rejected.
func (c *connection) Ping(ctx context.Context) error {
	if rejection := c.rejection.Load(); rejection != nil {
		return rejection.err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.backend.masters(ctx, func(ctx context.Context, client *redis.Client) error {
		return client.Ping(ctx).Err()
	})
}

// Run implements transport. It waits no longer than read_timeout, whatever ctx allows, but for a write that the server
// does not take: the caller of it waits send_timeout at most, or read_timeout where that is shorter. A call that needs
// a new connection has no more time, but the connection is opened for the next call all the same. Every error is an
// *Error.
func (c *connection) Run(ctx context.Context, script *script, call *call) error {
	if rejection := c.rejection.Load(); rejection != nil {
		return rejection.callError()
	}
	if err := ctx.Err(); err != nil {
		return &Error{Kind: NotSent, err: err}
	}
	call.deadline.start(ctx, c.timeout)
	defer call.deadline.stop()
	if err := c.backend.Run(&call.deadline, script, call); err != nil {
		return classify(err)
	}
	return nil
}

// lentConn is a connection that go-redis opens and a wire then uses. It stays in go-redis's pool, which closes it when
// Sentinel names another master.
type lentConn struct {
	net.Conn

	mu     sync.Mutex
	closed bool
	retire func() // nil: go-redis still uses the connection
}

// lend makes Close call retire from now on. It reports false if the connection is closed already.
func (c *lentConn) lend(retire func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retire = retire
	return !c.closed
}

// Close implements net.Conn for go-redis. A connection that is lent stays open for the calls on it.
func (c *lentConn) Close() error {
	c.mu.Lock()
	c.closed = true
	retire := c.retire
	c.mu.Unlock()
	if retire == nil {
		return c.Conn.Close()
	}
	retire()
	return nil
}

// opening is a hook of go-redis's client that keeps the client's connection.
type opening struct{ conn *lentConn }

// DialHook implements redis.Hook.
func (o *opening) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		if err != nil {
			return nil, err
		}
		o.conn = &lentConn{Conn: conn}
		return o.conn, nil
	}
}

// ProcessHook implements redis.Hook.
func (*opening) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (*opening) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
