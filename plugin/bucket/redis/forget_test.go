package redis

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestAForgottenBucketIsEmptyAndItsNeighboursAreNot(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	var bounds []policy.Bound
	for _, name := range []string{"a", "b", "c"} {
		bounds = append(bounds, costing(bound(t, name, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: hour}),
			4))
	}
	log := costing(of(bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: hour}), "u"), 4)
	never := of(bounds[0], "never seen")
	f.take(t, append(bounds, log)...)
	n, err := f.Forget(t.Context(), []policy.Key{bounds[1].Key, log.Key, never.Key})
	if n != 2 || err != nil {
		t.Fatalf("%d buckets, %v, want 2", n, err)
	}
	for i, want := range []int64{4, 0, 4} {
		if s := f.take(t, costing(bounds[i], 0))[0]; s.Used != want {
			t.Errorf("bucket %d has %d used, want %d", i, s.Used, want)
		}
	}
	if s := f.take(t, costing(log, 1))[0]; s.Used != 1 {
		t.Errorf("the log has %d used after one more request, want 1", s.Used)
	}
	if keys := client.Keys(t.Context(), "*log*").Val(); len(keys) != 1 {
		t.Errorf("keys of logs are %q, want the new one", keys)
	}
	if n, err := f.Forget(t.Context(), []policy.Key{bounds[0].Key, bounds[2].Key}); n != 2 || err != nil {
		t.Errorf("%d buckets, %v, want 2", n, err)
	}
	if n := client.Exists(t.Context(), string(appendSubject(nil, &bounds[1].Key))).Val(); n != 0 {
		t.Error("a subject without buckets is still there")
	}
}

func TestWhatIsNotOursIsNotForgotten(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	b := hundred(t)
	f.set(t, string(appendSubject(nil, &b.Key)), "another program's")
	must(t, client, "rpush", logKey(b), "another program's")
	if n, err := f.Forget(t.Context(), []policy.Key{b.Key}); n != 0 || err != nil {
		t.Errorf("%d buckets, %v", n, err)
	}
	if value := client.Get(t.Context(), string(appendSubject(nil, &b.Key))).Val(); value != "another program's" {
		t.Errorf("the key now holds %q", value)
	}
}
