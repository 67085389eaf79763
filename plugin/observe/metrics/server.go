package metrics

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Setting and RemoteSetting are the names of the settings of a Server's address, as its messages give them.
const (
	Setting       = "metrics-listen"
	RemoteSetting = "metrics-allow-remote"
)

const (
	// retryEvery is the time between two attempts to listen.
	retryEvery = time.Second
	// warnAfter is the number of failed attempts to listen before a warning: the process that this one replaces may need
	// a moment to release the port.
	warnAfter = 3
	// shutdownTime bounds the scrapes that run when the listener is closed.
	shutdownTime = 2 * time.Second

	headerTime   = 2 * time.Second
	requestTime  = 5 * time.Second
	responseTime = 10 * time.Second
	idleTime     = 2 * time.Minute // more than the time between two scrapes
	headerBytes  = 8 << 10
	// maxScrapes bounds concurrent scrapes; beyond it the response is 503.
	maxScrapes = 4
)

// ServerOptions configures a Server. Metrics and Log must be set.
type ServerOptions struct {
	Metrics *Metrics
	// Address is host:port; port 0 selects a free one. "": the server does not listen.
	Address string
	// AllowRemote permits an Address that other machines can reach.
	AllowRemote bool
	// ReadyNeedsStore makes /readyz fail while a central store is degraded. It takes nodes out of rotation that could
	// decide by their fail modes, and all nodes at once if they share the store.
	ReadyNeedsStore bool
	// Superseded is closed when another process replaces this one, and needs its address. nil: never.
	Superseded <-chan struct{}
	Log        *slog.Logger

	headerTime, shutdownTime time.Duration // 0: the constants; for tests
}

// Server serves metrics and health to operators and probes. Make it with NewServer.
type Server struct {
	options ServerOptions
	handler http.Handler
	started time.Time
	state   atomic.Uint32
}

// NewServer returns a server, which does nothing before [Server.Run]. It returns an error for an invalid address.
func NewServer(o ServerOptions) (*Server, error) {
	if err := CheckAddress(o.Address, o.AllowRemote, ""); err != nil {
		return nil, err
	}
	o.headerTime, o.shutdownTime = cmp.Or(o.headerTime, headerTime), cmp.Or(o.shutdownTime, shutdownTime)
	s := &Server{options: o, started: time.Now()}
	s.handler = s.routes()
	return s, nil
}

// CheckAddress returns an error for an address that cannot be listened on, or that other machines can reach unless
// remote is set; "" is no address. It does not resolve names, whose addresses may change: only localhost counts as
// loopback. dashes precede the names of settings in errors.
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
		return fmt.Errorf("other machines can reach this address, and the metrics name tenants, tiers and policies: "+
			"choose a loopback address such as 127.0.0.1:%s, or set %s%s", port, dashes, RemoteSetting)
	}
	return nil
}

// Run listens until ctx ends, or until the process is superseded. If it cannot listen it logs a warning and retries: a
// process without metrics still decides.
func (s *Server) Run(ctx context.Context) error {
	if s.options.Address == "" {
		return nil
	}
	var config net.ListenConfig
	for failures := 0; ; {
		listener, err := config.Listen(ctx, "tcp", s.options.Address)
		if err == nil {
			failures = 0
			if err = s.serve(ctx, listener); err == nil {
				return nil
			}
		}
		if failures++; failures == warnAfter {
			s.options.Log.Warn("listening for metrics failed: they are unavailable; retrying",
				"setting", Setting, "address", s.options.Address, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.options.Superseded:
			return nil
		case <-time.After(retryEvery):
		}
	}
}

// serve answers requests. At the end of ctx, or when the process is superseded, it closes the listener at once and lets
// running requests finish. It returns an error if the listener fails.
func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	address := listener.Addr().String()
	s.options.Log.Info("serving metrics", "address", address, "paths", "/metrics /healthz /readyz")

	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: s.options.headerTime,
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
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.shutdownTime)
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

// routes returns the handler. ServeMux answers HEAD for every GET, and denies other methods.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.options.Metrics, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.options.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // a scrape without some numbers is better than none
		Registry:            s.options.Metrics.registry,
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true,
	}))
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	return mux
}

// State names a phase of the process.
type State uint32

// The states. The zero value means that the process does not serve yet.
const (
	Starting State = iota
	Serving
	Draining
)

func (s State) String() string { return [...]string{"starting", "serving", "draining"}[s] }

// SetState sets the state that /readyz reports.
func (s *Server) SetState(state State) { s.state.Store(uint32(state)) }

// healthBody is the response body of /healthz. The process is alive, whatever the state of its stores.
type healthBody struct {
	Version        string   `json:"version"`
	UptimeSeconds  float64  `json:"uptime_seconds"`
	DegradedStores []string `json:"degraded_stores"`
}

type readinessBody struct {
	Ready           bool     `json:"ready"`
	State           string   `json:"state"`
	DegradedStores  []string `json:"degraded_stores"`
	ReadyNeedsStore bool     `json:"ready_needs_store"`
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	s.writeJSON(w, http.StatusOK, healthBody{
		Version:        s.options.Metrics.version,
		UptimeSeconds:  time.Since(s.started).Round(time.Millisecond).Seconds(),
		DegradedStores: s.options.Metrics.sources.degraded(),
	})
}

// readyz reports whether the process should get traffic. It names degraded stores. A degraded store makes the process
// unready only with ReadyNeedsStore: otherwise the fail modes decide.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	sources := &s.options.Metrics.sources
	state, degraded := State(s.state.Load()), sources.degraded()
	answer := readinessBody{
		Ready:           state == Serving && !(s.options.ReadyNeedsStore && len(degraded) > 0),
		State:           state.String(),
		DegradedStores:  degraded,
		ReadyNeedsStore: s.options.ReadyNeedsStore,
	}
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
	}
	s.writeJSON(w, status, answer)
}

// degraded returns the names of the degraded stores, never nil.
func (s *Sources) degraded() []string {
	names := []string{}
	if s.Stores == nil {
		return names
	}
	for _, store := range s.Stores() {
		if store.Degraded {
			names = append(names, labelValue(store.Name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s *Server) writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(document); err != nil {
		s.options.Log.Debug("writing a health response failed", "error", err)
	}
}
