// Package quota notices that a tenant has used 50, 80 or 100 % of a quota: a limit of a tenant with a window of an hour
// or more. [Watcher] is part of the leader of `ratelimit serve`. docs/usage.md has the rules for operators.
//
// # What is looked at
//
// Rows of usage say which tenants were active, by which policies, and their buckets say what is used. So a notice has
// the numbers that clients read, whatever the algorithm, also after a settlement, a reset or an outage, and of a
// limit that was changed. usage_state.changed_since is the first minute with rows that were not looked at. The
// transaction that unpacks a batch sets it, and the one that writes the notices clears it. So a leader that comes
// later looks at all that the one before did not.
//
// # Once
//
// The primary key of quota_notices has the tenant, the policy, the endpoint, the window and the threshold. A notice is
// written only if there is none of this or a higher threshold in the window. The transaction that writes notices also
// adds their events.
package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
)

const (
	// peekBatch is the number of buckets that one call reads.
	peekBatch = 64
	// peekTime bounds how long a check waits for the buckets. Its transaction is open meanwhile.
	peekTime = 30 * time.Second
	// lateAfter is the time from which a threshold that may have been reached before counts as late.
	lateAfter = 5 * time.Minute
)

// Options configure a Watcher. All but Routes are required.
type Options struct {
	Routes []string // the names of routes, for limits that are counted per route
	// Plan returns the limits in force, or nil while they are not loaded.
	Plan func() *resolve.Plan
	// Tiers knows the tiers of tenants without a row.
	Tiers Tiers
	// Peek reads buckets, see store.Store.
	Peek func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Report adds the events of new notices in the transaction that writes them, at a time.
	Report func(ctx context.Context, tx pgx.Tx, at time.Time, notices []Notice) error
	Log    *slog.Logger

	Restore []*Restore // one for each pool of Redis; none: no counts are restored
}

// Tiers knows the tiers of tenants without a row.
type Tiers interface {
	// Refresh reads what nodes have reported; the tenant "" means all.
	Refresh(ctx context.Context, tenant string) error
	// Identities returns the identity of a tenant with each tier that is known of it, at least once.
	Identities(id identity.Identity) []identity.Identity
}

// Watcher looks for quotas that tenants have used up to a threshold.
type Watcher struct {
	options    Options
	unread     leadership.Fault
	unrestored leadership.Fault

	mu        sync.Mutex
	written   map[int64]int64 // notices by threshold
	restored  int64           // buckets
	checkedAt time.Time       // when all quotas in use were last looked at
}

// NewWatcher returns a watcher. It does no I/O.
func NewWatcher(o Options) *Watcher {
	return &Watcher{options: o, written: map[int64]int64{}, unread: leadership.Fault{
		Log: o.Log, Level: slog.LevelWarn, Begins: "buckets cannot be read, so notices of used quotas wait",
		Ends: "buckets can be read again, and notices of used quotas are written",
	}, unrestored: leadership.Fault{
		Log: o.Log, Level: slog.LevelWarn, Ends: "the counts of periods can be restored again",
		Begins: "whether Redis has lost counts of periods cannot be seen, or they cannot be restored: it is tried again",
	}}
}

// Check looks at what was used since the last check, and writes the notices that are due, in the session of the leader.
// Buckets that cannot be read are no error: it logs them once, and a later check looks again.
func (w *Watcher) Check(ctx context.Context, session *pgx.Conn) error {
	plan := w.options.Plan()
	if plan == nil {
		return nil
	}
	if err := w.options.Tiers.Refresh(ctx, ""); err != nil {
		return fmt.Errorf("look for used quotas: %w", err)
	}
	c := &check{Watcher: w, plan: plan}
	w.unrestored.Record(c.restoreAll(ctx, session))
	err := pgx.BeginFunc(ctx, session, func(tx pgx.Tx) error {
		c.tx = tx
		return c.run(ctx)
	})
	if err != nil {
		return fmt.Errorf("look for used quotas: %w", err)
	}
	w.finish(c)
	_, err = session.Exec(ctx, deleteOld)
	return leadership.Wrap("delete old notices of quotas", err)
}

// check is one transaction of a Watcher.
type check struct {
	*Watcher
	plan      *resolve.Plan
	tx        pgx.Tx
	now       time.Time  // by the database's clock
	changed   *time.Time // the first minute to look at; nil: none
	checkedAt *time.Time // of the last complete check; nil: none
	unread    error      // buckets could not be read
	notices   []Notice
}

// usedQuota is a quota that was in use.
type usedQuota struct {
	policy.Bound
	lastUse time.Time // the begin of a minute
	status  decision.Status
}

