package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// client sends the same request again and again.
type client struct {
	address string // host:port
	request []byte
	status  int // of every answer
	header  string
}

func newClient(proxy, key string, r *route) (*client, error) {
	u, err := url.Parse(proxy)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" {
		return nil, fmt.Errorf("-proxy %s: the load is sent by http, without TLS", proxy)
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\napikey: %s\r\n\r\n", r.path(), u.Host, key)
	return &client{address: address, request: []byte(request), status: r.status, header: r.header}, nil
}

// awaitReady sends requests until each of some in a row is answered as the route must answer: Kong's workers learn of a
// new route one after the other, and a limit that denies has to be used up.
func (c *client) awaitReady(ctx context.Context, within time.Duration) error {
	const inARow, pause = 20, 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var fault error // of the last try that was not ended by the time limit
	for good := 0; good < inARow; {
		if err := c.try(ctx); err != nil {
			good = 0
			if fault == nil || ctx.Err() == nil {
				fault = err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the route is not ready: %w", fault)
			case <-time.After(pause):
			}
			continue
		}
		good++
	}
	return nil
}

// try sends one request over a connection of its own, so that any worker may get it.
func (c *client) try(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	got, err := conn.exchange(c.request)
	if err != nil {
		return err
	}
	if got.status != c.status {
		return fmt.Errorf("status %d, want %d", got.status, c.status)
	}
	if c.header != "" && got.header.Get(c.header) == "" {
		return fmt.Errorf("no header %s: the plugin does not limit", c.header)
	}
	return nil
}

// run sends requests over some connections for a while, on each as soon as the last is answered, and returns how long
// each took, in order. Each connection sends at least one. An answer with another status is an error.
func (c *client) run(ctx context.Context, connections int, lasts time.Duration) ([]time.Duration, error) {
	took := make([][]time.Duration, connections)
	load, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(lasts)
	for i := range connections {
		load.Go(func() (err error) {
			took[i], err = c.runOne(ctx, end)
			return err
		})
	}
	err := load.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, err
}

func (c *client) runOne(ctx context.Context, end time.Time) (took []time.Duration, err error) {
	var conn *connection
	defer func() {
		if conn != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	for begun := time.Now(); (len(took) == 0 || begun.Before(end)) && ctx.Err() == nil; {
		if conn == nil {
			if conn, err = c.dial(ctx); err != nil {
				return took, err
			}
		}
		got, err := conn.exchange(c.request)
		if err != nil {
			return took, err
		}
		if got.status != c.status {
			return took, fmt.Errorf("status %d, want %d", got.status, c.status)
		}
		if got.last {
			if err := conn.Close(); err != nil {
				return took, err
			}
			conn = nil
		}
		now := time.Now()
		took = append(took, now.Sub(begun))
		begun = now
	}
	return took, ctx.Err()
}

// connection is a keep-alive connection to the proxy.
type connection struct {
	net.Conn
	read *bufio.Reader
}

// answerWithin bounds the wait for an answer.
const answerWithin = 10 * time.Second

func (c *client) dial(ctx context.Context) (*connection, error) {
	conn, err := (&net.Dialer{Timeout: answerWithin}).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, err
	}
	return &connection{conn, bufio.NewReader(conn)}, nil
}

// answer is what the bench reads of a response.
type answer struct {
	status int
	header http.Header
	last   bool // the connection ends: nginx does that after keepalive_requests
}

// exchange sends a request and reads the whole response.
func (c *connection) exchange(request []byte) (answer, error) {
	if err := c.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return answer{}, err
	}
	if _, err := c.Write(request); err != nil {
		return answer{}, err
	}
	response, err := http.ReadResponse(c.read, nil)
	if err != nil {
		return answer{}, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	err = errors.Join(err, response.Body.Close())
	return answer{response.StatusCode, response.Header, response.Close}, err
}

// serveUpstream answers the requests that Kong proxies. The function that it returns ends the server.
func serveUpstream(listener net.Listener) (stop func()) {
	server := &http.Server{
		ReadHeaderTimeout: answerWithin,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok\n") // Kong may have gone
		}),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // ErrServerClosed
	}()
	return func() {
		_ = server.Close() // only connections that have ended fail
		<-ended
	}
}
