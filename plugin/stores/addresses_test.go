package stores_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/stores"
)

const (
	strangers     = 50_000
	mostStrangers = 5000
)

// daily is a bound of a hundred thousand requests a day.
func daily(t *testing.T, key policy.Key, mode policy.FailMode) policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100_000, Window: 86_400 * limit.Second})
	if err != nil {
		t.Fatal(err)
	}
	key.Namespace, key.Policy = "default", "daily"
	return policy.Bound{Policy: &policy.Policy{Name: "daily", Limit: l, FailMode: mode}, Key: key, Cost: 1}
}

// flood has each of many addresses send a request, and returns how many were admitted.
func flood(t *testing.T, view taker) (admitted int) {
	t.Helper()
	const clients = 16
	bound := daily(t, policy.Key{Group: policy.ByIP}, policy.FailOpen)
	counts := make([]int, clients)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			bounds, statuses := []policy.Bound{bound}, make([]decision.Status, 1)
			for i := c; i < strangers; i += clients {
				bounds[0].Key.Owner = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
				if err := view.Take(t.Context(), bounds, statuses); err != nil {
					t.Error(err)
					return
				}
				if !decision.Denies(&bounds[0], &statuses[0]) {
					counts[c]++
				}
			}
		})
	}
	all.Wait()
	for _, n := range counts {
		admitted += n
	}
	return admitted
}

func TestStrangersWhoFillRedisDenyNoTenant(t *testing.T) {
	server := redistest.Single(t, "--maxmemory", "7mb", "--maxmemory-policy", "noeviction")
	of := stores.New(t.Context(), stores.Options{
		Now:     func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) },
		Elapsed: func() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) },
		Budget:  time.Minute, Log: slog.New(slog.DiscardHandler), Nodes: 1, MaxAddresses: mostStrangers, NewAddresses: -1,
	})
	run(t, of)
	config := inRedis(server.Port)
	view := opened(t, of, &config)
	if admitted := flood(t, view); admitted != strangers {
		t.Errorf("%d of %d addresses are admitted by a limit that each is far below", admitted, strangers)
	}
	for i := range 100 {
		bounds, statuses := []policy.Bound{daily(t, policy.Key{Group: policy.ByTenant, Owner: fmt.Sprint("tenant-", i)}, policy.FailClosed)}, make([]decision.Status, 1)
		if err := view.Take(t.Context(), bounds, statuses); err != nil {
			t.Fatal(err)
		}
		if statuses[0].Source != decision.Redis || !statuses[0].Admits() {
			t.Fatalf("tenant %d after the flood: %+v, want it admitted by Redis", i, statuses[0])
		}
	}
	keys, err := server.Client(t).DBSize(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(mostStrangers + mostStrangers/10 + 64 + 100 + 1); keys > most {
		t.Errorf("%d keys in Redis, want %d at most", keys, most)
	}
	stats := of.Stats()[0].Addresses
	if stats.Apart+stats.Prefix+stats.Local != strangers || stats.Apart < mostStrangers/2 || stats.Kept > stats.Most {
		t.Errorf("%+v: want %d addresses in all, and %d of them with a bucket of their own", stats, strangers, mostStrangers)
	}
}
