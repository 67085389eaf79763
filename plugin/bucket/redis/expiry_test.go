package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// lives is how long a key of Redis lives on.
func (f *fixture) lives(t testing.TB, key string) limit.Micros {
	t.Helper()
	ttl, err := f.client.PTTL(context.Background(), key).Result()
	require.True(t, err == nil && ttl > 0, "%s lives for %v (%v): every key must have a TTL", key, ttl, err)
	return limit.Micros(ttl.Microseconds())
}

// expiry returns the instant at which a key expires, and the state of a bound in the same instant, nil if the key has
// expired.
func (f *fixture) expiry(t testing.TB, key string, b policy.Bound) (limit.Micros, []byte) {
	t.Helper()
	tx := f.client.TxPipeline()
	at, value := tx.PExpireTime(t.Context(), key), tx.Get(t.Context(), subjectKey(b))
	if _, err := tx.Exec(t.Context()); err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	if value.Err() != nil || at.Val() == gone {
		return 0, nil
	}
	require.True(t, at.Val() >= 0, "%s has no TTL: every key must have one", key)
	return limit.Micros(at.Val().Microseconds()), findState([]byte(value.Val()), appendName(nil, &b.Key))
}

// gone is what PEXPIRETIME answers for a key that does not exist.
const gone = -2

// now returns the clock of Redis.
func (f *fixture) now(t testing.TB) limit.Micros {
	t.Helper()
	now, err := f.client.Time(t.Context()).Result()
	require.NoError(t, err)
	return limit.Micros(now.UnixMicro())
}

func TestEveryKeyOutlivesItsBucketsAndNotByMuch(t *testing.T) {
	f := newFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		flush(t, f.client)
		l := storetest.Limits().Draw(rt, "limit")
		b := policy.Bound{Policy: &policy.Policy{Limit: *l}, Key: policy.Key{Policy: "p", Group: policy.ByIP, GroupID: "o"}}
		for range rapid.IntRange(1, 4).Draw(rt, "requests") {
			b.Cost = max(1, min(storetest.Cost(rt, l), l.Capacity()))
			status := f.take(t, b)[0]
			keys := []string{subjectKey(b)}
			if l.Spec().Algorithm == limit.SlidingLog {
				keys = append(keys, logKey(b))
			}
			for _, key := range keys {
				expires, bucket := f.expiry(t, key, b)
				if bucket == nil {
					if now := f.now(t); now < status.ResetAt() {
						rt.Fatalf("%s is gone at %d µs, and means something until %d", key, now, status.ResetAt())
					}
					break // the test was slower than the limit
				}
				lives, needs := expires-status.Now, till(bucket)-status.Now
				require.True(rt, lives >= needs, "%s means something for %d µs, and lives for %d", key, needs, lives)
				if most := needs + needs/2 + 3*limit.Second; lives > most+needs {
					rt.Fatalf("%s means something for %d µs, and lives for %d", key, needs, lives)
				}
			}
		}
	})
}

func TestATTLIsWrittenOnlyWhenItHasBecomeTooShort(t *testing.T) {
	f := newFixture(t)
	b := hundred(t)
	f.take(t, b)
	before := f.client.PExpireTime(context.Background(), subjectKey(b)).Val()
	for range 20 {
		f.take(t, b)
	}
	if after := f.client.PExpireTime(context.Background(), subjectKey(b)).Val(); after != before {
		t.Errorf("the key was to expire at %v, and after more requests of the same day at %v", before, after)
	}
	weekly := bound(t, "weekly", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: 7 * 24 * hour})
	status := f.take(t, weekly)[0]
	if lives := f.lives(t, subjectKey(b)); lives < status.Reset-status.Now-limit.Second {
		t.Errorf("with a bucket of %d µs more the key lives for %d", status.Reset-status.Now, lives)
	}
}

func TestNothingIsWrittenByADenialOrARead(t *testing.T) {
	f := newFixture(t)
	empty := hundred(t)
	f.take(t, costing(empty, 100))
	keys := f.client.DBSize(context.Background()).Val()
	value := f.client.Get(context.Background(), subjectKey(empty)).Val()
	var others []policy.Bound
	for _, algorithm := range storetest.Algorithms {
		spec := limit.Spec{Algorithm: algorithm, Quantity: 3, Window: hour}
		others = append(others, of(bound(t, algorithm.String(), spec), "u"))
	}
	f.take(t, append(others, empty)...)
	for i := range others {
		others[i].Cost = 0
	}
	f.take(t, others...)
	if n := f.client.DBSize(context.Background()).Val(); n != keys {
		t.Errorf("a rejection and a read made keys: %v", f.client.Keys(context.Background(), "*").Val())
	}
	assert.Equal(t, value, f.client.Get(context.Background(), subjectKey(empty)).Val(), "a rejection changed a bucket")
}

