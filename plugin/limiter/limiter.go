package limiter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ErrClosed is the error of a request to a limiter that is closed.
var ErrClosed = errors.New("the limiter is closed")

// Options configures a Limiter; zero fields have defaults. All nodes and programs that share a budget must have the
// same values of those that are settings of the plugin server.
type Options struct {
	// Config has the policies, and where their buckets are. Its zero fields mean their defaults. Parse reads one from YAML
	// or JSON.
	Config schema.Config
	// Database is a connection string of Postgres, a URL or pairs of key=value: its policies and overrides are in force
	// too, and usage is reported. Postgres's environment variables and password file provide what it omits. Default: the
	// config alone decides, and no usage is reported.
	Database string
	// Log gets a line when Redis or Postgres fails and recovers, for errors of decisions, and for what limits in mode log
	// would deny; at level debug also the lines of go-redis, which has one logger for the whole process. Default: nothing
	// is logged.
	Log *slog.Logger
	// Observe is called with every request and its decision, for example to count them. It must not block, nor change or
	// keep the slices of the decision.
	Observe func(Request, Decision)
	// Now is the clock of this process, for tests and simulations. It must not go back, and Redis keeps its own.
	// Default: the clock of the system, whose steps do not move buckets.
	Now func() time.Time

	Budget     time.Duration // bounds the wait of one request for Redis, whatever the config allows; default 1 s
	MaxBuckets int           // bounds the buckets in this process, about 250 bytes each; default one million
	Nodes      int           // the fewest nodes that share a limit while Redis is unavailable; default 1
	// LeaseShare is the percentage of a limit that all nodes together lease from Redis, at most 5; default 2; negative:
	// none.
	LeaseShare int

	// MaxAddresses bounds the client addresses for which this program keeps buckets in Redis, about 230 bytes each.
	// Further ones share the bucket of their /24 or /48, or are counted in this process. Default 250,000; negative: no
	// bound.
	MaxAddresses int
	// NewAddresses bounds how many addresses get such a bucket per second. Default 1000; negative: no bound.
	NewAddresses int
}

// Limiter limits requests. It is safe for concurrent use. Make it with New.
type Limiter struct {
	engine    *engine.Engine
	decider   *admit.Decider
	buckets   store.Store // of the decider
	log       *slog.Logger
	observe   func(Request, Decision)
	exchanges sync.Pool    // of *exchange
	loggedAt  atomic.Int64 // the second of the last log line of logUndecided

	closed atomic.Bool
	stop   context.CancelFunc
	ended  chan struct{} // closed when the background has ended
	err    error         // of the background, once ended is closed
}

// exchange is the memory of one request.
type exchange struct {
	admit.Exchange
	request admit.CallerRequest
}

// rowsWait bounds the wait of New for the rows of the database. Tests change it.
var rowsWait = time.Second

// New makes a limiter and starts its background work, which Close ends. It does not wait for Redis, and for the rows of
// a database at most a second. If the config has faults, the error is of type [schema.Faults].
func New(o Options) (*Limiter, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.LeaseShare = max(cmp.Or(o.LeaseShare, lease.DefaultSharePct), 0); o.LeaseShare > lease.MaxSharePct {
		return nil, fmt.Errorf("lease share %d: must be at most %d percent", o.LeaseShare, lease.MaxSharePct)
	}
	if min(int64(o.Budget), int64(o.MaxBuckets), int64(o.Nodes)) < 0 {
		return nil, errors.New("the options Budget, MaxBuckets and Nodes must not be negative")
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	config := o.Config.WithDefaults()
	config.UsageOnly = false // a program has requests decided
	plan, err := resolve.ForCallers(config)
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		log: o.Log, observe: o.Observe, ended: make(chan struct{}),
		exchanges: sync.Pool{New: func() any { return new(exchange) }},
	}
	l.engine = engine.New(context.Background(), engine.Options{Log: o.Log, Now: o.Now, Buckets: bucket.Options{
		Budget: cmp.Or(o.Budget, time.Second), MaxBuckets: o.MaxBuckets, Nodes: o.Nodes, LeaseShare: o.LeaseShare,
		MaxAddresses: cmp.Or(o.MaxAddresses, addresses.DefaultMost),
		NewAddresses: cmp.Or(o.NewAddresses, addresses.DefaultRate),
	}})
	if o.Database != "" {
		if err := l.follow(o.Database); err != nil {
			return nil, err
		}
	}
	if l.decider, _, err = l.engine.Build(config, plan); err != nil {
		return nil, err
	}
	if l.buckets, _, err = l.engine.Stores.Open(&config); err != nil { // closed when the engine ends, as the decider's
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() {
		defer close(l.ended)
		l.err = l.engine.Run(ctx)
	}()
	l.engine.AwaitRows(ctx, rowsWait)
	return l, nil
}

// follow makes the engine follow the rows of a database, and report usage to it, as a node of the plugin does.
func (l *Limiter) follow(database string) error {
	host, err := process.NodeName("hostname")
	if err != nil {
		return err
	}
	l.engine.Mirror = true
	source := policysync.Source{DSN: database}
	if err := l.engine.FollowRows(policysync.Options{Source: source, Node: host + "/limiter"}); err != nil {
		return err
	}
	l.engine.CountUsage()
	return nil
}

// TryAcquire decides a request, and spends its cost if it is admitted. It does not wait until there is room. An error
// means that the limits could not decide; Allowed is set all the same, as the package comment explains.
func (l *Limiter) TryAcquire(ctx context.Context, r Request) (Decision, error) {
	x := l.exchange()
	defer l.exchanges.Put(x)
	if err := ctx.Err(); err != nil {
		l.deny(x)
		return l.newDecision(r, x), fmt.Errorf("acquire: %w", err)
	}
	r.setFacts(&x.request)
	err := l.decide(&r, x)
	return l.newDecision(r, x), err
}

// Decide decides a request like TryAcquire, whatever became of its caller, and logs errors in place of returning them.
// It is for middleware: the decision has all that a client reads.
func (l *Limiter) Decide(r Request) Decision {
	d, err := l.TryAcquire(context.Background(), r)
	if err != nil {
		l.logUndecided(err)
	}
	return d
}

func (l *Limiter) exchange() *exchange { return l.exchanges.Get().(*exchange) }

// decide decides a request whose facts are in x. It ignores the caller's context: if that ended a request to Redis, the
// circuit breaker would count Redis as slow.
func (l *Limiter) decide(r *Request, x *exchange) error {
	if r.Cost < 0 || r.Cost > MaxCost {
		l.deny(x)
		return fmt.Errorf("acquire: cost %d: must be from 0 to %d tokens", r.Cost, int64(MaxCost))
	}
	if l.closed.Load() {
		l.decider.Fault(&x.Exchange)
		return fmt.Errorf("acquire: %w", ErrClosed)
	}
	if err := l.decider.Admit(context.Background(), &x.request, &x.Exchange); err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	return nil
}

// deny denies an invalid or cancelled request, whatever on_internal_error says.
func (l *Limiter) deny(x *exchange) {
	x.Request.Reset()
	x.Decision.Reset()
	x.Decision.Deny(decision.InternalFault)
	l.decider.Renderer.Render(&x.Decision, false, &x.Response)
}

// logUndecided logs the error of a request, at most once a second.
func (l *Limiter) logUndecided(err error) {
	second := time.Now().Unix()
	if last := l.loggedAt.Load(); last != second && l.loggedAt.CompareAndSwap(last, second) {
		l.log.Error("a request could not be decided", "error", err)
	}
}

// Close reports the last usage, releases the leases, removes this node from those that share the limits, and closes
// connections. It waits for that until ctx ends; the work goes on then. on_internal_error decides later requests, so
// close the limiter after its callers. Close may be called again.
func (l *Limiter) Close(ctx context.Context) error {
	l.closed.Store(true)
	l.stop()
	select {
	case <-l.ended:
		return l.err
	default:
	}
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("close the limiter: %w", ctx.Err())
	}
}

