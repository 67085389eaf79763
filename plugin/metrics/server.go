package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Setting and RemoteSetting are the names of the settings that a Server's address comes from, as its messages give them.
const (
	Setting       = "metrics-listen"
	RemoteSetting = "metrics-allow-remote"
)

const (
	firstPause = 250 * time.Millisecond
	longPause  = 2 * time.Second
	// patience is how many attempts to listen fail before that is worth a warning: the process that this one replaces
	// needs a moment to let the port go.
	patience = 3
	// lastScrapes is how long a scrape may take that runs when the listener is closed.
	lastScrapes = 2 * time.Second

	headerTime   = 2 * time.Second
	requestTime  = 5 * time.Second
	responseTime = 10 * time.Second
	idleTime     = 2 * time.Minute // more than the time between two scrapes
	headerBytes  = 8 << 10
	// scrapesAtOnce bounds what a misconfigured scraper costs; beyond it the answer is 503.
	scrapesAtOnce = 4
)

// ServerOptions are what a Server needs. Metrics and Log must be set.
type ServerOptions struct {
	Metrics *Metrics
	// Address is host:port; port 0 is any that is free. "": nothing is listened on, and only the last numbers are logged.
	Address string
	// AllowRemote permits an Address that other machines reach.
	AllowRemote bool
	// ReadyNeedsStore makes /readyz fail while a shared store is degraded. It takes a node out of rotation that could go
	// on by its fail modes, and all nodes at once where they share the store.
	ReadyNeedsStore bool
	// Superseded is closed when another process has taken this one's place, and needs its address. nil: never.
	Superseded <-chan struct{}
	Log        *slog.Logger
}

// Server is the listener for operators and what probes the process. Make it with NewServer.
type Server struct {
	options ServerOptions
	handler http.Handler
	started time.Time
	state   atomic.Uint32
}

// NewServer makes a server, which does nothing before [Server.Run]. The error tells what is wrong with the address.
func NewServer(o ServerOptions) (*Server, error) {
	if err := CheckAddress(o.Address, o.AllowRemote, ""); err != nil {
		return nil, err
	}
	s := &Server{options: o, started: time.Now()}
	s.handler = s.routes()
	return s, nil
}

// CheckAddress refuses what cannot be listened on, and what others reach without being meant to; "" is no address. A name
// is not resolved: what it stands for may change, so only localhost passes for a loopback address. dashes are what the
// caller writes before the names of settings.
func CheckAddress(address string, remote bool, dashes string) error {
	if address == "" {
		return nil
	}
	if err := checkAddress(address, remote, dashes); err != nil {
		return fmt.Errorf("%s%s: %q: %w", dashes, Setting, address, err)
	}
	return nil
}

func checkAddress(address string, remote bool, dashes string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("must be host:port, such as 127.0.0.1:9542: %w", err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return errors.New("the port must be a number from 0 to 65535")
	}
	ip, err := netip.ParseAddr(host)
	loopback := host == "localhost" || (err == nil && ip.Unmap().IsLoopback())
	if !loopback && !remote {
		return fmt.Errorf("other machines can reach this address, and the metrics name tenants, tiers and policies: choose a loopback address such as 127.0.0.1:%s, or set %s%s", port, dashes, RemoteSetting)
	}
	return nil
}

// Run listens until ctx ends, or until the process is superseded, and at the end of ctx logs the last numbers, unless
// the process is [Starting] still: why it could not begin is all that there is to tell of it. That Run cannot listen is
// no error: a process without metrics still decides, so it says so and goes on trying.
func (s *Server) Run(ctx context.Context) error {
	if s.options.Address != "" {
		s.listen(ctx)
	}
	<-ctx.Done()
	if State(s.state.Load()) != Starting {
		s.logLast()
	}
	return nil
}

// listen serves until ctx ends or the process is superseded, beginning anew whenever listening fails.
func (s *Server) listen(ctx context.Context) {
	var config net.ListenConfig
	failures := 0
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		listener, err := config.Listen(ctx, "tcp", s.options.Address)
		if err == nil {
			pause, failures = firstPause, 0
			if err = s.serve(ctx, listener); err == nil {
				return
			}
		}
		if failures++; failures == patience {
			s.options.Log.Warn("metrics are unavailable: cannot listen on their address; retrying",
				"setting", Setting, "address", s.options.Address, "error", err)
		}
		if !s.wait(ctx, pause) {
			return
		}
	}
}

// wait waits for between half of pause and all of it; false when there is nothing to wait for any more.
func (s *Server) wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause/2 + rand.N(pause/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-s.options.Superseded:
		return false
	case <-timer.C:
		return true
	}
}

// serve answers what comes to listener. At the end of ctx, or when the process is superseded, it closes the listener
// at once and lets running requests finish. An error means that the listener failed.
func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	address := listener.Addr().String()
	s.options.Log.Info("serving metrics", "address", address, "paths", "/metrics /healthz /readyz")

	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      responseTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(s.options.Log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve metrics: %w", errors.Join(err, server.Close()))
	case <-ctx.Done():
	case <-s.options.Superseded:
		s.options.Log.Info("metrics are served by the process that has taken over", "address", address)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastScrapes)
	defer cancel()
	err := server.Shutdown(last)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		s.options.Log.Warn("closed connections with unfinished requests for metrics", "address", address, "error", err)
	}
	return nil
}

// routes are what is answered; ServeMux knows HEAD for every GET, and refuses all else.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.options.Metrics, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.options.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // a scrape without some numbers is better than none
		Registry:            s.options.Metrics.registry,
		MaxRequestsInFlight: scrapesAtOnce,
		EnableOpenMetrics:   true,
	}))
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	return mux
}
