// These tests are about the wiring; what each layer does is shown by its own package.
package bucket_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var started = time.Now()

// serving makes stores that are served until the end of the test, or until stop is called, which waits for it.
func serving(t testing.TB, budget time.Duration) (of *bucket.Stores, stop func()) {
	of = bucket.New(context.Background(), bucket.Options{
		Now:     func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) },
		Elapsed: func() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) },
		Budget:  budget, Log: slog.New(slog.DiscardHandler), MaxBuckets: 10, Nodes: 1, LeaseShare: 2,
	})
	return of, run(t, of)
}

// run serves stores until the end of the test, or until stop is called, which waits for it.
func run(t testing.TB, of *bucket.Stores) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- of.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended, "the stores end with")
		close(ended)
	})
	return func() {
		cancel()
		ended <- <-ended
	}
}

func inRedis(port int) schema.Config {
	return schema.Config{
		Strategy: schema.StrategyRedis,
		Redis: schema.Redis{
			Host: "127.0.0.1", Port: int64(port), ConnectTimeout: 60_000, SendTimeout: 60_000, ReadTimeout: 60_000,
		},
	}.WithDefaults()
}

// opened is a view on the buckets of a config, until the test ends.
func opened(t testing.TB, of *bucket.Stores, config *schema.Config) taker {
	t.Helper()
	view, release, err := of.Open(config)
	require.NoError(t, err)
	t.Cleanup(release)
	return view
}

// ten are the bounds of a request that costs so much of ten a day, which all tenants share.
func ten(t *testing.T, cost int64) []policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: 86_400 * limit.Second})
	require.NoError(t, err)
	key := policy.Key{Namespace: "default", Policy: "p", Group: policy.ByAll}
	return []policy.Bound{{Policy: &policy.Policy{Name: "p", Limit: l, FailMode: policy.FailOpen}, Key: key, Cost: cost}}
}

type taker interface {
	Take(context.Context, []policy.Bound, []decision.Status) error
}

func take(t *testing.T, from taker, cost int64) decision.Status {
	t.Helper()
	var statuses [1]decision.Status
	require.NoError(t, from.Take(t.Context(), ten(t, cost), statuses[:]))
	return statuses[0]
}

// peek returns how the bucket of ten stands.
func peek(t *testing.T, from bucket.Central) decision.Status {
	t.Helper()
	var statuses [1]decision.Status
	require.NoError(t, from.Peek(t.Context(), ten(t, 1), statuses[:]))
	return statuses[0]
}

func TestARequestDoesNotExceedItsTimeBudgetForARedisThatMayTakeLonger(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0") // it connects, and never says a word
	require.NoError(t, err)
	defer mute.Close()
	of, _ := serving(t, 50*time.Millisecond)
	config := inRedis(mute.Addr().(*net.TCPAddr).Port)
	view := opened(t, of, &config)
	begun := time.Now()
	if status := take(t, view, 1); status.Failure == decision.NoFailure {
		t.Errorf("%+v: want no answer", status)
	}
	if took := time.Since(begun); took > 10*time.Second { // far from the minute that the config allows
		t.Errorf("a request waited %v, with a budget of 50 ms", took)
	}
}

func TestConfigsOfOneRedisShareItsBucketsWhichCanBeReadAndEmptied(t *testing.T) {
	server := redistest.Single(t)
	of, _ := serving(t, time.Minute)
	config := inRedis(server.Port)
	var views []taker
	for range 2 {
		views = append(views, opened(t, of, &config))
	}
	shared, release, err := of.OpenCentral(&config)
	require.NoError(t, err)
	defer release()
	take(t, views[0], 3)
	if status := take(t, views[1], 4); status.Remaining != 3 || status.Source != decision.Redis {
		t.Errorf("%+v: want 3 of 10 left in Redis after 3 and 4", status)
	}
	if status := peek(t, shared); status.Remaining != 3 || status.Used != 7 {
		t.Errorf("%+v: want 7 used and 3 left, and reading to spend nothing", status)
	}
	if n, err := shared.Forget(t.Context(), ten(t, 0)); n != 1 || err != nil {
		t.Errorf("%d buckets emptied, %v: want 1", n, err)
	}
	if status := take(t, views[0], 1); status.Remaining != 9 {
		t.Errorf("%+v: want 9 left of an emptied bucket", status)
	}
	if all := of.Stats(); len(all) != 1 || all[0].Name == "" || all[0].Redis.Calls == 0 {
		t.Errorf("%+v: want the numbers of one Redis", all)
	}
}

func TestANodeHasTakenItsLeaveOfTheOthersWhenTheStoresHaveEnded(t *testing.T) {
	server := redistest.Single(t)
	of, stop := serving(t, time.Minute)
	config := inRedis(server.Port)
	view := opened(t, of, &config)
	take(t, view, 1)
	client := server.Client(t)
	registered := func() bool {
		t.Helper()
		found, err := client.Exists(context.Background(), "rl:default:{n}").Result()
		require.NoError(t, err)
		return found > 0
	}
	await.That(t, "the node reports that it lives", registered)
	stop()
	assert.False(t, registered(), "the node is still counted")
	if _, _, err := of.Open(&config); err == nil {
		t.Error("a store was opened that would never be closed")
	}
}