// Parse returns the config of a text in YAML or JSON, as under config: in a decK file, with all defaults set. If the
// config has faults, the error is of type [schema.Faults] and holds every fault with its path.
func Parse(text []byte) (schema.Config, error) {
	if !json.Valid(text) {
		var document any
		if err := yaml.Unmarshal(text, &document); err != nil {
			return schema.Config{}, fmt.Errorf("parse the config: %w", err)
		}
		var err error
		if text, err = json.Marshal(document); err != nil {
			return schema.Config{}, fmt.Errorf("parse the config: its keys must be strings: %w", err)
		}
	}
	config, _, err := schema.Parse(text, func(c schema.Config) error {
		_, err := resolve.FromConfig(c) // has faults that the schema cannot find
		return err
	})
	return config, err
}

// MaxCost bounds the cost of one request, in tokens.
const MaxCost = identity.MaxCallerCost

// Request has the facts of one request. All fields may be empty; the zero value is an anonymous request. Names may be
// any bytes: no name can address the bucket of another.
type Request struct {
	// Org is the tenant. Without one, on_missing_tenant of the config decides.
	Org string
	// User is a user of Org. Without one, on_missing_user decides about limits per user.
	User string
	// Tier is the tier of Org, unless policies of a database have one. An unknown tier is the default tier.
	Tier string
	// Credential is the id of the caller's credential, not the secret.
	Credential string
	// IP is the client's address. All clients without an address count as one.
	IP string

	// Endpoint is METHOD /path, such as "POST /records/7", or the name of a route. A pattern, such as
	// "POST /records/{id}", stands for the requests that it covers. A path alone has the method Method.
	Endpoint string
	// Method and Path are used if Endpoint is empty or the name of a route. Without a method, patterns of any method
	// match. Limits match the path as Kong's router does:
	// without query, decoded, without dots and double slashes.
	Method, Path string

	// Cost is how many tokens the request spends of every limit that has no cost of its own, at most MaxCost. 0: the cost
	// in the config, which is 1 unless costs names the endpoint.
	Cost int64

	// Model and Provider are those of the language model that the request asks for, if it is known. Without, every limit
	// that could match reserves.
	Model, Provider string

	// GRPC says that the client speaks gRPC. Headers of a denial then have grpc-status and grpc-message, and it has no
	// Body. Only a request with the Method POST can be one.
	GRPC bool
}

// setFacts sets facts to those of the request.
func (r *Request) setFacts(facts *admit.CallerRequest) {
	method, path, route := admit.Target(r.Endpoint)
	method = cmp.Or(method, r.Method)
	if path == "" {
		path = r.Path
	}
	*facts = admit.CallerRequest{
		Caller: identity.Caller{
			Tenant: r.Org, User: r.User, Tier: r.Tier, Cost: r.Cost, Model: r.Model, Provider: r.Provider,
		},
		Credential: r.Credential, IP: r.IP,
		Method: method, Path: path, Route: route,
	}
	if r.GRPC {
		facts.ContentType = "application/grpc"
	}
}
