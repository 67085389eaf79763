package redis

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

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

const hour = 3600 * limit.Second

// bound is a bound of cost 1 in tenant acme's bucket.
func bound(t testing.TB, name string, spec limit.Spec) policy.Bound {
	t.Helper()
	l, err := limit.New(spec)
	require.NoError(t, err, "compile the limit of %s", name)
	return policy.Bound{
		Policy: &policy.Policy{Name: name, Limit: l},
		Key:    policy.Key{Namespace: "default", Policy: name, Group: policy.ByTenant, GroupID: "acme"},
		Cost:   1,
	}
}

// of is b in the bucket of one of acme's users.
func of(b policy.Bound, user string) policy.Bound {
	b.Key.Kind, b.Key.Subject = policy.KindUser, user
	return b
}

func costing(b policy.Bound, cost int64) policy.Bound {
	b.Cost = cost
	return b
}

func hundred(t testing.TB) policy.Bound {
	return bound(t, "daily", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: 24 * hour})
}

// fixture is a store on a Redis of its own, by Redis's own clock.
type fixture struct {
	*Store
	client *redis.Client
	logged *bytes.Buffer // what the store logs
}

func newFixture(t testing.TB, args ...string) *fixture {
	f := &fixture{client: redistest.Single(t, args...).Client(t), logged: new(bytes.Buffer)}
	f.Store = newStore("test", &direct{f.client, false}, takeScript, slog.New(slog.NewTextHandler(f.logged, nil)))
	return f
}

func (f *fixture) take(t testing.TB, bounds ...policy.Bound) []decision.Status {
	t.Helper()
	statuses := make([]decision.Status, len(bounds))
	require.NoError(t, f.Take(context.Background(), bounds, statuses), "take %d bounds", len(bounds))
	return statuses
}

func (f *fixture) set(t testing.TB, key string, value any) {
	t.Helper()
	require.NoError(t, f.client.Set(context.Background(), key, value, 0).Err(), "set %s", key)
}

func subjectKey(b policy.Bound) string { return string(appendSubject(nil, &b.Key)) }
func logKey(b policy.Bound) string     { return string(appendLog(nil, &b.Key)) }

func TestSomebodyElsesKeyIsNotTouchedAndTheOtherLimitsDecide(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	theirs, ours := of(hundred(t), "u"), costing(hundred(t), 100)
	require.NoError(t, f.client.LPush(ctx, subjectKey(theirs), "theirs").Err())
	statuses := f.take(t, theirs, ours)
	if s := statuses[0]; s.Source != decision.Unanswered || s.Wait != 0 {
		t.Errorf("the bound of the foreign key says %+v, want it unanswered", s)
	}
	if s := statuses[1]; s.Source != decision.Redis || s.Used != 100 || s.Wait != 0 {
		t.Errorf("the other bound says %+v, want it charged", s)
	}
	statuses = f.take(t, theirs, ours)
	if statuses[0].Source != decision.Unanswered || statuses[1].Admits() {
		t.Errorf("with the other bound empty: %+v", statuses)
	}
	if list, err := f.client.LRange(ctx, subjectKey(theirs), 0, -1).Result(); err != nil || len(list) != 1 ||
		list[0] != "theirs" {
		t.Errorf("the foreign key now holds %v (%v)", list, err)
	}
	assert.EqualValues(t, 2, f.Stats().Taken, "foreign keys counted")
	if text := f.logged.String(); !strings.Contains(text, "foreign") || !strings.Contains(text, subjectKey(theirs)) {
		t.Errorf("the log does not name the key: %s", text)
	}
}

func TestSomebodyElsesKeyInTheLogsPlaceIsNotTouched(t *testing.T) {
	f := newFixture(t)
	b := bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 5, Window: hour})
	require.NoError(t, f.client.HSet(context.Background(), logKey(b), "theirs", "1").Err())
	statuses := f.take(t, b, hundred(t))
	if statuses[0].Source != decision.Unanswered || statuses[1].Source != decision.Redis || statuses[1].Used != 1 {
		t.Errorf("statuses are %+v: want the log unanswered and the other charged", statuses)
	}
	assert.Equal(t, "hash", f.client.Type(context.Background(), logKey(b)).Val(), "the foreign key is now a")
}

func TestForeignValuesAreReadAsEmptyBucketsAndCounted(t *testing.T) {
	f := newFixture(t)
	b := of(hundred(t), "u")
	f.take(t, costing(b, 99))
	whole, err := f.client.Get(context.Background(), subjectKey(b)).Result()
	require.NoError(t, err)
	counted := f.Stats().Foreign
	later := string(rune(firstByte(0)+16)) + whole[1:] // of a later format
	for _, value := range []string{
		"", "1", "12345", whole[:len(whole)-1], whole + "x", strings.Repeat("x", 1000), later,
	} {
		f.set(t, subjectKey(b), value)
		if s := f.take(t, b)[0]; !s.Admits() || s.Used != 1 {
			t.Errorf("with %q: %+v, want an empty bucket", value, s)
		}
		if counted++; f.Stats().Foreign != counted {
			t.Errorf("with %q: %d foreign values counted, want %d", value, f.Stats().Foreign, counted)
		}
		if s := f.take(t, b)[0]; s.Used != 2 {
			t.Errorf("after %q was replaced: %+v, want 2 used", value, s)
		}
	}
}

