package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// startTimeout bounds how long Start waits for a plugin server to listen.
	startTimeout = 10 * time.Second
	// dialEvery is how often it looks.
	dialEvery = 5 * time.Millisecond
	// drainTimeout is how long Close waits for requests in flight.
	drainTimeout = 10 * time.Second
)

// Gateway is a running stand-in for Kong. New, Start, use, Close.
type Gateway struct {
	options  Options
	counters Counters
	node     *node
	state    atomic.Pointer[state]
	servers  map[string]*server // by plugin name
	inOrder  []*server
	sequence atomic.Int64 // of __seq__
	requests atomic.Uint64

	listener   net.Listener
	http       *http.Server
	serving    chan error
	stop       context.CancelFunc
	running    sync.WaitGroup
	tempPrefix bool
}

// New checks the options. Nothing runs before Start.
func New(options Options) (*Gateway, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	realIP, err := newRealIP(options.TrustedIPs, options.RealIPHeader, options.RealIPRecursive)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g := &Gateway{options: options, servers: map[string]*server{}, serving: make(chan error, 1)}
	g.node = &node{
		id: options.NodeID, realIP: realIP, log: options.Log, state: g.state.Load, counters: &g.counters,
	}
	return g, nil
}

// Start does what `kong start` does: asks each plugin server for its info,
// checks the config against the schemas, starts the servers and the listener.
// Unlike Kong it returns only when the plugin servers listen, or with an error
// when they do not before ctx ends (or 10 s). ctx bounds only the start. After
// an error nothing is left running.
func (g *Gateway) Start(ctx context.Context) error {
	if err := g.start(ctx); err != nil {
		return errors.Join(err, g.Close())
	}
	return nil
}

func (g *Gateway) start(ctx context.Context) error {
	if err := g.makePrefix(); err != nil {
		return err
	}
	if err := g.query(ctx); err != nil {
		return err
	}
	compiled, err := compile(g.options.Config, g.servers, g.options.Workers, &g.sequence)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	g.state.Store(compiled)
	if g.listener, err = net.Listen("tcp", g.options.Listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if address, ok := g.listener.Addr().(*net.TCPAddr); ok {
		g.node.port = address.Port
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = stop
	for _, s := range g.inOrder {
		s.spawn(running, &g.running)
	}
	if err := g.awaitServers(ctx); err != nil {
		return err
	}
	protocols := new(http.Protocols) // as with "proxy_listen = ... http2", without TLS
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	g.http = &http.Server{
		Handler: http.HandlerFunc(g.serve), Protocols: protocols, MaxHeaderBytes: g.options.MaxHeaderBytes,
		ReadHeaderTimeout:            callTimeout, // nginx's client_header_timeout
		DisableGeneralOptionsHandler: true,        // nginx refuses "*"
	}
	g.running.Go(func() { g.serving <- g.http.Serve(g.listener) })
	return nil
}

func (g *Gateway) makePrefix() error {
	if g.options.Prefix != "" {
		if err := os.MkdirAll(g.options.Prefix, 0o755); err != nil {
			return fmt.Errorf("make prefix: %w", err)
		}
	} else {
		dir, err := os.MkdirTemp("", "kong")
		if err != nil {
			return fmt.Errorf("make prefix: %w", err)
		}
		g.options.Prefix, g.tempPrefix = dir, true
	}
	g.node.tempDir = g.options.Prefix
	return nil
}

// query makes a server of each of the options' servers.
func (g *Gateway) query(ctx context.Context) error {
	for _, given := range g.options.Servers {
		s, err := newServer(ctx, given, g)
		if err != nil {
			return err
		}
		if g.servers[s.info.Name] != nil {
			return fmt.Errorf("two servers for the plugin %s", s.info.Name)
		}
		g.servers[s.info.Name], g.inOrder = s, append(g.inOrder, s)
	}
	return nil
}

func (g *Gateway) awaitServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(dialEvery)
	defer ticker.Stop()
	for _, s := range g.inOrder {
		for {
			conn, err := net.Dial("unix", s.socket)
			if err == nil {
				if err := conn.Close(); err != nil {
					return fmt.Errorf("probe plugin server: %w", err)
				}
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("plugin server %s does not listen: %w: %w", s.info.Name, ctx.Err(), err)
			case <-ticker.C:
			}
		}
	}
	return nil
}

// Reload takes another config into use, as a sync by decK does: requests that
// begin after it use the new one, and every plugin instance is started anew
// with its first request, the old one closed after it. A config with faults
// changes nothing.
func (g *Gateway) Reload(config *Config) error {
	compiled, err := compile(config, g.servers, g.options.Workers, &g.sequence)
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	previous := g.state.Swap(compiled)
	for _, transport := range previous.transports {
		transport.CloseIdleConnections()
	}
	return nil
}

// URL is the proxy listener's address, such as "http://127.0.0.1:8000".
func (g *Gateway) URL() string {
	if g.listener == nil {
		return ""
	}
	return "http://" + g.listener.Addr().String()
}

// Prefix is the directory where the sockets lie, known after Start.
func (g *Gateway) Prefix() string { return g.options.Prefix }

// PluginPID is the process id of the first plugin server, 0 while none runs.
func (g *Gateway) PluginPID() int {
	if len(g.inOrder) == 0 || g.inOrder[0].process == nil {
		return 0
	}
	return int(g.inOrder[0].process.pid.Load())
}

// Counters count what the gateway saw since New.
func (g *Gateway) Counters() *Counters { return &g.counters }

// Close lets requests in flight end (10 s at most), stops listening, ends the
// plugin servers with SIGTERM (10 s later with SIGKILL), waits for everything
// the gateway has started and removes a temporary prefix. It may be called
// again, and before Start.
func (g *Gateway) Close() error {
	var errs []error
	if g.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if err := g.http.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("drain: %w", err), g.http.Close())
		}
		if err := <-g.serving; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, fmt.Errorf("serve: %w", err))
		}
		g.http = nil
	} else if g.listener != nil {
		errs = append(errs, ignoreClosed(g.listener.Close()))
	}
	for _, s := range g.inOrder {
		errs = append(errs, s.close())
	}
	if g.stop != nil {
		g.stop()
	}
	g.running.Wait()
	if compiled := g.state.Load(); compiled != nil {
		for _, transport := range compiled.transports {
			transport.CloseIdleConnections()
		}
	}
	if g.tempPrefix {
		errs = append(errs, os.RemoveAll(g.options.Prefix))
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
