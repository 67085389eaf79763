package reservation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// world has a table over a real store in memory, on a clock that stands.
type world struct {
	t       *testing.T
	now     limit.Micros
	wall    limit.Micros // of the wall clock; 0: now
	store   *memory.Store
	table   *Ledger
	keeper  *Keeper
	closed  int
	records *memoryRecords // nil: none
	log     bytes.Buffer

	mu      sync.Mutex
	settled []Settlement
}

func newWorld(t *testing.T, most int) *world {
	t.Helper()
	w := &world{t: t, now: 1_000_000 * limit.Second}
	w.store = memory.New(memory.Options{Now: func() limit.Micros { return w.now }})
	w.table = New(Options{
		Elapsed: func() limit.Micros { return w.now }, Now: w.wallClock, Most: most, Observer: w,
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	w.keeper = w.table.Keeper(w.store, nil, func() { w.closed++ })
	return w
}

func (w *world) wallClock() limit.Micros { return max(w.wall, w.now) }

func (w *world) Reserved(*policy.Bound) {}

func (w *world) Settled(_ *policy.Bound, s Settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = append(w.settled, s)
}

// budget is a limit of 1,000 tokens an hour, of which a request reserves some until it is settled by a shared value.
func budget(t *testing.T, reserve int64) *policy.Policy {
	t.Helper()
	rule, err := settle.New(schema.Settle{
		Sources: []schema.SettleSource{{From: "shared.tokens"}}, Reserve: reserve, Timeout: 60, RefundOn: []int64{503},
	}, nil)
	require.NoError(t, err)
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1000, Window: 3600 * limit.Second})
	require.NoError(t, err)
	return &policy.Policy{Name: "budget", Scope: policy.Tenant, Limit: l, Settle: rule}
}

func boundOf(p *policy.Policy, cost int64) policy.Bound {
	return policy.Bound{
		Policy: p, Cost: cost, Key: policy.Key{Policy: p.Name, Group: policy.ByTenant, GroupID: "acme"},
	}
}

// reserve takes a bound and keeps its reservation, as an admitted request does. It returns "" if there is no room.
func (w *world) reserve(b policy.Bound) string {
	w.t.Helper()
	var d decision.Decision
	d.Reset()
	d.Resolution.Bounds = append(d.Resolution.Bounds, b)
	d.Grow()
	require.NoError(w.t, w.store.Take(context.Background(), d.Resolution.Bounds, d.Statuses))
	if d.Combine(); d.Denied() {
		return ""
	}
	if w.records != nil {
		d.Statuses[0].Source = decision.Redis
	}
	return w.keeper.Keep(&d)
}

// used returns what the bucket counts as spent.
func (w *world) used(b policy.Bound) int64 {
	w.t.Helper()
	statuses := make([]decision.Status, 1)
	require.NoError(w.t, w.store.Peek(context.Background(), []policy.Bound{b}, statuses))
	return statuses[0].Used
}

// end is the end of a request, as the log phase reads it.
type end struct {
	answer settle.Answer
	err    error
}

func (e end) Read(_ context.Context, _ settle.Needs, a *settle.Answer) error {
	*a = e.answer
	return e.err
}

// usedTokens is the end of a request that the upstream answered, and that used a number of tokens.
func usedTokens(n float64) end {
	return end{answer: settle.Answer{
		Status: 200, Source: settle.SourceService, Tried: true, Shared: map[string]string{"tokens": fmt.Sprint(n)},
	}}
}

func (w *world) settle(id string, e end) {
	w.t.Helper()
	assert.NoError(w.t, w.table.Settle(context.Background(), id, e))
}

func (w *world) expect(b policy.Bound, used int64, outcomes ...Outcome) {
	w.t.Helper()
	assert.Equal(w.t, used, w.used(b), "tokens are used")
	var got []Outcome
	for _, s := range w.settled {
		got = append(got, s.Outcome)
	}
	assert.Equal(w.t, outcomes, got, "outcomes")
}

