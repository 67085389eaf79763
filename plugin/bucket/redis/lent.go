package redis

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

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
type opening struct {
	onlyDials
	conn *lentConn
}

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

// onlyDials is the part of a hook that adds nothing to commands.
type onlyDials struct{}

// ProcessHook implements redis.Hook.
func (onlyDials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (onlyDials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
