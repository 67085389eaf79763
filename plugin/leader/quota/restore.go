package quota

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
)

// Restore is what a watcher needs to restore the counts of periods after a Redis has lost its data. All is required.
//
// Records beside the buckets are marks: where one is missing, Redis has lost data, and the second check that finds that
// restores all counts. Until then nodes charge what they have admitted without Redis, so that it does not count twice.
// A minute later the watcher restores once more, for what nodes had not reported.
//
// A count is raised to what usage history has of its period, at most: to what was really spent and reported. What is
// spent meanwhile counts in the same bucket, and history has it a few seconds later. So a count lacks at most what was
// spent, and not reported, before it was restored.
type Restore struct {
	History History
	Marks   Marks
	Number  int    // of marks: in a cluster each has a slot of its own
	Pool    uint8  // whose buckets it restores
	Name    string // of the pool, also in the marks of all but the first, because pools may have one Redis
	// Raise charges buckets with what is missing to so many tokens, atomically, and returns the tokens that it charged.
	Raise func(ctx context.Context, bounds []policy.Bound, least []int64) (charged []int64, err error)

	lost bool // the last check has found that it lost its data
}

// History reads what tenants have used. The package rows describes the methods.
type History interface {
	UsageTenants(ctx context.Context, since time.Time) ([]string, error)
	UsageSpent(ctx context.Context, namespace string, tenants []string, since []time.Time,
		add func(place int, policy, endpoint string, cost int64)) error
	BucketResets(ctx context.Context, since time.Time, add func(tenant, policy, endpoint string, done time.Time)) error
}

// Marks are records beside the buckets.
type Marks interface {
	// Get returns a record, or nil.
	Get(ctx context.Context, key string) ([]byte, error)
	// Swap replaces a record if it is the old one; nil: there is none. A ttl of 0 keeps it for good.
	Swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) (before []byte, err error)
}

const (
	// restoredTwice is a mark after the second time. Before, it is the time of the first, in seconds since 1970.
	restoredTwice = "restored"
	againAfter    = time.Minute
	// atLeastLeft is how long a period must last to be restored: what was spent in it must not count in the next.
	atLeastLeft = time.Minute
	// longestPeriod is longer than any period.
	longestPeriod = 370 * 24 * time.Hour
	// tenantBatch is the number of tenants whose history one query reads.
	tenantBatch = 64
)

// restoreAll restores the counts of periods in each pool of Redis that has lost them. A pool that does not answer keeps
// no other from that.
func (c *check) restoreAll(ctx context.Context, session *pgx.Conn) error {
	if len(c.options.Restore) == 0 {
		return nil
	}
	if err := session.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&c.now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	var failed []error
	for _, pool := range c.options.Restore {
		failed = append(failed, leadership.Wrap("pool "+pool.Name, c.restore(ctx, pool)))
	}
	return errors.Join(failed...)
}

// restore restores the counts of periods in a pool if that has lost them.
func (c *check) restore(ctx context.Context, pool *Restore) error {
	marks, err := pool.readMarks(ctx)
	if err != nil {
		return err
	}
	lost, next := slices.ContainsFunc(marks, func(mark []byte) bool { return mark == nil }), restoredTwice
	switch {
	case lost && !pool.lost:
		pool.lost = true // the next check restores
		return nil
	case lost:
		next = strconv.FormatInt(c.now.Unix(), 10)
	case !slices.ContainsFunc(marks, c.isDueAgain):
		pool.lost = false
		return nil
	}
	buckets, tokens, err := c.restoreTenants(ctx, pool)
	if err != nil {
		return err
	}
	for i, mark := range marks {
		if _, err := pool.Marks.Swap(ctx, pool.markKey(i), mark, []byte(next), 0); err != nil {
			return err
		}
	}
	pool.lost = false
	if lost || buckets > 0 {
		c.options.Log.Info("Redis is new or has lost data: the counts of periods were restored from usage",
			"pool", pool.Name, "buckets", buckets, "tokens", tokens)
	}
	return nil
}

func (r *Restore) markKey(i int) string {
	if r.Pool > 0 {
		return "periods." + r.Name + "." + strconv.Itoa(i)
	}
	return "periods." + strconv.Itoa(i)
}

func (r *Restore) readMarks(ctx context.Context) (marks [][]byte, err error) {
	for i := range r.Number {
		mark, err := r.Marks.Get(ctx, r.markKey(i))
		if err != nil {
			return nil, err
		}
		marks = append(marks, mark)
	}
	return marks, nil
}

// isDueAgain reports whether a mark says that counts were restored once, and a while ago.
func (c *check) isDueAgain(mark []byte) bool {
	seconds, _ := strconv.ParseInt(string(mark), 10, 64) // what is no time is from long ago
	return !bytes.Equal(mark, []byte(restoredTwice)) && c.now.Sub(time.Unix(seconds, 0)) >= againAfter
}

// resetBucket names a bucket that an operator has emptied.
type resetBucket struct{ tenant, policy, endpoint string }

