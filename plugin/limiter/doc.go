// Package limiter limits the requests of a Go program by tenant, user, credential, address and endpoint, with the same
// policies and decisions as the Kong plugin, and with the same buckets if both use one Redis.
//
// # Use
//
// The policies are a config, written as for the plugin, in YAML, JSON or Go:
//
//	config, err := limiter.Parse(text)
//	l, err := limiter.New(limiter.Options{Config: config})
//	defer l.Close(ctx)
//
// Decide each request before the work:
//
//	d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme", User: "u_42", Endpoint: "POST /records"})
//	if !d.Allowed {
//		return fmt.Errorf("try again in %v", d.RetryAfter)
//	}
//	defer d.Release()
//
// Release gives back what limits with the algorithm concurrency count: requests at once. [Decision.Settle] does too,
// and says how many tokens the request has really used: a limit with settle charges these in place of what it has
// reserved.
//
// Or wrap an HTTP handler, which then sends the headers and the 429 that the plugin sends, and releases at its end:
//
//	identify := func(r *http.Request) limiter.Request { return limiter.Request{Org: orgOf(r)} }
//	http.ListenAndServe(address, l.Middleware(identify)(handler))
//
// Package grpclimit, in a folder below, has the same for gRPC.
//
// # One budget for Kong and Go
//
// A config with strategy redis keeps its buckets in Redis. The key of a bucket is made of the config's namespace, the
// name of the limit, and the tenant, user or endpoint that it counts. So a program and a Kong node with the same
// namespace, limits and Redis spend one budget. The config's tenant_from, user_from, tier_from and cost_header have no
// effect here, because a [Request] has these values, and usage_only has none. Limits per endpoint count by the
// endpoint's pattern; if no policy has one, they count by the route of the Request, which must have the route's name in
// Kong.
//
// Each request costs Redis one round trip. Busy limits need none: the program leases tokens ahead of need and spends
// them locally. That never admits more than the limit, and at most 2 percent fewer. With accuracy exact every request
// goes to Redis. [Limiter.Close] releases the leases.
//
// # All or nothing
//
// If every limit that applies has room, all are spent, else none: a denied request costs nothing. The [Decision] names
// the limit that binds, and has every limit in Statuses.
//
// # When something fails
//
// Without Redis each limit's fail_mode decides: open admits, closed denies, local counts in this process with its share
// of the limit. None of that is an error. TryAcquire returns an error if the limits could not decide; Allowed is set
// all the same:
//
//   - The context has ended, or the request is invalid (a negative cost): it is denied, and nothing is spent.
//   - The limiter is closed, or has failed itself: on_internal_error of the config decides, by default to allow.
//
// A request waits for Redis at most redis.read_timeout (50 ms by default) and Options.Budget. A context that ends
// meanwhile does not end the wait: Redis may have spent the tokens already.
//
// # Policies of a database
//
// With Options.Database the program is a node as those of Kong: the policies, prices, tiers and overrides in Postgres
// are in force here within a second of a change, what the program decides and settles is in the usage of its tenants,
// and ratelimit fleet lists it under the name of the host with /limiter/ and a suffix per limiter. The role node of the
// database has the rights for all that. In usage, an endpoint that no pattern covers is the route of its [Request]:
// take these names from the program, not from clients.
//
// [New] waits for the rows, for at most a second. Without them, for example while Postgres is unavailable, the copy
// that nodes keep in the config's Redis is in force, and if there is none, the config alone, until Postgres answers.
// When contact is lost later, the last rows stay in force. Usage waits in memory meanwhile, and [Limiter.Close] tries
// for two seconds to report it.
//
// # What is stable
//
// Within one major version programs that use this package and grpclimit go on to compile and to work: new fields and
// functions are added, and those that are here keep their names, units and meaning. Make structs with the names of
// their fields. The values of Result, Reason and Source are words that stay, and new ones may join them. The same holds
// for the fields of [schema.Config], which are the options of the plugin.
//
// Not stable are the texts of errors and logs, and the form of buckets in Redis: nodes and programs that share a Redis
// should have the same version, or two that follow each other. All other packages of the module change at any time.
package limiter