func TestAReservationBecomesWhatTheRequestUsed(t *testing.T) {
	aborted := usedTokens(5)
	aborted.answer.Status = 499
	refunded := usedTokens(5)
	refunded.answer.Status = 503
	never := usedTokens(5)
	never.answer.Source = settle.SourceExit
	for name, test := range map[string]struct {
		end     end
		used    int64
		outcome Outcome
	}{
		"less":              {usedTokens(30), 30, Measured},
		"more":              {usedTokens(250), 250, Measured},
		"the same":          {usedTokens(100), 100, Measured},
		"nothing":           {usedTokens(0), 0, Measured},
		"rounded up":        {usedTokens(30.2), 31, Measured},
		"far more":          {usedTokens(5000), 5000, Measured},
		"refund_on":         {refunded, 0, Refunded},
		"never tried":       {never, 0, Refunded},
		"aborted":           {aborted, 100, Unmeasured},
		"negative":          {usedTokens(-3), 100, Unmeasured},
		"no source answers": {end{answer: settle.Answer{Status: 200, Source: settle.SourceService, Tried: true}}, 100, Unmeasured},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			b := boundOf(budget(t, 100), 100)
			w.settle(w.reserve(b), test.end)
			w.expect(b, test.used, test.outcome)
			assert.Zero(t, w.table.Stats().Kept, "reservations are kept")
		})
	}
}

func TestAReservationIsSettledOnce(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 100), 100)
	id := w.reserve(b)
	other := w.reserve(b)
	w.settle(id, usedTokens(10))
	for _, unknown := range []string{
		id, "", "x", strings.Repeat("0", 32), strings.Repeat("g", 32), id + "0", "NULL_VALUE",
	} {
		w.settle(unknown, usedTokens(0))
	}
	w.expect(b, 110, Measured)
	s := w.table.Stats()
	assert.True(t, s.Unknown == 7 && s.Kept == 1, "%+v, want 7 unknown and 1 kept", s)
	w.settle(other, usedTokens(10))
	w.expect(b, 20, Measured, Measured)
}

func TestAReservationThatTimesOutStaysChargedAndALateOneChargesOnlyMore(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 100), 100)
	less, more, never := w.reserve(b), w.reserve(b), w.reserve(b)
	w.now += 60*limit.Second - 1
	w.table.Expire()
	w.expect(b, 300)
	w.now++
	w.table.Expire()
	w.expect(b, 300, TimedOut, TimedOut, TimedOut)
	w.settle(less, usedTokens(10))
	w.settle(more, usedTokens(150))
	w.expect(b, 350, TimedOut, TimedOut, TimedOut, Late, Late)
	w.now += 60 * limit.Second
	w.table.Expire()
	w.settle(never, usedTokens(500))
	w.expect(b, 350, TimedOut, TimedOut, TimedOut, Late, Late)
	s := w.table.Stats()
	assert.True(t, s.Kept == 0 && s.Unknown == 1, "%+v, want none kept, one unknown", s)
}

func TestALogPhaseAfterTheTimeoutIsLateBeforeItIsNoticed(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 100), 100)
	id := w.reserve(b)
	w.now += 60 * limit.Second
	w.settle(id, usedTokens(10))
	w.expect(b, 100, TimedOut, Late)
}

func TestAFullTableDropsTheReservationThatEndsFirst(t *testing.T) {
	w := newWorld(t, 2)
	b := boundOf(budget(t, 100), 100)
	first := w.reserve(b)
	w.now++
	second := w.reserve(b)
	w.now++
	third := w.reserve(b)
	w.expect(b, 300, Dropped)
	for _, id := range []string{first, second, third} {
		w.settle(id, usedTokens(0))
	}
	w.expect(b, 100, Dropped, Measured, Measured)
}

func TestAStoreStaysOpenWhileAReservationWaits(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 100), 100)
	id := w.reserve(b)
	w.keeper.Close()
	require.Zero(t, w.closed, "the store was closed before its reservation was settled")
	w.settle(id, usedTokens(10))
	assert.Equal(t, 1, w.closed, "the store was closed %d times", w.closed)
	w.expect(b, 10, Measured)
	assert.Empty(t, w.reserve(b), "a closed store keeps reservation")
}

