package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// whichBuckets describes, in the help of both commands, which buckets they select.
const whichBuckets = `The command covers the buckets of all policies that apply to the tenant, on every endpoint.
--user, --credential and --ip add the buckets of that user, credential or address within the tenant. --ip without
--tenant covers the buckets that are counted by the address alone: limits per ip, and the limits of clients without a
tenant. One of --tenant and --ip is required.

Buckets are read from the Redis in the plugin's config, of the pool that the tenant's tier has. A Redis password that
is not in the decK file is read from RATELIMIT_REDIS_PASSWORD, the one of a pool from RATELIMIT_REDIS_PASSWORD_ and
its name in capitals, with _ for other characters.

A node that sees more new addresses than -max-addresses or -new-addresses allow counts them by prefix (/24 or /48). If
the prefix of --ip has such a bucket, it is included and shown as the prefix; other addresses in it share that bucket.`

var bucketsCommands = []*command{{
	words: "buckets show", brief: "show what a tenant or an address has used of its limits, without spending",
	about: whichBuckets,
	define: func(c *call) action {
		find := c.bucketFlags()
		c.outputFlag()
		return func(ctx context.Context) error {
			found, err := find(ctx)
			if err != nil {
				return err
			}
			statuses, err := found.read(ctx)
			if err != nil {
				return err
			}
			return c.showBuckets(found, statuses)
		}
	},
}, {
	words: "buckets reset", brief: "empty the buckets of a tenant or an address to restore its full limits",
	about: whichBuckets + `

The reset is recorded in the audit log first, with the usage it discards. If that fails, nothing is reset.`,
	define: func(c *call) action {
		find := c.bucketFlags()
		c.changeFlag()
		c.outputFlag()
		return func(ctx context.Context) error {
			found, err := find(ctx)
			if err != nil {
				return err
			}
			return c.resetBuckets(ctx, found)
		}
	},
}}

// bucketFlags defines whose buckets a command is about, and returns what finds them.
func (c *call) bucketFlags() func(context.Context) (*tenantBuckets, error) {
	config := c.configFlag()
	r := c.subjectFlags()
	named := c.flags.String("policy", "", "only buckets of the policies with this `name`")
	rows := c.rowsFlag()
	c.check(func() error {
		switch {
		case r.tenant == "" && r.ip == "":
			return wrong("--tenant or --ip is required")
		case r.tenant == "" && (r.user != "" || r.credential != "" || r.tier != ""):
			return wrong("--user, --credential and --tier require --tenant")
		}
		return r.target(c)
	})
	return func(ctx context.Context) (*tenantBuckets, error) {
		found, err := c.find(ctx, config, r, rows)
		if err != nil {
			return nil, err
		}
		found.tenant = r.tenant
		found.bounds = slices.DeleteFunc(found.bounds, func(b policy.Bound) bool {
			return *named != "" && b.Policy.Name != *named
		})
		if len(found.bounds) == 0 {
			return nil, errors.New("no buckets match: run ratelimit explain with the same flags to see which policies apply")
		}
		return found, nil
	}
}

// redisPasswordVariable has the password that a decK file does not hold.
const redisPasswordVariable = "RATELIMIT_REDIS_PASSWORD"

// fillPassword puts the passwords of the environment into the Redis blocks of a config. The variable of a pool ends in
// its name: RATELIMIT_REDIS_PASSWORD_ENTERPRISE.
func (c *call) fillPassword(config *schema.Config) {
	config.Redis.Password = cmp.Or(c.getenv(redisPasswordVariable), config.Redis.Password)
	config.RedisPools = slices.Clone(config.RedisPools)
	for i := range config.RedisPools {
		pool := &config.RedisPools[i]
		name := strings.NewReplacer(".", "_", "-", "_").Replace(strings.ToUpper(pool.Name))
		pool.Password = cmp.Or(c.getenv(redisPasswordVariable+"_"+name), pool.Password)
	}
}

// manyBounds is how many buckets are read at once. A tenant may have more than one request of Redis has room for.
const manyBounds = 64

// tenantBuckets are those of one tenant, or of one address, and where they are kept.
type tenantBuckets struct {
	tenant string        // "": they are of an address
	config schema.Config // where they are kept
	bounds []policy.Bound
	slots  map[policy.Key]string // in words, of concurrency limits
}

type shownBucket struct {
	Policy    string `json:"policy"`
	Subject   string `json:"subject"` // the tenant, or its user, credential or address
	Endpoint  string `json:"endpoint,omitempty"`
	Limit     string `json:"limit"` // in words
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	Unit      string `json:"unit,omitempty"`  // of both
	Reset     string `json:"reset"`           // RFC 3339
	Slots     string `json:"slots,omitempty"` // of a concurrency limit: how long the requests in flight hold theirs
}

// find finds the buckets of the bounds that requests of a tenant, or from an address, have.
func (c *call) find(ctx context.Context, f *configFlags, r *requestFlags, from *rowsFlags) (*tenantBuckets, error) {
	config, snapshot, err := c.load(f)
	if err != nil {
		return nil, err
	}
	if config.Strategy != schema.StrategyRedis {
		return nil, fmt.Errorf("%s: strategy is %s: buckets are in each node's memory "+
			"and can only be read with strategy: redis", config.Where, config.Strategy)
	}
	r.tiers = api.NewTiers(nil, snapshot.Namespace(), config.Consumers, config.Changed)
	// Rows that do not compile have no buckets; explain shows them.
	if snapshot, _, err = c.withRows(ctx, snapshot, r, from); err != nil {
		return nil, err
	}
	id, err := r.identify(snapshot.Rules, f.route)
	if err != nil {
		return nil, err
	}
	if r.ip == "" { // else the bucket of clients without an address would stand in for the user
		if id.IP = ""; id.User.Kind == identity.IP {
			id.User = identity.Name{}
		}
	}
	c.fillPassword(&config.Config)
	boundsOf := snapshot.TenantBounds
	if r.tenant == "" {
		boundsOf = snapshot.AddressBounds
	}
	bounds := boundsOf(id, config.Serves, limit.Micros(c.now().UnixMicro()))
	return &tenantBuckets{config: config.Config, bounds: addresses.WithPrefixes(bounds)}, nil
}