// Whatever bytes stand where a bucket should, the script and Go read the same, and no request fails.
func TestScriptAndGoReadAnyBytesAlike(t *testing.T) {
	f := newFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		flush(t, f.client)
		l := storetest.Limits().Draw(rt, "limit")
		b := policy.Bound{
			Policy: &policy.Policy{Limit: *l},
			Key:    policy.Key{Policy: "p", Group: policy.ByIP, GroupID: "o"}, Cost: 1,
		}
		entry := append(appendName(nil, &b.Key), rapid.SliceOfN(rapid.Byte(), 31, 31).Draw(rt, "bucket")...)
		if rapid.Bool().Draw(rt, "algorithm exists") {
			entry[nameSize] = byte(rapid.IntRange(0, 7).Draw(rt, "algorithm"))
		}
		for _, top := range []int{10, 17, 24, 30, 36} { // the highest byte of each number
			if rapid.Bool().Draw(rt, "small") {
				entry[top] = byte(rapid.IntRange(0, 32).Draw(rt, "top"))
			}
		}
		value := append([]byte{firstByte(0)}, rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(rt, "life")...)
		value = append(value, entry...)
		f.set(t, subjectKey(b), value)
		if rapid.Bool().Draw(rt, "with entries") {
			f.set(t, logKey(b), rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(rt, "entries"))
		}
		statuses := make([]decision.Status, 1)
		for range 2 { // an admission is written, and read again
			require.NoError(rt, f.Take(context.Background(), []policy.Bound{b}, statuses), "%q under %+v", value, l.Spec())
		}
	})
}

func TestALogWithAnyEntriesFailsNoRequest(t *testing.T) {
	f := newFixture(t)
	b := bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 50, Window: hour})
	for range 30 {
		f.take(t, b)
	}
	value, entries := f.client.Get(context.Background(), subjectKey(b)).Val(),
		f.client.Get(context.Background(), logKey(b)).Val()
	rapid.Check(t, func(rt *rapid.T) {
		broken := []byte(entries[:rapid.IntRange(0, len(entries)).Draw(rt, "length")])
		for range rapid.IntRange(0, 5).Draw(rt, "changes") {
			if len(broken) > 0 {
				broken[rapid.IntRange(0, len(broken)-1).Draw(rt, "place")] = rapid.Byte().Draw(rt, "byte")
			}
		}
		f.set(t, subjectKey(b), value)
		f.set(t, logKey(b), broken)
		for range 3 {
			request := costing(b, rapid.Int64Range(0, 51).Draw(rt, "cost"))
			if err := f.Take(context.Background(), []policy.Bound{request}, make([]decision.Status, 1)); err != nil {
				rt.Fatalf("cost %d with the entries %q: %v", request.Cost, broken, err)
			}
		}
	})
}

func TestALogThatLostItsEntriesIsEmptyAndCounted(t *testing.T) {
	f := newFixture(t)
	b := bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 5, Window: hour})
	f.take(t, costing(b, 5))
	require.NoError(t, f.client.Del(context.Background(), logKey(b)).Err())
	if s := f.take(t, b)[0]; !s.Admits() || s.Used != 1 {
		t.Errorf("without its entries: %+v, want an empty bucket", s)
	}
	assert.EqualValues(t, 1, f.Stats().Foreign, "values counted")
	if s := f.take(t, costing(b, 4))[0]; !s.Admits() || s.Used != 5 {
		t.Errorf("after that: %+v, want 5 used", s)
	}
}

func TestAFullRedisRejectsWholeRequestsAndChargesNothing(t *testing.T) {
	f := newFixture(t, "--maxmemory-policy", "noeviction")
	known, fresh := hundred(t), of(hundred(t), "new")
	f.take(t, known)
	require.NoError(t, f.client.ConfigSet(context.Background(), "maxmemory", "1").Err())
	for i, s := range f.take(t, known, fresh) {
		if s.Source != decision.Unanswered || s.Failure != decision.Unavailable {
			t.Errorf("with a full Redis bound %d says %+v, want that Redis is unavailable", i, s)
		}
	}
	if logged := f.logged.String(); !strings.Contains(logged, "OOM") {
		t.Errorf("log is %q, want the error that Redis gave", logged)
	}
	require.NoError(t, f.client.ConfigSet(context.Background(), "maxmemory", "0").Err())
	for i, s := range f.take(t, costing(known, 0), costing(fresh, 0)) {
		assert.Equal(t, int64(1-i), s.Used, "bound %d has %d used, want %d", i, s.Used, 1-i)
	}
}
