// Package limiter limits the requests of a Go program by tenant, user, credential, address and endpoint, with the same
// policies, the same decisions and, if it is told to, the same buckets as the Kong plugin.
//
// # Use
//
// The policies are a config, written as for the plugin, in YAML, JSON or Go:
//
//	config, err := limiter.Parse(text)
//	l, err := limiter.New(limiter.Options{Config: config})
//	defer l.Close(ctx)
//
// Then ask before doing the work:
//
//	d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme", User: "u_42", Endpoint: "POST /records"})
//	if !d.Allowed {
//		return fmt.Errorf("try again in %v", d.RetryAfter)
//	}
//
// or put the limiter in front of an HTTP handler, which then sends the headers that the plugin sends and answers 429 as
// the plugin does:
//
//	identify := func(r *http.Request) limiter.Request { return limiter.Request{Org: orgOf(r)} }
//	http.ListenAndServe(address, l.Middleware(identify)(handler))
//
// # One budget for Kong and Go
//
// A config with strategy redis keeps its buckets in Redis. A bucket is named by the config's namespace, the name of the
// limit and whom it is counted for, so a program and a Kong node whose configs agree in these, and reach the same Redis,
// spend one budget. Only the config's tenant_from, user_from, tier_from and cost_header mean nothing here: a [Request]
// says who it is from. Limits per endpoint are counted by the endpoint's pattern, or, where no policy has one, by the name
// of the route that the Request gives, which then is to be the route's name in Kong.
//
// Each request to Redis is one round trip. Busy limits need none: the program takes tokens ahead of need and spends
// these leases without asking. That never admits more than the limit, and at most 2 percent fewer; with accuracy exact
// every request asks. [Limiter.Close] gives leases back.
//
// # All or nothing
//
// Every limit that applies must have room, and then all of them are spent, else none: a refused request costs nothing.
// The [Decision] names the limit that binds, and tells of every one in Statuses.
//
// # When something fails
//
// Without Redis each limit's fail_mode decides: open admits, closed refuses, local counts in this process with its share
// of the limit. None of that is an error. TryAcquire returns one when nothing could be decided, and Allowed is good to
// act upon all the same:
//
//   - The context has ended, or the request is nonsense (a negative cost): it is not allowed, and nothing is spent.
//   - The limiter is closed, or has failed itself: on_internal_error of the config decides, by default to allow.
//
// A request waits for Redis at most redis.read_timeout (50 ms by default) and Options.Budget. A context that ends
// meanwhile does not cut that short: what was sent may have been spent.
//
// # What does not live here
//
// The path of a request is package admit's, where buckets are kept package bucket'. Reading policies from Postgres is
// the caller's: see [Limiter.Follow].
package limiter
