package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// What the tests of reservations add to those of all operations.
func init() {
	equipment = append(equipment, func(_ *testing.T, o *api.Options) {
		_, o.Reservations = ledgerOf(nil, memory.New(memory.Options{Now: clock}))
	})
	scenarios["settle"] = func(c *contract, o operation) {
		c.check(o, c.do(o.call(viewer)))
		c.want(c.as("POST", checkPath, `{"org_id":"acme","reserve":5,"reservation_id":"chat-1"}`), http.StatusOK)
		c.check(o, c.do(o.call(admin)))
		other := o.call(admin)
		other.body = `{"id":"chat-1","actual":6}`
		c.check(o, c.do(other))
	}
}

// ledgerOptions configures ledgerOf.
type ledgerOptions struct {
	reservation.Options
	buckets reservation.Buckets
}

// ledgerOf returns a ledger, and what keeps in these records (nil: in its process) what checks take from these buckets.
func ledgerOf(
	records reservation.Central, buckets reservation.Buckets, edit ...func(*ledgerOptions),
) (*reservation.Ledger, reservation.Keepers) {
	o := ledgerOptions{buckets: buckets}
	o.Elapsed, o.Now = process.Elapsed, process.WallClock
	for _, e := range edit {
		e(&o)
	}
	l := reservation.New(o.Options)
	return l, reservation.Keepers{l.Keeper(o.buckets, records, func() {})}
}

// chats is a config with a budget of 10,000 tokens a day for each org, one of 100,000 for all, and 1,000 requests.
func chats() schema.Config {
	settle := &schema.Settle{Sources: []schema.SettleSource{{From: "shared.llm_tokens"}}, Reserve: 150, Timeout: 60}
	tokens := schema.Limit{
		Name: "llm-tokens", Scope: "tenant", Limit: 10_000, WindowSize: 31_536_000, Algorithm: "fixed_window", Settle: settle,
	}
	all := tokens
	all.Name, all.Scope, all.Limit = "llm-tokens-of-all", "global", 100_000
	return schema.Config{
		OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"}, DefaultTier: "a",
		Tiers: []schema.Tier{{Name: "a", Limits: []schema.Limit{
			tokens, {Name: "requests", Scope: "tenant", Limit: 1000, WindowSize: 31_536_000, Algorithm: "fixed_window"},
		}}},
		Global: schema.Global{Limits: []schema.Limit{all}},
	}.WithDefaults()
}

// reserving is a planned world that keeps reservations.
type reserving struct {
	*planned
	records reservation.Central
	ledger  *reservation.Ledger // of the last replica
	passed  atomic.Int64        // nanoseconds that the ledger's clock is ahead
	settled settlements
}

// settlements counts what the ledger reports.
type settlements struct {
	reserved, actual, change atomic.Int64
	outcomes                 [8]atomic.Int64
}

func (s *settlements) Reserved(b *policy.Bound) { s.reserved.Add(b.Cost) }

func (s *settlements) Settled(_ *policy.Bound, settled reservation.Settlement) {
	s.outcomes[settled.Outcome].Add(1)
	s.actual.Add(settled.Actual)
	s.change.Add(settled.Change)
}

// reservingChats returns a world with the limits of chats. edit changes its ledger.
func reservingChats(t *testing.T, edit ...func(*ledgerOptions)) *reserving {
	t.Helper()
	r := &reserving{planned: planning(t, chats(), policy.Rows{})}
	r.records = r.store.Records("default")
	r.world = r.replica(edit...)
	return r
}

// replica returns another server with the same Redis and records.
func (r *reserving) replica(edit ...func(*ledgerOptions)) *world {
	r.Helper()
	ledger, keeper := ledgerOf(r.records, r.store, append([]func(*ledgerOptions){func(o *ledgerOptions) {
		passed := func() limit.Micros { return limit.Micros(r.passed.Load() / 1000) }
		o.Now = func() limit.Micros { return process.WallClock() + passed() }
		o.Elapsed = func() limit.Micros { return process.Elapsed() + passed() }
		o.Observer = &r.settled
	}}, edit...)...)
	r.ledger = ledger
	return open(r.T, func(o *api.Options) {
		o.Decider, o.Buckets, o.Reservations = r.decider, r.store, keeper
	})
}

// reserves asks for a reservation of an org.
func (r *reserving) reserves(token, org, id string, tokens int) api.Checked {
	r.Helper()
	return r.checks(token, fmt.Sprintf(`{"org_id":%q,"reserve":%d,"reservation_id":%q}`, org, tokens, id))
}

// settles settles a reservation.
func (r *reserving) settles(token, id string, actual int) api.Settled {
	r.Helper()
	return read[api.Settled](r.world, r.want(r.settle(token, id, actual), http.StatusOK))
}

func (w *world) settle(token, id string, actual int) answer {
	w.Helper()
	return w.do(call{token, "POST", "/v1/ratelimit/settle", fmt.Sprintf(`{"id":%q,"actual":%d}`, id, actual), nil})
}

// used returns what acme has used of its budget, of the budget of all orgs, and of its requests.
func (r *reserving) used() [3]int64 {
	r.Helper()
	var used [3]int64
	for _, status := range r.checks(viewer, `{"org_id":"acme","dry_run":true}`).Statuses {
		for i, name := range []string{"llm-tokens", "llm-tokens-of-all", "requests"} {
			if status.Policy == name {
				used[i] = *status.Used
			}
		}
	}
	return used
}

// wantUsed fails unless acme has used so much.
func (r *reserving) wantUsed(when string, own, all, requests int64) {
	r.Helper()
	if got, want := r.used(), [...]int64{own, all, requests}; got != want {
		r.Fatalf("%s: acme's tokens, those of all and the requests are %v, want %v", when, got, want)
	}
}

// wantProblem fails unless an answer is a problem with a status and a text.
func (w *world) wantProblem(a answer, status int, text string) {
	w.Helper()
	w.want(a, status)
	if !strings.Contains(a.Body.String(), text) {
		w.Errorf("%s: %s, want %q", a.call.body, a.Body, text)
	}
}

// brokenRecords fails where a test says so.
type brokenRecords struct {
	reservation.Central
	fails func(operation string) bool
}

func (b brokenRecords) err(operation string) error {
	if b.fails(operation) {
		return fmt.Errorf("%s: no connection: password=hunter2", operation)
	}
	return nil
}

func (b brokenRecords) Get(ctx context.Context, key string) ([]byte, error) {
	if err := b.err("get"); err != nil {
		return nil, err
	}
	return b.Central.Get(ctx, key)
}

func (b brokenRecords) Swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) ([]byte, error) {
	operation := "swap"
	if old == nil {
		operation = "add"
	}
	if err := b.err(operation); err != nil {
		return nil, err
	}
	return b.Central.Swap(ctx, key, old, next, ttl)
}
