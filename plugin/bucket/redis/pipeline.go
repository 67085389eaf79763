package redis

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pipeline keeps a wire to a server open, once there is a call for it. go-redis opens and authenticates the connection,
// so it is as any other: at the same address, with the same certificates, user and database.
type pipeline struct {
	options redis.Options  // of the server
	serving sync.WaitGroup // counts the wires that have not ended

	mu     sync.Mutex
	wire   *wire // nil: the next call makes one
	closed bool
}

func newPipeline(client *redis.Client) *pipeline {
	p := &pipeline{options: *client.Options()}
	p.options.MinIdleConns, p.options.PipelinePoolSize, p.options.MaxRetries = 0, -1, -1
	return p
}

// run sends a call and waits for its reply. It returns errEnded when the pipeline is closed.
func (p *pipeline) run(ctx context.Context, script *script, c *call) error {
	c.script, c.err, c.sent, c.abandoned = script, nil, false, false
	if c.answered == nil {
		c.answered = make(chan struct{}, 1)
	}
	for {
		w := p.current()
		if w == nil {
			return errEnded
		}
		if err := w.run(ctx, c); !errors.Is(err, errEnded) {
			return err
		}
	}
}

// current returns the wire, which may be a new one that is about to be opened; nil: the pipeline is closed.
func (p *pipeline) current() *wire {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.wire == nil {
		ctx, cancel := context.WithTimeout(context.Background(), p.options.DialTimeout+p.options.ReadTimeout)
		p.wire = &wire{
			timeout: p.options.ReadTimeout, writeTimeout: min(p.options.ReadTimeout, p.options.WriteTimeout),
			retiring: p.drop, cancel: cancel,
		}
		w := p.wire
		p.serving.Go(func() { p.serve(ctx, w) })
	}
	return p.wire
}

// serve opens a wire and reads from it until it ends.
func (p *pipeline) serve(ctx context.Context, w *wire) {
	conn, client, err := p.dial(ctx)
	if err != nil {
		w.end(err)
	} else {
		w.open(conn)
	}
	_ = client.Close() // its connection has ended
}

// dial opens a connection. It returns go-redis's client of it too, which has to be closed at the end.
func (p *pipeline) dial(ctx context.Context) (net.Conn, *redis.Client, error) {
	options := p.options
	var conn net.Conn
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		var err error
		conn, err = p.options.Dialer(ctx, network, address)
		return conn, err
	}
	client := redis.NewClient(&options)
	err := client.Ping(ctx).Err()
	if err != nil && !redis.HasErrorPrefix(err, "NOPERM ") { // a user may run scripts without being allowed to ping
		return nil, client, err
	}
	return conn, client, conn.SetDeadline(time.Time{})
}

// drop makes the next call open another wire.
func (p *pipeline) drop(w *wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wire == w {
		p.wire = nil
	}
}

// close ends the wire after the calls on it, and opens no other.
func (p *pipeline) close() {
	p.mu.Lock()
	p.closed = true
	w := p.wire
	p.mu.Unlock()
	if w != nil {
		w.retire()
	}
}

// follower is a hook of go-redis's client that ends the wire when a new connection of the client leads to another
// server: Sentinel names another master, or a name has another address.
type follower struct{ pipeline *pipeline }

// DialHook implements redis.Hook.
func (f follower) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		if err == nil {
			f.pipeline.follow(conn.RemoteAddr())
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook: it adds nothing.
func (follower) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook: it adds nothing.
func (follower) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// follow ends the wire if it leads elsewhere.
func (p *pipeline) follow(address net.Addr) {
	p.mu.Lock()
	w := p.wire
	p.mu.Unlock()
	if w != nil && w.leadsElsewhere(address) {
		w.retire()
	}
}