func TestConfigsWithBucketsInThisProcessShareThem(t *testing.T) {
	of, _ := serving(t, time.Second)
	config := schema.Config{}.WithDefaults()
	for left := int64(9); left >= 8; left-- {
		view, release, err := of.Open(&config)
		require.NoError(t, err)
		if status := take(t, view, 1); status.Remaining != left || status.Source != decision.Memory {
			t.Errorf("%+v: want %d left in memory", status, left)
		}
		release()
	}
	assert.Equal(t, 1, of.Local().Buckets, "buckets are kept")
	if _, _, err := of.OpenCentral(&config); !errors.Is(err, bucket.ErrNotCentral) {
		t.Errorf("%v: want the error that there is nothing shared to read", err)
	}
}

func TestAConfigThatNamesNoRedisOpensNothing(t *testing.T) {
	of, _ := serving(t, time.Second)
	config := schema.Config{Strategy: schema.StrategyRedis}
	if _, _, err := of.Open(&config); err == nil {
		t.Error("buckets of no Redis were opened")
	}
	if _, _, err := of.OpenCentral(&config); err == nil {
		t.Error("buckets of no Redis were opened to be read")
	}
}

// Whatever decorates the buckets of a config, a settlement reaches them: of a tenant, of an address, in Redis and in
// this process.
func TestASettlementReachesTheBucketsOfEveryStrategy(t *testing.T) {
	redis := inRedis(redistest.Single(t).Port)
	local := schema.Config{Strategy: schema.StrategyLocal}.WithDefaults()
	for _, config := range []*schema.Config{&redis, &local} {
		of, _ := serving(t, time.Minute)
		view, release, err := of.Open(config)
		require.NoError(t, err)
		defer release()
		bounds := append(ten(t, 8), ten(t, 8)...)
		bounds[1].Key.Group, bounds[1].Key.GroupID = policy.ByIP, "192.0.2.1"
		for _, actual := range [][]int64{{1, 2}, {9, 3}} {
			statuses := make([]decision.Status, 2)
			if err := view.Take(t.Context(), bounds, statuses); err != nil || !statuses[0].Admits() || !statuses[1].Admits() {
				t.Fatalf("%s: %+v, %v: want a request admitted", config.Strategy, statuses, err)
			}
			denied := make([]decision.Status, 2)
			if err := view.Take(t.Context(), bounds, denied); err != nil || denied[0].Admits() && denied[1].Admits() {
				t.Fatalf("%s: %+v, %v: want a second request denied", config.Strategy, denied, err)
			}
			require.NoError(t, view.Settle(t.Context(), bounds, statuses, actual))
			if statuses[0].Settled != actual[0]-8 || statuses[1].Settled != actual[1]-8 {
				t.Errorf("%s: settled to %d with %+v", config.Strategy, actual, statuses)
			}
		}
		shown := make([]decision.Status, 2)
		require.NoError(t, view.Peek(t.Context(), append(ten(t, 0), bounds[1]), shown))
		if shown[0].Used != 10 || shown[1].Used != 5 {
			t.Errorf("%s: %d and %d are used, want 10 and 5", config.Strategy, shown[0].Used, shown[1].Used)
		}
	}
}

func TestOperatorsReadAndEmptyBucketsOfARedisThatIsTooSlowForRequests(t *testing.T) {
	proxy := faultproxy.New(t, redistest.Single(t).Address())
	of, _ := serving(t, time.Minute)
	config := inRedis(proxy.Port())
	config.Redis.SendTimeout, config.Redis.ReadTimeout = 50, 50
	operators, release, err := of.OpenOperators(&config)
	require.NoError(t, err)
	t.Cleanup(release)
	proxy.Delay(150 * time.Millisecond)
	// On a machine that stalls, a call may take longer than the two seconds of operators.
	await.That(t, "a bucket is read", func() bool { return peek(t, operators).Source == decision.Redis })
	await.NoError(t, "a bucket is emptied", func() error {
		_, err := operators.Forget(t.Context(), ten(t, 0))
		return err
	})
	assert.Empty(t, of.Stats(), "numbers of a store that no request uses")
}

func TestOperatorsOfConfigsWithoutRedisGetAnError(t *testing.T) {
	of, _ := serving(t, time.Second)
	config := inRedis(1)
	config.Strategy = "local"
	if _, _, err := of.OpenOperators(&config); !errors.Is(err, bucket.ErrNotCentral) {
		t.Errorf("%v: want %v", err, bucket.ErrNotCentral)
	}
}

func TestWhatIsAdmittedWhileTheACLDeniesACommandIsChargedAfterwards(t *testing.T) {
	server := redistest.Single(t)
	allow := func(rule string) {
		t.Helper()
		require.NoError(t, server.Client(t).Do(t.Context(), "acl", "setuser", "default", rule).Err())
	}
	of, _ := serving(t, time.Minute)
	config := inRedis(server.Port)
	view := opened(t, of, &config)
	read, status := []policy.Bound{daily(t, policy.Key{GroupID: "acme"}, policy.FailOpen)}, make([]decision.Status, 1)
	spend := func() decision.Status {
		t.Helper()
		bound := read[0]
		exact := *bound.Policy
		exact.Accuracy = policy.Exact // so that each request asks Redis
		bound.Policy = &exact
		require.NoError(t, view.Take(t.Context(), []policy.Bound{bound}, status))
		return status[0]
	}
	spend()
	allow("-mget")
	const without = 200
	for range without {
		if s := spend(); s.Failure != decision.Unavailable {
			t.Fatalf("%+v: want that nothing was spent", s)
		}
	}
	allow("+mget")
	shared, release, err := of.OpenCentral(&config)
	require.NoError(t, err)
	t.Cleanup(release)
	await.That(t, "the debt is charged", func() bool {
		require.NoError(t, shared.Peek(t.Context(), read, status))
		return status[0].Source == decision.Redis && status[0].Used == 1+without
	})
}