func TestARequestThatCannotBeReadStaysCharged(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 100), 100)
	lost := errors.New("the connection is lost")
	err := w.table.Settle(context.Background(), w.reserve(b), end{err: lost})
	assert.True(t, errors.Is(err, lost), "%v, want %v", err, lost)
	w.expect(b, 100, Unmeasured)
}

func TestABoundThatReservesNothingIsChargedInFull(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 0), 0)
	w.settle(w.reserve(b), usedTokens(40))
	w.expect(b, 40, Measured)
}

// ledger is a store that no longer answers, and charges later what requests cost.
type ledger struct {
	statuses []decision.Status
	actual   []int64
}

func (l *ledger) Settle(_ context.Context, _ []policy.Bound, statuses []decision.Status, actual []int64) error {
	l.statuses, l.actual = slices.Clone(statuses), actual
	for i := range statuses {
		statuses[i].Charged = false
	}
	return nil
}

func TestWhatFailModeOpenAdmittedIsSettled(t *testing.T) {
	w, store := newWorld(t, 0), &ledger{}
	keeper := w.table.Keeper(store, nil, func() {})
	p := *budget(t, 100)
	p.FailMode = policy.FailOpen
	shadow := p
	shadow.Mode = policy.Shadow
	var d decision.Decision
	d.Reset()
	d.Resolution.Bounds = append(d.Resolution.Bounds, boundOf(&p, 100), boundOf(&shadow, 100), boundOf(&p, 0))
	d.Grow()
	for i := range d.Statuses {
		d.Statuses[i] = decision.Status{Failure: decision.Unavailable, Wait: limit.Second}
	}
	w.settle(keeper.Keep(&d), usedTokens(30))
	if !slices.Equal(store.actual, []int64{30, 30}) || !store.statuses[0].Charged || !store.statuses[1].Charged {
		t.Errorf("settled %+v to %d, want the two bounds that are enforced to 30", store.statuses, store.actual)
	}
}

func TestNothingIsKeptOfALimitThatDoesNotSettle(t *testing.T) {
	w := newWorld(t, 0)
	p := *budget(t, 100)
	p.Settle = nil
	id := w.reserve(boundOf(&p, 1))
	assert.True(t, id == "" && w.table.Stats().Kept == 0, "id %q", id)
}

func TestAMissingLogPhaseIsLoggedOnce(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 1), 1)
	for range warnAfter {
		w.reserve(b)
	}
	w.table.Expire()
	assert.True(t, w.log.Len() <= 0, "logged too soon: %s", &w.log)
	w.now += warnTimeout
	w.table.Expire()
	w.now += warnTimeout
	w.table.Expire()
	n := strings.Count(w.log.String(), schema.SettlingName)
	assert.True(t, n == 1, "%d lines name the companion plugin, want 1: %s", n, &w.log)
}

// A budget holds under concurrency: what requests in flight may use is reserved, so the sum of what they used is within
// the limit as long as each uses no more than it reserved.
func TestAtOnceRequestsThatReserveEnoughNeverOverspend(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 20), 20)
	var used int64
	var wg sync.WaitGroup
	for caller := range 64 {
		wg.Go(func() {
			for i := range 50 {
				id := w.reserve(b)
				if id == "" {
					continue
				}
				actual := int64(1 + (caller*31+i*17)%20)
				w.mu.Lock()
				used += actual
				w.mu.Unlock()
				assert.NoError(t, w.table.Settle(context.Background(), id, usedTokens(float64(actual))))
			}
		})
	}
	wg.Wait()
	charged := w.used(b)
	assert.True(t, used <= 1000 && charged == used, "requests used %d tokens of 1000, and %d were charged", used, charged)
	assert.True(t, used > 1000-20, "requests used %d tokens: the limit was never met", used)
}
