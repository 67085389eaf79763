package phase

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
)

// instance is one plugin config in one worker of Kong.
type instance struct {
	*compiled
	configs *configs

	routeScoped bool
	route       atomic.Pointer[route] // of a route-scoped instance, once a request has needed it
	usedAt      atomic.Int64          // when it had an event, at most useStep before its last one
}

// route holds the facts that an instance keeps about its route.
type route struct {
	name      string
	grpc      bool          // it has a gRPC protocol
	expiresAt time.Duration // on the server's clock
}

// routeFresh is how long a route is kept. Kong starts an instance anew when its plugin's config changes, but not when
// its route gets another name or other protocols.
const routeFresh = time.Minute

// fillRoute sets the route of req and reports whether the instance has it, so that no question is needed.
func (in *instance) fillRoute(req *identity.Request, now time.Duration) bool {
	r := in.route.Load()
	if r == nil || now >= r.expiresAt {
		return false
	}
	req.Route, req.GRPCRoute = r.name, r.grpc
	return true
}

// keepRoute keeps the route that Kong answered at now, if the instance is route-scoped. It does not keep an empty
// answer, which names no route.
func (in *instance) keepRoute(req *identity.Request, now time.Duration) {
	if !in.routeScoped || req.Route == "" {
		return
	}
	in.route.Store(&route{req.Route, req.GRPCRoute, now + routeFresh})
}

// access decides a request and answers it.
func (in *instance) access(ctx context.Context, e *wire.Event) error {
	s := sessionOf(e)
	s.event, s.instance = e, in
	in.configs.recordUse(in, e.Began())
	var err error
	if in.decider == nil {
		err = admit.Unconfigured(ctx, s, in.deny, &s.exchange)
	} else {
		err = in.decider.Admit(ctx, s, &s.exchange)
	}
	if err != nil {
		err = fmt.Errorf("decide a request: on_internal_error applies: %w", err)
	}
	s.respond()
	return err
}

// fault answers a request whose access has panicked.
func (in *instance) fault(e *wire.Event) {
	s := sessionOf(e)
	if in.decider == nil {
		admit.UnconfiguredFault(in.deny, &s.exchange)
	} else {
		in.decider.Fault(&s.exchange)
	}
	s.respond()
}
