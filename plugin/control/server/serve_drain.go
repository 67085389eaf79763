package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// drainingServer is a server that ends without dropping a request.
type drainingServer struct {
	http       *http.Server
	monitor    *metrics.Server
	background []func(context.Context) error // tasks that run until their context ends, as long as the server
	log        *slog.Logger
	begun      atomic.Bool
}

// newDraining wraps the handler of a server.
func newDraining(server *http.Server, monitor *metrics.Server, log *slog.Logger) *drainingServer {
	d := &drainingServer{http: server, monitor: monitor, log: log}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.begun.Load() {
			// A request may arrive on an idle connection just as the server closes it, so let clients close connections.
			w.Header().Set("Connection", "close")
			if r.URL.Path == "/readyz" {
				notReady(w)
				return
			}
		}
		// A request whose answer can no longer be written is canceled.
		ctx, cancel := context.WithTimeout(r.Context(), server.WriteTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
	return d
}

func notReady(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusServiceUnavailable)
	// The client may have disconnected.
	_, _ = io.WriteString(w, `{"title":"Service Unavailable","status":503,"detail":"the process is shutting down"}`)
}

// drain serves for a time while /readyz fails and connections are closed after each response.
func (d *drainingServer) drain(length time.Duration) {
	d.begun.Store(true)
	d.monitor.SetState(metrics.Draining)
	d.log.Info("shutting down: requests are still answered, /readyz fails", "seconds", length.Seconds())
	time.Sleep(length)
}

// shutDown closes the address and waits for running requests. It returns an error if it aborted some of them.
func (d *drainingServer) shutDown(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := d.http.Shutdown(ctx); err != nil {
		return errors.Join(err, d.http.Close())
	}
	return nil
}