func (c *check) run(ctx context.Context) error {
	if err := c.tx.QueryRow(ctx, lockState).Scan(&c.changed, &c.checkedAt, &c.now); err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	if c.changed != nil {
		candidates, err := c.list(ctx)
		if err != nil {
			return err
		}
		c.unread = c.peek(ctx, candidates)
		if err := c.write(ctx, candidates); err != nil {
			return err
		}
	}
	if c.unread != nil {
		return nil // the next check looks at the same rows again
	}
	_, err := c.tx.Exec(ctx, setChecked, c.now)
	return leadership.Wrap("write the state", err)
}

// use is what a policy counted for a tenant at an endpoint, and when last, or how much.
type use struct {
	Tenant, Policy, Endpoint string
	At                       time.Time
	Cost                     int64
}

// list returns the quotas that were in use since c.changed, each bucket once.
func (c *check) list(ctx context.Context) ([]usedQuota, error) {
	rows, _ := c.tx.Query(ctx, selectUses, *c.changed)
	var all []usedQuota
	var group []use // of one tenant
	var next use
	_, err := pgx.ForEachRow(rows, []any{&next.Tenant, &next.Policy, &next.Endpoint, &next.At}, func() error {
		if len(group) > 0 && group[0].Tenant != next.Tenant {
			all, group = c.addTenant(all, group), group[:0]
		}
		group = append(group, next)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list what was used: %w", err)
	}
	return c.addTenant(all, group), nil
}

// addTenant adds the quotas of a tenant that were in use.
func (c *check) addTenant(all []usedQuota, uses []use) []usedQuota {
	if len(uses) == 0 {
		return all
	}
	limits := c.limitsOf(uses[0].Tenant, routesOf(uses))
	type place struct { // two tiers of a tenant may limit one bucket
		policy.Key
		policy.Ref
	}
	places := map[place]int{}
	add := func(b policy.Bound, at time.Time) {
		of := place{b.Key, b.Ref()}
		i, seen := places[of]
		if !seen {
			i = len(all)
			places[of], all = i, append(all, usedQuota{Bound: b})
		}
		if at.After(all[i].lastUse) {
			all[i].lastUse = at
		}
	}
	for i := range uses {
		b, ok := limits.quota(policy.ParseRef(uses[i].Policy), uses[i].Endpoint)
		switch {
		case ok && b.Policy.ByRoute() && b.Key.Endpoint == "":
			c.addRoutes(&uses[i], add)
		case ok:
			add(b, uses[i].At)
		}
	}
	return all
}

// addRoutes adds the quotas of all routes: a request that matched a pattern is counted at that pattern, without its
// route.
func (c *check) addRoutes(u *use, add func(policy.Bound, time.Time)) {
	limits := c.limitsOf(u.Tenant, c.options.Routes)
	for _, route := range c.options.Routes {
		if b, ok := limits.quota(policy.ParseRef(u.Policy), route); ok && b.Key.Endpoint == route {
			add(b, u.At)
		}
	}
}

// errUnread reports a bucket that was not read, without the name of its tenant.
var errUnread = errors.New("the shared store did not answer")

// peek reads the buckets. The status of a bucket that was not read is Unanswered.
func (c *check) peek(ctx context.Context, candidates []usedQuota) (unread error) {
	ctx, cancel := context.WithTimeout(ctx, peekTime)
	defer cancel()
	var bounds [peekBatch]policy.Bound
	var statuses [peekBatch]decision.Status
	for first := 0; first < len(candidates); first += peekBatch {
		n := min(peekBatch, len(candidates)-first)
		for i := range n {
			bounds[i], statuses[i] = candidates[first+i].Bound, decision.Status{}
		}
		if err := c.options.Peek(ctx, bounds[:n], statuses[:n]); err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		for i := range n {
			s := &statuses[i]
			candidates[first+i].status = *s
			if s.Source == decision.Unanswered && s.Failure != decision.WrongType { // which no later check can read either
				unread = errUnread
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return unread
}

// write writes the notices that are new, with their events.
func (c *check) write(ctx context.Context, candidates []usedQuota) error {
	var due []usedQuota
	var notices []Notice
	for i := range candidates {
		n := &candidates[i]
		if n.status.Source == decision.Unanswered {
			continue
		}
		if threshold := reached(&n.Bound, &n.status); threshold > 0 {
			due, notices = append(due, *n), append(notices, newNotice(&n.Bound, &n.status, threshold))
		}
	}
	places, err := c.findNew(ctx, notices)
	if err != nil || len(places) == 0 {
		return err
	}
	for _, i := range places {
		if err := c.complete(ctx, &notices[i], &due[i]); err != nil {
			return err
		}
		c.notices = append(c.notices, notices[i])
	}
	if err := c.insert(ctx); err != nil {
		return err
	}
	err = c.options.Report(ctx, c.tx, c.now, c.notices)
	return leadership.Wrap("add the events", err)
}

// findNew returns the places of the notices of which there is none in the window yet, nor one of a higher threshold.
func (c *check) findNew(ctx context.Context, notices []Notice) ([]int64, error) {
	var tenants, policies, endpoints []string
	var starts, ends []time.Time
	var thresholds []int16
	for i := range notices {
		n := &notices[i]
		tenants, policies, endpoints = append(tenants, n.Tenant), append(policies, n.ref()), append(endpoints, n.Endpoint)
		starts, ends = append(starts, n.WindowStart), append(ends, n.WindowEnd)
		thresholds = append(thresholds, int16(n.Threshold))
	}
	rows, _ := c.tx.Query(ctx, selectNew, tenants, policies, endpoints, starts, ends, thresholds)
	places, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	return places, leadership.Wrap("find new notices", err)
}

// complete adds to a notice when the quota will be exhausted, and whether the notice is late.
func (c *check) complete(ctx context.Context, n *Notice, of *usedQuota) error {
	n.Late = c.checkedAt == nil || c.now.Sub(*c.checkedAt) > lateAfter ||
		c.now.Sub(of.lastUse) > lateAfter+time.Minute
	spec := of.Policy.Limit.Spec()
	since := c.now.Add(-rateSpan(spec.Window)).Truncate(time.Minute)
	cost, err := c.costSince(ctx, &of.Bound, since)
	if err != nil {
		return err
	}
	rate := float64(cost) / c.now.Sub(since).Seconds()
	after := spec.ExhaustedAfter(of.status.Used, of.Policy.Limit.Capacity()-of.status.Used, rate)
	at := timeOf(of.status.Now + after).Truncate(time.Second)
	if after > 0 && !spec.SoftOnly && at.Before(n.WindowEnd) {
		n.ExhaustedAt = &at
	}
	return nil
}

// costSince returns what a policy charged to the bucket of a bound since a minute.
func (c *check) costSince(ctx context.Context, of *policy.Bound, since time.Time) (cost int64, err error) {
	ref, key := of.Ref(), of.Key
	rows, _ := c.tx.Query(ctx, selectCosts, key.GroupID, ref.String(), since)
	uses, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[use])
	if err != nil {
		return 0, fmt.Errorf("read the rate: %w", err)
	}
	limits := c.limitsOf(key.GroupID, routesOf(uses))
	for i := range uses {
		if b, ok := limits.quota(ref, uses[i].Endpoint); ok && b.Key == key {
			cost += uses[i].Cost
		}
	}
	return cost, nil
}

// insert writes c.notices.
func (c *check) insert(ctx context.Context) error {
	batch := &pgx.Batch{}
	for i := range c.notices {
		n := &c.notices[i]
		batch.Queue(deleteReplaced, n.Tenant, n.ref(), n.Endpoint, n.WindowStart, n.WindowEnd)
		batch.Queue(insertNotice, n.Tenant, n.ref(), n.Endpoint, n.WindowStart, n.Threshold, n.WindowEnd, n.Limit, n.Used,
			n.ExhaustedAt, n.Late, c.now, n.Unit)
	}
	err := c.tx.SendBatch(ctx, batch).Close()
	return leadership.Wrap("write notices", err)
}

// Stats counts what a watcher has done as the leader.
type Stats struct {
	Notices   map[string]int64 `metric:"quota_notices_total threshold"` // that it wrote
	Restored  int64            `metric:"periods_restored_total"`        // buckets that it raised
	CheckedAt time.Time        `metric:"quota_checked_timestamp_seconds"`
}

// Stats returns what the watcher has done.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Stats{map[string]int64{}, w.restored, w.checkedAt}
	for _, threshold := range Thresholds {
		s.Notices[strconv.FormatInt(threshold, 10)] = w.written[threshold]
	}
	return s
}

// finish counts a check that was committed, and logs when buckets cannot be read, and when they can again.
func (w *Watcher) finish(c *check) {
	w.mu.Lock()
	for i := range c.notices {
		w.written[c.notices[i].Threshold]++
	}
	if c.unread == nil {
		w.checkedAt = time.Now()
	}
	w.mu.Unlock()
	w.unread.Record(c.unread)
}
