package redis

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// pipeline keeps a wire to a server open, once there is a call for it. go-redis opens and authenticates the connection,
// so it is as any other: at the same address, with the same certificates, user and database.
type pipeline struct {
	options   *redis.Options       // of the server
	newClient func() *redis.Client // returns a client for one wire
	serving   sync.WaitGroup       // counts the wires that have not ended

	apart atomic.Bool // a call is never merged with others: the server has keys of several slots

	mu     sync.Mutex
	wire   *wire // nil: the next call makes one
	closed bool
}

// run sends a call and waits for its reply. It returns errEnded when the pipeline is closed.
func (p *pipeline) run(ctx context.Context, script *script, c *call) error {
	c.script, c.apart = script, p.apart.Load()
	if c.answered == nil {
		c.answered = make(chan struct{}, 1)
	}
	for {
		c.err, c.sent = nil, false
		w := p.current()
		if w == nil {
			return errEnded
		}
		err := w.run(ctx, c)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errEnded):
		case isRejectedWithOthers(err, c):
			c.apart = true
			if redis.HasErrorPrefix(err, "CROSSSLOT ") {
				p.apart.Store(true)
			}
		default:
			return err
		}
	}
}

// isRejectedWithOthers reports whether Redis has rejected a command of several requests for a reason that need not be
// c's: alone it may be a denial, have the keys of one slot, or keys that the user may access.
func isRejectedWithOthers(err error, c *call) bool {
	var reply serverError
	return errors.As(err, &reply) && c.inCommand > 1 && isOfOneRequest(string(reply))
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

// serve opens a wire and reads from it until it ends. The client of the wire stays open that long: one that Sentinel
// leads closes its connection when there is another master.
func (p *pipeline) serve(ctx context.Context, w *wire) {
	client := p.newClient()
	conn, err := dial(ctx, client, w.retire)
	if err != nil {
		w.end(err)
	} else {
		w.open(conn)
	}
	_ = client.Close() // its connection has ended
}

// dial opens a connection of a new client. When the client closes it later, retire is called instead.
func dial(ctx context.Context, client *redis.Client, retire func()) (net.Conn, error) {
	var opened opening
	client.AddHook(&opened)
	err := client.Ping(ctx).Err()
	if err != nil && !redis.HasErrorPrefix(err, "NOPERM ") { // a user may run scripts without being allowed to ping
		return nil, err
	}
	if opened.conn == nil || !opened.conn.lend(retire) { // not PING was denied, but what go-redis sends before
		return nil, cmp.Or(err, net.ErrClosed)
	}
	return opened.conn.Conn, opened.conn.SetDeadline(time.Time{})
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