// restoreTenants restores the counts of all tenants in a pool, and returns how many buckets it has raised, and by how
// many tokens.
func (c *check) restoreTenants(ctx context.Context, pool *Restore) (buckets int, tokens int64, err error) {
	history, since := pool.History, c.now.Add(-longestPeriod)
	resets := map[resetBucket]time.Time{}
	err = history.BucketResets(ctx, since, func(tenant, policy, endpoint string, done time.Time) {
		of := resetBucket{tenant, policy, endpoint}
		resets[of] = later(resets[of], done.Add(time.Minute-1).Truncate(time.Minute))
	})
	if err != nil {
		return 0, 0, err
	}
	tenants, err := history.UsageTenants(ctx, since)
	if err != nil {
		return 0, 0, err
	}
	for batch := range slices.Chunk(tenants, tenantBatch) {
		r := restoration{check: c, pool: pool, resets: resets, spans: map[span]int{}, counts: map[policy.Key]*periodCount{}}
		if err := r.run(ctx, batch); err != nil {
			return buckets, tokens, err
		}
		buckets, tokens = buckets+r.buckets, tokens+r.tokens
	}
	c.mu.Lock()
	c.restored += int64(buckets)
	c.mu.Unlock()
	return buckets, tokens, nil
}

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// restoration restores the counts of some tenants.
type restoration struct {
	*check
	pool   *Restore
	resets map[resetBucket]time.Time
	limits []limits // of the tenant of each span

	// The tenants and instants whose history is read, and the places of them.
	tenants []string
	since   []time.Time
	spans   map[span]int

	counts  map[policy.Key]*periodCount
	buckets int
	tokens  int64
}

type span struct {
	tenant string
	since  int64 // seconds since 1970
}

type periodCount struct {
	usedQuota
	start limit.Micros
	span  int   // its place
	spent int64 // tokens, since the begin of the span
}

func (r *restoration) run(ctx context.Context, tenants []string) error {
	for _, tenant := range tenants {
		l := r.limitsOf(tenant, r.options.Routes)
		for _, b := range l.BoundsByUse {
			r.addCount(tenant, l, b)
		}
	}
	if len(r.counts) == 0 {
		return nil
	}
	err := r.pool.History.UsageSpent(ctx, r.plan.Namespace(), r.tenants, r.since, r.addSpent)
	if err != nil {
		return err
	}
	return r.raise(ctx)
}

// addCount adds the count of a limit of a tenant whose windows are periods.
func (r *restoration) addCount(tenant string, l limits, b policy.Bound) {
	perTenant := b.Policy.Scope == policy.Tenant || b.Policy.Scope == policy.TenantEndpoint
	if b.Policy.Limit.Calendar() == nil || !perTenant || b.Unnamed() || b.Pool != r.pool.Pool {
		return
	}
	start, end := b.Policy.Limit.PeriodAt(limit.Micros(r.now.UnixMicro()))
	if timeOf(end).Sub(r.now) < atLeastLeft {
		return
	}
	since := later(timeOf(start), r.resets[resetBucket{tenant, b.Key.Policy, b.Key.Endpoint}])
	of := span{tenant, since.Unix()}
	place, ok := r.spans[of]
	if !ok {
		place = len(r.tenants)
		r.spans[of] = place
		r.tenants, r.since, r.limits = append(r.tenants, tenant), append(r.since, since), append(r.limits, l)
	}
	if other := r.counts[b.Key]; other == nil || r.since[other.span].Before(since) { // tiers may differ in their periods
		r.counts[b.Key] = &periodCount{usedQuota: usedQuota{Bound: b}, start: start, span: place}
	}
}

// addSpent adds what a policy has charged since the begin of a span to the count of the bucket that it belongs to: what
// another tier's policy of the name has charged counts in the same one.
func (r *restoration) addSpent(place int, text, endpoint string, cost int64) {
	ref, l := policy.ParseRef(text), r.limits[place]
	if ref.Namespace != "" && ref.Namespace != r.plan.Namespace() {
		return
	}
	b, ok := l.Find(ref, endpoint)
	if !ok {
		for _, other := range l.BoundsByUse {
			if other.Policy.Name == ref.Name {
				b, _ = l.Find(other.Ref(), endpoint)
			}
		}
	}
	if count := r.counts[b.Key]; count != nil && count.span == place && b.Pool == r.pool.Pool {
		count.spent += cost
	}
}

// raise raises the buckets to what was spent, where the store is in the same period.
func (r *restoration) raise(ctx context.Context) error {
	var read []usedQuota
	for _, count := range r.counts {
		if count.spent > 0 {
			read = append(read, count.usedQuota)
		}
	}
	if err := r.peek(ctx, read); err != nil {
		return err
	}
	for some := range slices.Chunk(read, peekBatch) {
		var bounds []policy.Bound
		var least []int64
		for i := range some {
			status, count := &some[i].status, r.counts[some[i].Key]
			if status.Source == decision.Unanswered {
				continue // of another type, which no later check can read either
			}
			if start, _ := count.Policy.Limit.PeriodAt(status.Now); start == count.start {
				bounds, least = append(bounds, some[i].Bound), append(least, count.spent)
			}
		}
		charged, err := r.pool.Raise(ctx, bounds, least)
		if err != nil {
			return err
		}
		for _, tokens := range charged {
			if tokens > 0 {
				r.buckets, r.tokens = r.buckets+1, r.tokens+tokens
			}
		}
	}
	return nil
}
