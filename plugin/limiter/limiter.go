package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/clock"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ErrClosed is the error of a request to a limiter that is closed.
var ErrClosed = errors.New("the limiter is closed")

// Options are what a Limiter needs; zero fields have defaults. Those that the plugin server has as settings are the same
// on all nodes and programs that share a budget.
type Options struct {
	// Config is the policies, and where their buckets are kept. A zero field that has a default means that default, so one
	// built in Go names only what it is about; see Parse for one in YAML or JSON. Mode log is as shadow here: an observer
	// that logs has to be brought along.
	Config schema.Config
	// Log is told when Redis goes away and comes back, and of what could not be decided; at the level debug also what
	// go-redis says, which has one logger for the whole process. Default: nothing is logged.
	Log *slog.Logger
	// Observers are told of every decision, such as one that counts them.
	Observers []admit.Observer

	Budget     time.Duration // the longest that one request waits for Redis, whatever the config allows; default 1 s
	MaxBuckets int           // most buckets in this process, about 250 bytes each; default one million
	Nodes      int           // the fewest nodes that share a limit while Redis is away; default 1
	LeaseShare int           // percent of a limit that all nodes together take from Redis ahead of need, at most 5; default 2; negative: none

	// MaxAddresses is how many client addresses have buckets in Redis by this program at once, about 230 bytes each; further
	// ones share the bucket of their /24 or /48, or are counted in this process. Default 250,000; negative: any number.
	MaxAddresses int
	// NewAddresses is how many new ones a second get such buckets. Default 1000; negative: any number.
	NewAddresses int
}

// Limiter limits requests. It is safe for concurrent use. Make it with New.
type Limiter struct {
	path      *admit.Path
	config    *policy.Plan // without rows
	log       *slog.Logger
	exchanges sync.Pool    // of *exchange
	told      atomic.Int64 // the second in which something undecided was last logged

	closed atomic.Bool
	stop   context.CancelFunc
	ended  chan struct{} // closed when nothing runs any more
	err    error         // of what ran, once ended is closed
}

// exchange is the memory of one request.
type exchange struct {
	admit.Exchange
	known admit.Known
}

// New makes a limiter and starts what it does in the background, until Close: forgetting buckets that mean nothing any
// more, and watching Redis, for which it does not wait. The error is about the config, of type [schema.Faults] where the
// config itself is at fault.
func New(o Options) (*Limiter, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Budget = cmp.Or(o.Budget, time.Second)
	if o.LeaseShare = max(cmp.Or(o.LeaseShare, lease.DefaultSharePct), 0); o.LeaseShare > lease.MaxSharePct {
		return nil, fmt.Errorf("lease share %d: must be at most %d percent", o.LeaseShare, lease.MaxSharePct)
	}
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	config := o.Config.WithDefaults()
	snapshot, err := policy.FromConfig(admit.ForKnown(config))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	l := &Limiter{
		path: &admit.Path{
			Now:      func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) },
			Elapsed:  func() limit.Micros { return limit.Micros(time.Since(began).Microseconds()) },
			Renderer: response.New(config, rand.Int64N), Observers: o.Observers,
			FailClosed: config.OnInternalError == schema.FailClosed,
		},
		config: snapshot, log: o.Log, ended: make(chan struct{}),
		exchanges: sync.Pool{New: func() any { return new(exchange) }},
	}
	l.path.Policies.Store(snapshot)
	if err := l.start(&config, &o); err != nil {
		return nil, err
	}
	return l, nil
}

// start opens the buckets of a config, and begins to look after them.
func (l *Limiter) start(config *schema.Config, o *Options) error {
	ctx, stop := context.WithCancel(context.Background())
	all := bucket.New(ctx, bucket.Options{
		Now: clock.New().Now, Elapsed: l.path.Elapsed, Budget: o.Budget, Log: o.Log,
		MaxBuckets: o.MaxBuckets, Nodes: o.Nodes, LeaseShare: o.LeaseShare,
		MaxAddresses: o.MaxAddresses, NewAddresses: o.NewAddresses,
	})
	group, ctx := errgroup.WithContext(ctx)
	var err error
	l.path.Buckets, _, err = all.Open(config) // closed when all ends
	if err == nil && config.MetaLimit > 0 {
		own := memory.New(memory.Options{Now: l.path.Now, MaxBuckets: o.MaxBuckets})
		if l.path.Meta, err = admit.NewMeta(config.MetaLimit, config.Namespace, own); err == nil {
			group.Go(func() error { return own.Run(ctx) })
		}
	}
	l.stop = stop
	if err != nil {
		stop()
	}
	group.Go(func() error { return all.Run(ctx) })
	if err != nil {
		return errors.Join(err, group.Wait())
	}
	go func() {
		defer close(l.ended)
		l.err = group.Wait()
	}()
	return nil
}

// TryAcquire decides about a request, and spends its cost if it is allowed. It does not wait until there is room. An
// error means that nothing could be decided; Allowed then says what to do all the same, as the package comment tells.
func (l *Limiter) TryAcquire(ctx context.Context, r Request) (Decision, error) {
	x := l.exchange()
	defer l.exchanges.Put(x)
	if err := ctx.Err(); err != nil {
		l.refuse(x)
		return newDecision(&x.Exchange), fmt.Errorf("acquire: %w", err)
	}
	r.tell(&x.known)
	err := l.decide(&r, x)
	return newDecision(&x.Exchange), err
}

func (l *Limiter) exchange() *exchange { return l.exchanges.Get().(*exchange) }

// decide decides about a request that was told to x. Whoever asks may go away meanwhile; that is not for the buckets to
// know, or a Redis would be held for slow whose callers are impatient.
func (l *Limiter) decide(r *Request, x *exchange) error {
	if err := r.fault(); err != nil {
		l.refuse(x)
		return fmt.Errorf("acquire: %w", err)
	}
	if l.closed.Load() {
		l.path.Fault(&x.Exchange)
		return fmt.Errorf("acquire: %w", ErrClosed)
	}
	if err := l.path.Admit(context.Background(), &x.known, &x.Exchange); err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	return nil
}

// refuse answers a request that nobody should have made, whatever on_internal_error says: it must buy nothing.
func (l *Limiter) refuse(x *exchange) {
	x.Request.Reset()
	x.Decision.Reset()
	x.Decision.Deny(decision.InternalFault)
	l.path.Renderer.Render(&x.Decision, false, &x.Response)
}

// complain logs what could not be decided, once a second at most.
func (l *Limiter) complain(err error) {
	second := time.Now().Unix()
	if last := l.told.Load(); last != second && l.told.CompareAndSwap(last, second) {
		l.log.Error("a request could not be decided", "error", err)
	}
}

// Follow puts policies, tiers and overrides from a database beside the config from now on, as the plugin does; nil: none.
// Requests that have begun are decided by those before. The faults are rows that cannot be followed under this config.
func (l *Limiter) Follow(snapshot *policy.Snapshot) []policy.Fault {
	if snapshot == nil {
		l.path.Policies.Store(l.config)
		return nil
	}
	both := l.config.With(snapshot)
	l.path.Policies.Store(both)
	return both.Faults()
}

// Close gives leases back, takes leave of the other nodes and closes connections, all of which it waits for until ctx
// ends; it goes on then. Requests that come later are answered by on_internal_error, so close the limiter after what
// asks it. It may be called again.
func (l *Limiter) Close(ctx context.Context) error {
	l.closed.Store(true)
	l.stop()
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("close the limiter: %w", ctx.Err())
	}
}
