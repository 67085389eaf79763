package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestAServerAnswersOnItsSocketAndPort(t *testing.T) {
	s := redistest.Single(t, "--maxmemory", "5mb")
	direct := redis.NewClient(&redis.Options{Addr: s.Address()})
	defer direct.Close()
	for _, client := range []*redis.Client{s.Client(t), direct} {
		answer, err := client.ConfigGet(context.Background(), "maxmemory").Result()
		if err != nil || answer["maxmemory"] != "5242880" {
			t.Errorf("maxmemory is %v (%v), want that of the option", answer, err)
		}
	}
	s.Kill()
	if direct.Ping(context.Background()).Err() == nil {
		t.Error("a killed server answers")
	}
}

func TestAClusterServesEverySlot(t *testing.T) {
	nodes := redistest.Cluster(t, 3, 1)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes.Addresses()})
	defer client.Close()
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "{t=acme}"} {
		if err := client.Set(context.Background(), key, "1", 0).Err(); err != nil {
			t.Errorf("set %s: %v", key, err)
		}
	}
}

func TestSentinelsNameTheMaster(t *testing.T) {
	w := redistest.Sentinel(t)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: w.Addresses(),
	})
	defer client.Close()
	require.NoError(t, client.Set(context.Background(), "a", "1", 0).Err())
	if n, err := w.Master.Client(t).Exists(context.Background(), "a").Result(); n != 1 || err != nil {
		t.Errorf("the master does not have the key: %d, %v", n, err)
	}
}

func TestAKilledServerRestartsEmptyOnItsPortAndSocket(t *testing.T) {
	s := redistest.Single(t)
	ctx, client := context.Background(), s.Client(t)
	direct := redis.NewClient(&redis.Options{Addr: s.Address()})
	defer direct.Close()
	require.NoError(t, client.Set(ctx, "a", "1", 0).Err())
	s.Kill()
	s.Restart(t)
	for _, c := range []*redis.Client{client, direct} {
		if n, err := c.DBSize(ctx).Result(); n != 0 || err != nil {
			t.Errorf("%d keys after the restart (%v), want an empty server", n, err)
		}
	}
}

func TestTheClockOfAScriptStepsBothWays(t *testing.T) {
	c := redistest.SingleClocked(t)
	ctx, client := context.Background(), c.Client(t)
	const step, near = 10 * time.Minute, 10 * time.Second
	for _, by := range []time.Duration{0, step, -step, 0} {
		c.Step(t, by)
		seconds, err := client.Eval(ctx, `return redis.call("TIME")[1]`, nil).Int64()
		require.NoError(t, err)
		if off := time.Until(time.Unix(seconds, 0)) - by; off.Abs() > near {
			t.Errorf("after a step to %v the clock is off by %v", by, off)
		}
	}
	require.NoError(t, client.Set(ctx, "a", "1", time.Minute).Err())
	c.Step(t, step)
	if n, err := client.Exists(ctx, "a").Result(); n != 0 || err != nil {
		t.Errorf("%d keys (%v) after the clock has passed their end, want 0", n, err)
	}
}
