// The command onpdk is a baseline for the benchmarks of the socket: the same path, with buckets and metrics of this
// process, behind go-pdk's server and client. It supports the strategy local only, and reads only consumers, routes and
// content types.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Kong/go-pdk"
	"github.com/Kong/go-pdk/server"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const version = "0.1.0"

func main() {
	shared := &process{buckets: memory.New(memory.Options{Now: now}), metrics: metrics.New(version, metrics.Sources{})}
	if err := server.StartServer(func() any { return &instance{process: shared} }, version, schema.Priority); err != nil {
		slog.Error("serve", "error", err)
		os.Exit(1)
	}
}

// now returns the time of day.
func now() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// process holds the parts that all instances share.
type process struct {
	buckets   *memory.Store
	metrics   *metrics.Metrics
	exchanges sync.Pool // of *admit.Exchange
}

// instance is one plugin config in one worker. go-pdk makes one for each, and decodes the config into it.
type instance struct {
	process     *process
	decider     *admit.Decider
	routeScoped bool
	route       atomic.Pointer[string] // set by the first event of a route-scoped instance
}

// UnmarshalJSON compiles a config.
func (in *instance) UnmarshalJSON(raw []byte) error {
	var plan *resolve.Plan
	config, _, err := schema.Parse(raw, func(c schema.Config) (err error) {
		plan, err = resolve.FromConfig(c)
		return err
	})
	if err != nil {
		return err
	}
	if config.Strategy != schema.StrategyLocal {
		return fmt.Errorf("strategy: %q is not supported here", config.Strategy)
	}
	in.decider = &admit.Decider{
		Now: now, Elapsed: now, Buckets: in.process.buckets,
		Renderer: response.New(config, rand.Int64N), Observers: []admit.Observer{in.process.metrics},
	}
	in.decider.Policies.Store(plan)
	var scope struct {
		RouteID string `json:"route_id"`
	}
	if err := json.Unmarshal(raw, &scope); err != nil {
		return err
	}
	in.routeScoped = scope.RouteID != ""
	return nil
}

// Access decides one request.
func (in *instance) Access(kong *pdk.PDK) {
	x, ok := in.process.exchanges.Get().(*admit.Exchange)
	if !ok {
		x = new(admit.Exchange)
	}
	defer in.process.exchanges.Put(x)
	if err := in.decider.Admit(context.Background(), &kongFacts{in, kong}, x); err != nil {
		slog.Error("decide", "error", err)
	}
	headers := make(map[string][]string, len(x.Response.Headers))
	for _, h := range x.Response.Headers {
		headers[h.Name] = []string{string(h.Value)}
	}
	switch {
	case x.Response.Denied:
		kong.Response.Exit(x.Response.Status, x.Response.Body, headers)
	case len(headers) > 0:
		if err := kong.Response.SetHeaders(headers); err != nil {
			slog.Error("set headers", "error", err)
		}
	}
}

// kongFacts asks one question after another, as go-pdk's client does. It implements admit.FactSource.
type kongFacts struct {
	*instance
	kong *pdk.PDK
}

var errUnknownFact = errors.New("this plugin cannot read one of the facts")

// Read implements admit.FactSource.
func (f *kongFacts) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&^(identity.ConsumerFact|identity.RouteFact|identity.ContentTypeFact) != 0 {
		return errUnknownFact
	}
	if facts&identity.ConsumerFact != 0 {
		c, err := f.kong.Client.GetConsumer()
		if err != nil {
			return fmt.Errorf("read the consumer: %w", err)
		}
		req.Consumer = identity.Consumer{ID: c.Id, Username: c.Username, CustomID: c.CustomId, Tags: c.Tags}
	}
	if facts&identity.ContentTypeFact != 0 {
		var err error
		if req.ContentType, err = f.kong.Request.GetHeader("content-type"); err != nil {
			return fmt.Errorf("read the content type: %w", err)
		}
	}
	if facts&identity.RouteFact != 0 {
		return f.readRoute(req)
	}
	return nil
}

// readRoute sets the route. It asks once if the instance is route-scoped.
func (f *kongFacts) readRoute(req *identity.Request) error {
	if route := f.route.Load(); route != nil {
		req.Route = *route
		return nil
	}
	route, err := f.kong.Router.GetRoute()
	if err != nil {
		return fmt.Errorf("read the route: %w", err)
	}
	if req.Route = route.Name; f.routeScoped {
		f.route.Store(&route.Name)
	}
	return nil
}
