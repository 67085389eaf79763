package redistest_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestSingleAnswersOnSocketAndPort(t *testing.T) {
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

func TestClusterServesEverySlot(t *testing.T) {
	nodes := redistest.Cluster(t, 3, 1)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes.Addresses()})
	defer client.Close()
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "{t=acme}"} {
		if err := client.Set(context.Background(), key, "1", 0).Err(); err != nil {
			t.Errorf("set %s: %v", key, err)
		}
	}
}

func TestSentinelNamesTheMaster(t *testing.T) {
	w := redistest.Sentinel(t)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: w.Addresses()})
	defer client.Close()
	if err := client.Set(context.Background(), "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Master.Client(t).Exists(context.Background(), "a").Result(); n != 1 || err != nil {
		t.Errorf("the master does not have what was written: %d, %v", n, err)
	}
}
