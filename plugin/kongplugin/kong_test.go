package kongplugin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongwire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(noopSocket); socket != "" { // one of BenchmarkSocket's processes
		os.Exit(serveNoop(socket))
	}
	leaktest.Main(m)
}

// bucketsFunc is admit.Buckets as a function.
type bucketsFunc func(bounds []policy.Bound, statuses []decision.Status) error

func (f bucketsFunc) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return f(bounds, statuses)
}

// observerFunc is admit.Observer as a function.
type observerFunc func(*decision.Decision)

func (f observerFunc) Observe(d *decision.Decision) { f(d) }

// plenty admits everything.
func plenty(bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{Status: limit.Status{Remaining: 7, Reset: 1_000_000}, Source: decision.Memory}
	}
	return nil
}

// nothing denies everything.
func nothing(bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{Wait: 3 * limit.Second, Status: limit.Status{Reset: 3_000_000}, Source: decision.Memory}
	}
	return nil
}

// harness is a server under test, its socket and its log.
type harness struct {
	*Server
	t     testing.TB
	path  string
	paths atomic.Int64 // built and not released
	log   *lines
	stop  func() error
}

// lines is a log that can be waited for.
type lines struct{ ch chan string }

func (l *lines) Write(p []byte) (int, error) {
	select {
	case l.ch <- string(p):
	default:
	}
	return len(p), nil
}

func (l *lines) await(t *testing.T, part string) string {
	t.Helper()
	for {
		select {
		case line := <-l.ch:
			if strings.Contains(line, part) {
				return line
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no log line contains %q", part)
		}
	}
}

func serve(t testing.TB, buckets bucketsFunc, change func(*Options)) *harness {
	t.Helper()
	h := &harness{t: t, path: filepath.Join(t.TempDir(), "s"), log: &lines{make(chan string, 1000)}}
	options := Options{
		Log: slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Build: func(config schema.Config, plan *policy.Plan) (*admit.Path, func(), error) {
			h.paths.Add(1)
			path := &admit.Path{
				Buckets:    buckets,
				Renderer:   response.New(config, nil),
				FailClosed: config.OnInternalError == schema.FailClosed,
			}
			path.Policies.Store(plan)
			return path, func() { h.paths.Add(-1) }, nil
		},
	}
	if change != nil {
		change(&options)
	}
	h.Server = New(options)
	listener, err := net.Listen("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, listener) }()
	stopped := false
	h.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("Serve did not return")
		}
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// writes returns how many writes to sockets the server has done.
func (h *harness) writes() uint64 { return h.Counters().Writes }

// questions returns how many questions the server has sent.
func (h *harness) questions() uint64 { return h.Counters().Questions }

// dial connects a worker of Kong.
func (h *harness) dial() *kongtest.Worker {
	h.t.Helper()
	return kongtest.Dial(h.t, h.path)
}
