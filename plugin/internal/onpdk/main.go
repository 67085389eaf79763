// The command onpdk is what the benchmarks of the socket compare the plugin with: the same path, with the same buckets
// and metrics in this process, behind go-pdk's own server and client. It knows the strategy local only, and asks Kong
// only for what names a consumer and a route.
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

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
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

func now() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// process is what all instances have in common.
type process struct {
	buckets   *memory.Store
	metrics   *metrics.Metrics
	exchanges sync.Pool // of *admit.Exchange
}

// instance is one plugin config in one worker. go-pdk makes one for each, and decodes the config into it.
type instance struct {
	process     *process
	path        *admit.Path
	routeScoped bool
	route       atomic.Pointer[string] // learnt with the first event of a route-scoped instance
}

// UnmarshalJSON compiles a config.
func (in *instance) UnmarshalJSON(raw []byte) error {
	var snapshot *policy.Plan
	config, _, err := schema.Parse(raw, func(c schema.Config) (err error) {
		snapshot, err = policy.FromConfig(c)
		return err
	})
	if err != nil {
		return err
	}
	if config.Strategy != schema.StrategyLocal {
		return fmt.Errorf("strategy: %q is not known here", config.Strategy)
	}
	in.path = &admit.Path{
		Now: now, Elapsed: now, Buckets: in.process.buckets,
		Renderer: response.New(config, rand.Int64N), Observers: []admit.Observer{in.process.metrics},
	}
	in.path.Policies.Store(snapshot)
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
	if err := in.path.Admit(context.Background(), &asker{in, kong}, x); err != nil {
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

// asker asks one question after another, which is all that go-pdk's client can do. It implements admit.FactSource.
type asker struct {
	*instance
	kong *pdk.PDK
}

var errUnknownFact = errors.New("a fact is wanted that this plugin does not ask for")

// Read implements admit.FactSource.
func (a *asker) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&^(identity.ConsumerFact|identity.RouteFact|identity.ContentTypeFact) != 0 {
		return errUnknownFact
	}
	if facts&identity.ConsumerFact != 0 {
		c, err := a.kong.Client.GetConsumer()
		if err != nil {
			return fmt.Errorf("read the consumer: %w", err)
		}
		req.Consumer = identity.Consumer{ID: c.Id, Username: c.Username, CustomID: c.CustomId, Tags: c.Tags}
	}
	if facts&identity.ContentTypeFact != 0 {
		var err error
		if req.ContentType, err = a.kong.Request.GetHeader("content-type"); err != nil {
			return fmt.Errorf("read the content type: %w", err)
		}
	}
	if facts&identity.RouteFact != 0 {
		return a.askRoute(req)
	}
	return nil
}

func (a *asker) askRoute(req *identity.Request) error {
	if known := a.route.Load(); known != nil {
		req.Route = *known
		return nil
	}
	route, err := a.kong.Router.GetRoute()
	if err != nil {
		return fmt.Errorf("read the route: %w", err)
	}
	if req.Route = route.Name; a.routeScoped {
		a.route.Store(&route.Name)
	}
	return nil
}
