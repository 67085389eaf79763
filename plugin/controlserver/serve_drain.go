package controlserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

// draining is a server that can end without dropping a request.
type draining struct {
	http    *http.Server
	monitor *metrics.Server
	beside  []func(context.Context) error // what runs as long as the server does, until its context ends
	log     *slog.Logger
	begun   atomic.Bool
}

// newDraining stands before the handler of a server.
func newDraining(server *http.Server, monitor *metrics.Server, log *slog.Logger) *draining {
	d := &draining{http: server, monitor: monitor, log: log}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.begun.Load() {
			// A request may be on its way over a connection that is idle when it is closed: so clients close them.
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
	// A client that has gone needs no answer.
	_, _ = io.WriteString(w, `{"title":"Service Unavailable","status":503,"detail":"the process is shutting down"}`)
}

// drain keeps answering for a time, while /readyz fails and connections are closed after each answer.
func (d *draining) drain(length time.Duration) {
	d.begun.Store(true)
	d.monitor.SetState(metrics.Draining)
	d.log.Info("shutting down: requests are still answered, /readyz fails", "seconds", length.Seconds())
	time.Sleep(length)
}

// shutDown closes the address, and returns when running requests have ended. An error means that some were cut off.
func (d *draining) shutDown(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := d.http.Shutdown(ctx); err != nil {
		return errors.Join(err, d.http.Close())
	}
	return nil
}
