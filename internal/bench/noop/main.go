// The command noop is a baseline for the benchmarks of the socket. It has the plugin's server, and buckets that admit
// everything. With a config without limits it asks Kong nothing and sets no headers. With limits it asks and sets the
// same as the plugin, but spends nothing. It has no observers.
package main

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/phase"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func main() {
	prefix := flag.String("kong-prefix", "/usr/local/kong", "directory of the socket")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	err := serve(ctx, filepath.Join(*prefix, "noop.socket"), log)
	stop()
	if err != nil {
		log.Error("the server ends", "error", err)
		os.Exit(1)
	}
}

// serve serves Kong at a socket until ctx ends.
func serve(ctx context.Context, socket string, log *slog.Logger) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	log.Info("serving Kong", "socket", socket)
	return phase.New(phase.Options{Log: log, Build: build}).Serve(ctx, listener)
}

// build implements phase.Build.
func build(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
	decider := &admit.Decider{Buckets: fullBuckets{}, Renderer: response.New(config, nil)}
	decider.Policies.Store(plan)
	return decider, nil, nil
}

// fullBuckets are buckets that are always full.
type fullBuckets struct{}

// Take implements admit.Buckets.
func (fullBuckets) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{
			Status: limit.Status{Used: 1, Remaining: bounds[i].Policy.Limit.Spec().Quantity - 1, Reset: limit.Second},
			Source: decision.Memory, Charged: true,
		}
	}
	return nil
}
