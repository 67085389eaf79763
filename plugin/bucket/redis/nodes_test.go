package redis

import (
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestNodesThatLiveAreCountedByNamespace(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	beat := func(want int, namespace, node string, ttl time.Duration) {
		t.Helper()
		if live, err := f.Beat(t.Context(), namespace, node, ttl); live != want || err != nil {
			t.Errorf("%s of %s: %d nodes live, %v; want %d", node, namespace, live, err, want)
		}
	}
	beat(1, "a", "one", time.Hour)
	beat(1, "a", "one", time.Hour)
	beat(2, "a", "two", time.Hour)
	beat(1, "b", "one", time.Hour)
	if err := f.Leave(t.Context(), "a", "one"); err != nil {
		t.Error(err)
	}
	beat(1, "a", "two", time.Hour)
	if ttl := client.PTTL(t.Context(), "rl:a:{n}").Val(); ttl <= time.Hour {
		t.Errorf("the key expires in %v, want some time after the last node would", ttl)
	}
}

func TestANodeThatSaysNothingMoreIsDead(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	if _, err := f.Beat(t.Context(), "a", "silent", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	await.That(t, "the silent node is dead", func() bool {
		live, err := f.Beat(t.Context(), "a", "speaks", time.Hour)
		return err == nil && live == 1
	})
}

func TestANodeFromBeforeTheClockSteppedBackDoesNotLiveForever(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	must(t, client, "zadd", "rl:a:{n}", time.Now().Add(48*time.Hour).UnixMilli(), "future")
	if live, err := f.Beat(t.Context(), "a", "present", time.Minute); live != 1 || err != nil {
		t.Errorf("%d nodes live, %v; want 1", live, err)
	}
}
