package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// drainTimeout bounds how long Close waits for requests in flight.
const drainTimeout = 10 * time.Second

// Gateway is a running stand-in for Kong. Call New, Start, then Close.
type Gateway struct {
	options  Options
	counters Counters
	node     *node
	config   atomic.Pointer[compiledConfig]
	servers  []*pluginServer
	sequence atomic.Int64 // numbers the instances (__seq__)

	listener   net.Listener
	http       *http.Server
	serving    chan error
	stop       context.CancelFunc
	running    sync.WaitGroup
	logging    sync.WaitGroup // log events that are not over
	tempPrefix bool
}

// node holds what requests and connections share.
type node struct {
	port     string // of the listener
	trusted  trustedProxies
	log      *slog.Logger
	counters *Counters
}

// New checks the options. Nothing runs before Start.
func New(options Options) (*Gateway, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	trusted, err := parseTrusted(options.TrustedIPs)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g := &Gateway{options: options, serving: make(chan error, 1)}
	g.node = &node{trusted: trusted, log: options.Log, counters: &g.counters}
	return g, nil
}

// Start does what `kong start` does: it queries each plugin server's info, checks the config against the schemas,
// starts the servers and the listener. Unlike Kong it returns only when the plugin servers listen, or with an error
// when they do not before ctx ends (or 2 min). ctx bounds only the start. After an error nothing is left running.
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
	if err := g.addServers(ctx); err != nil {
		return err
	}
	compiled, err := g.compile(g.options.Config)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	g.config.Store(compiled)
	if g.listener, err = net.Listen("tcp", g.options.Listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, g.node.port, err = net.SplitHostPort(g.listener.Addr().String()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = stop
	for _, s := range g.servers {
		if s.process != nil {
			g.running.Go(func() { s.process.supervise(running) })
		}
	}
	for _, s := range g.servers {
		if err := s.awaitListening(ctx); err != nil {
			return err
		}
	}
	protocols := new(http.Protocols) // as with "proxy_listen = ... http2", without TLS
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	g.http = &http.Server{
		Handler: http.HandlerFunc(g.serve), Protocols: protocols, MaxHeaderBytes: g.options.MaxHeaderBytes,
		ReadHeaderTimeout:            callTimeout, // nginx's client_header_timeout
		DisableGeneralOptionsHandler: true,        // nginx answers 400 to "*"
	}
	g.running.Go(func() { g.serving <- g.http.Serve(g.listener) })
	return nil
}

func (g *Gateway) makePrefix() (err error) {
	if g.options.Prefix != "" {
		err = os.MkdirAll(g.options.Prefix, 0o755)
	} else {
		g.tempPrefix = true
		g.options.Prefix, err = os.MkdirTemp("", "kong")
	}
	if err != nil {
		return fmt.Errorf("make prefix: %w", err)
	}
	return nil
}

func (g *Gateway) addServers(ctx context.Context) error {
	names := map[string]bool{}
	for _, given := range g.options.Servers {
		s, err := newPluginServer(ctx, given, g)
		if err != nil {
			return err
		}
		if names[s.info.Name] {
			return fmt.Errorf("two servers for the plugin %s", s.info.Name)
		}
		names[s.info.Name] = true
		g.servers = append(g.servers, s)
	}
	return nil
}

// Reload replaces the config, as a sync by decK does. Requests that begin after it use the new one: each plugin
// instance starts anew with its first request, and the old one closes after that. A config with faults changes nothing.
func (g *Gateway) Reload(config *Config) error {
	compiled, err := g.compile(config)
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	g.config.Swap(compiled).closeIdleConnections()
	return nil
}

// URL returns the proxy listener's address, such as "http://127.0.0.1:8000".
func (g *Gateway) URL() string {
	if g.listener == nil {
		return ""
	}
	return "http://" + g.listener.Addr().String()
}

// PluginPID returns the process id of the first plugin server, 0 while none runs.
func (g *Gateway) PluginPID() int {
	if len(g.servers) == 0 || g.servers[0].process == nil {
		return 0
	}
	return int(g.servers[0].process.pid.Load())
}

// Counters returns what the gateway has counted since New.
func (g *Gateway) Counters() *Counters { return &g.counters }

// Close lets requests in flight and log events end (10 s at most), stops listening, ends the plugin servers with
// SIGTERM (10 s later with SIGKILL), waits for everything that the gateway has started and removes a temporary prefix.
// It may be called again, and before Start.
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
		errs = append(errs, g.awaitLogs(ctx))
		g.http = nil
	} else if g.listener != nil {
		if err := g.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, s := range g.servers {
		s.close()
	}
	if g.stop != nil {
		g.stop()
	}
	g.running.Wait()
	if compiled := g.config.Load(); compiled != nil {
		compiled.closeIdleConnections()
	}
	if g.tempPrefix {
		errs = append(errs, os.RemoveAll(g.options.Prefix))
	}
	return errors.Join(errs...)
}

// awaitLogs waits for the log events that are not over, until ctx ends.
func (g *Gateway) awaitLogs(ctx context.Context) error {
	over := make(chan struct{})
	go func() { g.logging.Wait(); close(over) }()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("log events: %w", ctx.Err())
	}
}

// Counters counts what the gateway served. The zero value is ready.
type Counters struct {
	Replays      atomic.Int64 // events that were run again because the plugin closed the connection
	LogEvents    atomic.Int64 // log events of plugins that are over, failed ones included
	ServerErrors atomic.Int64 // answers with a 5xx status, the upstream's included
	Starts       atomic.Int64 // calls that start an instance
	Closes       atomic.Int64 // calls that close an instance
	Spawns       atomic.Int64 // starts of plugin servers' processes
	// Stalls counts requests that waited until they gave up for an instance that another request had claimed. Kong leaks
	// the claim when it cannot write the call that starts the instance.
	Stalls atomic.Int64

	requests atomic.Int64
}