// A subject with many buckets loses those that mean nothing any more, and no others.
func TestIdleBucketsOfALargeSubjectAreSwept(t *testing.T) {
	client := redistest.Single(t).Client(t)
	// The clock of tests, but one that may step back by no more than an hour.
	swept := newFrame(map[string]string{"clock": `
local now, STEP_BACK = tonumber(redis.call("GET", "clock")), 3600000000
`})
	f := &fixture{Store: turned(newStore("test", &direct{client, false}, swept, quiet)), client: client}
	clock := newClock(t, client)
	perMinute := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: 60 * limit.Second}
	endpoint := func(i int) policy.Bound {
		b := bound(t, "writes", perMinute)
		b.Key.Endpoint = fmt.Sprint("GET /", i)
		return b
	}
	long := bound(t, "daily", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: 300 * 24 * hour})
	f.take(t, long)
	for i := range 25 {
		f.take(t, endpoint(i))
	}
	if got := len(client.Get(context.Background(), subjectKey(long)).Val()); got != headSize+26*entrySize {
		t.Fatalf("26 buckets take %d bytes", got)
	}
	clock.Advance(hour) // half a minute early: the last buckets may still mean something to a clock that steps back
	f.take(t, endpoint(100))
	if got := len(client.Get(context.Background(), subjectKey(long)).Val()); got != headSize+27*entrySize {
		t.Errorf("after an hour the value has %d bytes: want every bucket kept", got)
	}
	clock.Advance(61 * limit.Second)
	f.take(t, endpoint(101))
	if got := len(client.Get(context.Background(), subjectKey(long)).Val()); got != headSize+3*entrySize {
		t.Errorf("after another minute the value has %d bytes: want the daily bucket and the last two", got)
	}
	if s := f.take(t, long)[0]; s.Used != 2 {
		t.Errorf("the bucket that still means something counts %d, want 2", s.Used)
	}
}

func TestALongValueIsToldInPart(t *testing.T) {
	f := newFixture(t)
	var bounds []policy.Bound
	for i := range 30 {
		bounds = append(bounds, bound(t, fmt.Sprint("p", i), limit.Spec{Algorithm: limit.FixedWindow, Quantity: int64(i + 2), Window: 300 * 24 * hour}))
	}
	f.take(t, bounds...)
	unspent := bound(t, "unspent", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: 300 * 24 * hour})
	asked := []policy.Bound{bounds[20], bounds[7], unspent, bounds[8], bounds[29]}
	var p scriptCall
	require.NoError(t, p.compile(asked))
	require.NoError(t, f.transport.Run(context.Background(), takeScript, &p.call))
	if _, _, err := p.readReply(p.call.reply); err != nil {
		t.Fatal(err)
	}
	if got := len(p.subjects[0].value); got != headSize+4*entrySize {
		t.Errorf("four buckets of thirty, and one that is new, take %d bytes", got)
	}
	for i, s := range f.take(t, asked...) {
		if want := []int64{3, 3, 2, 3, 3}[i]; s.Used != want {
			t.Errorf("bound %d has %d used, want %d", i, s.Used, want)
		}
	}
}

// dump returns all keys of a Redis with their values and the instants at which they expire.
func dump(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	all := map[string]string{}
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		value, err := client.Get(t.Context(), key).Result()
		require.NoError(t, err)
		expires, err := client.ExpireTime(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = value + " until " + expires.Truncate(time.Second).String()
	}
	return all
}

func TestAPeekWritesNothingToRedis(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f := newStore("test", &direct{client, false}, takeScript, slog.New(slog.DiscardHandler))
	var bounds []policy.Bound
	for _, algorithm := range storetest.Algorithms {
		l, err := limit.New(limit.Spec{Algorithm: algorithm, Quantity: 10, Window: 3600 * limit.Second})
		require.NoError(t, err)
		for _, mode := range []policy.Mode{policy.Enforce, policy.Shadow} {
			p := &policy.Policy{Name: algorithm.String() + mode.String(), Mode: mode, Limit: l, Cost: -1}
			key := policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByTenant, GroupID: "acme"}
			bounds = append(bounds, policy.Bound{Policy: p, Key: key, Cost: 1})
		}
	}
	statuses := make([]decision.Status, len(bounds))
	for used := range int64(2) { // in an empty Redis, and beside buckets that were spent from
		before := dump(t, client)
		require.NoError(t, f.Peek(context.Background(), bounds, statuses))
		for i := range statuses {
			if statuses[i].Source != decision.Redis || statuses[i].Used != used {
				t.Errorf("%s: %+v, want %d used", bounds[i].Policy.Name, statuses[i], used)
			}
		}
		if after := dump(t, client); !maps.Equal(before, after) || used == 0 && len(after) > 0 {
			t.Errorf("a peek changed Redis from\n%q to\n%q", before, after)
		}
		require.NoError(t, f.Take(context.Background(), bounds, statuses))
	}
}