// read reads the buckets as they are now, and returns the status of each. Those of prefixes that count nothing are left
// out from then on.
func (b *tenantBuckets) read(ctx context.Context) (statuses []decision.Status, err error) {
	err = b.withRedis(func(store *redis.Store) (err error) {
		statuses, err = b.peek(ctx, store)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.bounds, statuses = addresses.InUse(b.bounds, statuses)
	return statuses, nil
}

// peek reads the statuses of all buckets, and spends nothing.
func (b *tenantBuckets) peek(ctx context.Context, store *redis.Store) ([]decision.Status, error) {
	statuses := make([]decision.Status, len(b.bounds))
	for first := 0; first < len(b.bounds); first += manyBounds {
		last := min(first+manyBounds, len(b.bounds))
		if err := store.Peek(ctx, b.bounds[first:last], statuses[first:last]); err != nil {
			return nil, fmt.Errorf("read the buckets: %w", err)
		}
	}
	b.slots = map[policy.Key]string{}
	for i := range statuses {
		if failure := statuses[i].Failure; failure != decision.NoFailure {
			return nil, fmt.Errorf("read the buckets from Redis at %s: %s", store.Name(),
				cmp.Or(failureTexts[failure], failure.String()))
		}
		if bound := &b.bounds[i]; bound.Key.Slots && statuses[i].Used > 0 {
			slots, err := store.Slots(ctx, bound, answers.MaxSlots)
			if err != nil {
				return nil, fmt.Errorf("read the buckets: %w", err)
			}
			b.slots[bound.Key] = ages(&bound.Policy.Limit, slots, statuses[i].Used)
		}
	}
	return statuses, nil
}

// ages returns in words how long the slots of a bucket have been held, of so many in all.
func ages(l *limit.Limit, slots store.Slots, all int64) string {
	var words []string
	for _, slot := range answers.SlotsOf(l, slots) {
		words = append(words, fmt.Sprintf("%d s", slot.Age))
	}
	if more := all - int64(len(words)); more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// failureTexts say why Redis has no status of a bucket, in words.
var failureTexts = map[decision.Failure]string{
	decision.Unavailable: "cannot connect, or the request was denied: check host, port and password",
	decision.TimedOut:    "no answer in time",
	decision.Lost:        "the connection was lost",
	decision.Overloaded:  "too many requests are waiting",
	decision.WrongType:   "a key holds data of another program: check prefix and database",
}

func (b *tenantBuckets) empty(ctx context.Context) error {
	err := b.withRedis(func(store *redis.Store) error {
		_, err := store.Forget(ctx, b.bounds)
		return err
	})
	if err != nil {
		return fmt.Errorf("reset the buckets (already recorded in the audit log): %w", err)
	}
	return nil
}

// redisTimeout is the shortest Redis timeout of a command, in milliseconds. A person waits longer than a request.
const redisTimeout = 5000

// withRedis opens the store for do, which it calls again after an error: do reads, or empties what may be empty.
func (b *tenantBuckets) withRedis(do func(*redis.Store) error) error {
	config := b.config.Pools()[b.bounds[0].Pool].WithDefaults() // all bounds of a tenant, or an address, have one pool
	registry := redis.NewRegistry(slog.New(slog.DiscardHandler), nil)
	store, closeRedis, err := registry.Open(bucket.WithTimeouts(config.Redis, redisTimeout))
	if err != nil {
		return err
	}
	defer closeRedis()
	if do(store) == nil {
		return nil
	}
	return do(store)
}

func (c *call) showBuckets(found *tenantBuckets, statuses []decision.Status) error {
	shown := make([]shownBucket, len(statuses))
	for i, b := range found.bounds {
		status := &statuses[i]
		shown[i] = shownBucket{
			Policy:    b.Policy.Name,
			Subject:   subjectOf(&b.Key),
			Endpoint:  b.Key.Endpoint,
			Limit:     b.Policy.Describe(),
			Used:      status.Used,
			Remaining: status.Remaining,
			Unit:      b.Policy.Unit,
			Reset:     time.UnixMicro(int64(status.Reset)).UTC().Format(time.RFC3339),
			Slots:     found.slots[b.Key],
		}
	}
	return c.print(shown, nil)
}

func subjectOf(key *policy.Key) string {
	if key.Group == policy.ByIP {
		return "ip " + key.GroupID
	}
	return cmp.Or(key.SubjectText(), "the tenant")
}

// resetBuckets records in the audit which buckets it empties, and empties them.
func (c *call) resetBuckets(ctx context.Context, found *tenantBuckets) error {
	records, closeRecords, by, err := c.openToChange(ctx)
	if err != nil {
		return err
	}
	defer closeRecords()
	before, err := found.read(ctx)
	if err != nil {
		return err
	}
	reset, err := rows.ResetOf(found.tenant, found.bounds, before)
	if err != nil {
		return err
	}
	if err := records.Do(ctx, by, reset, nil, found.empty); err != nil {
		return err
	}
	return c.showBuckets(found, before)
}
