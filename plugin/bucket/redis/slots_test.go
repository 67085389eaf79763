package redis

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// exports is a bound of n requests in flight, each for a minute at most.
func exports(t *testing.T, n int64) policy.Bound {
	b := bound(t, "exports", limit.Spec{Algorithm: limit.Concurrency, Quantity: n, Window: 60 * limit.Second})
	return storetest.WithPolicy(b, b.Policy)
}

func TestRequestsInFlightOfTwoNodesNeverExceedTheLimit(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	node := func() *Store { return turned(newStore("test", &direct{client, false}, turnedClock, quiet)) }
	storetest.ServeAtOnce(t, newClock(t, client), node(), node())
}

func TestSlotsAreListedByTheirDeadlines(t *testing.T) {
	f, clock, _ := grouped(t, redistest.Single(t).Client(t))
	b := exports(t, 5)
	start := clock.Now()
	for range 3 {
		f.take(t, b)
		clock.Advance(limit.Second)
	}
	slots, err := f.Slots(t.Context(), &b, 2)
	require.NoError(t, err)
	want := []limit.Micros{start + 60*limit.Second, start + 61*limit.Second}
	assert.Equal(t, want, slots.Deadlines)
	assert.Equal(t, clock.Now(), slots.Now)
	assert.Equal(t, 3*limit.Second, b.Policy.Limit.Age(slots.Deadlines[0], slots.Now))
	clock.Advance(60 * limit.Second)
	slots, err = f.Slots(t.Context(), &b, 2)
	assert.True(t, err == nil && len(slots.Deadlines) == 0, "%v, %v", slots, err)
}

// A request of limits that count no requests in flight sends Redis no other command than before, and these are few.
func TestASlotCostsFewCommandsAndADenialWritesNothing(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	s := newStore("test", &direct{client, false}, takeScript, quiet)
	b, ctx := exports(t, 2), t.Context()
	key := string(appendLog(nil, &b.Key))
	for i := range 4 {
		statuses := make([]decision.Status, 1)
		require.NoError(t, s.Take(ctx, []policy.Bound{b}, statuses))
		assert.Equal(t, i < 2, statuses[0].Charged)
	}
	life, err := client.PTTL(ctx, key).Result()
	require.NoError(t, err)
	assert.True(t, life.Seconds() > 60 && life.Seconds() < 80, "the slots live for %v", life)
	assert.EqualValues(t, 2, client.ZCard(ctx, key).Val())
	assert.EqualValues(t, 1, client.DBSize(ctx).Val(), "keys: a slot makes no other")

	require.NoError(t, client.Del(ctx, key).Err())
	require.NoError(t, client.Set(ctx, key, "foreign", 0).Err())
	statuses := make([]decision.Status, 1)
	require.NoError(t, s.Take(ctx, []policy.Bound{b}, statuses))
	assert.Equal(t, decision.WrongType, statuses[0].Failure)
	n, err := s.Forget(ctx, []policy.Bound{b})
	assert.True(t, n == 0 && err == nil && client.Get(ctx, key).Val() == "foreign", "a foreign key stays: %v", err)
}

func TestATakeWithoutAnAnswerHasWhatReleasesItsSlot(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	s := newStore("test", &deaf{direct{client, false}}, takeScript, quiet)
	b, statuses := exports(t, 2), make([]decision.Status, 1)
	bounds := []policy.Bound{b}
	require.NoError(t, s.Take(t.Context(), bounds, statuses))
	require.True(t, statuses[0].Failure.MayHaveSpent(), "%+v", statuses[0])
	s.transport = &direct{client, false}
	taken := decision.Status{Source: decision.Redis, Charged: true, Receipt: statuses[0].Receipt}
	for _, want := range []int64{-1, 0} {
		again := []decision.Status{taken}
		require.NoError(t, s.Settle(t.Context(), bounds, again, []int64{0}))
		assert.Equal(t, want, again[0].Settled)
	}
}

// deaf runs a script and loses its reply.
type deaf struct{ direct }

func (d *deaf) Run(ctx context.Context, script *script, c *call) error {
	if err := d.direct.Run(ctx, script, c); err != nil {
		return err
	}
	return classify(fmt.Errorf("read: %w", context.DeadlineExceeded))
}
