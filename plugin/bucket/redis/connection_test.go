package redis

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestSoakAStoreKeepsItsPromisesWithAPipelineAndWithout(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, turnedClock, at(server, pipelined))
		comparing(pipelined)(t, func(t *testing.T) (store.Store, storetest.Clock) {
			flush(t, client)
			return turned(c.store), newClock(t, client)
		})
	})
}

// daily is a bound of so many tokens a day, whose bucket is its tenant's in a group.
func daily(t testing.TB, tokens int64, group policy.Group, tenant string) policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: tokens, Window: 86400 * limit.Second})
	require.NoError(t, err)
	return policy.Bound{
		Policy: &policy.Policy{Name: "daily", Limit: l, Cost: -1},
		Key:    policy.Key{Namespace: "default", Policy: "daily", Group: group, GroupID: tenant},
		Cost:   1,
	}
}

// offer takes bounds from many goroutines through all stores in turn, and answers how many were admitted.
func offer(t testing.TB, bounds []policy.Bound, stores ...*Store) int64 {
	t.Helper()
	var turn, admitted atomic.Int64
	err := atOnce(16, 10, func() error {
		statuses := make([]decision.Status, len(bounds))
		store := stores[turn.Add(1)%int64(len(stores))]
		if err := store.Take(context.Background(), bounds, statuses); err != nil {
			return err
		}
		for i := range statuses {
			if !statuses[i].Admits() {
				return nil
			}
		}
		admitted.Add(1)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return admitted.Load()
}

// opened are the stores of two nodes: with the same settings, but not of one process.
func opened(t testing.TB, block schema.Redis) []*Store {
	t.Helper()
	var stores []*Store
	for range 2 {
		store, release, err := NewRegistry(quiet, openGates{}).Open(block)
		require.NoError(t, err)
		t.Cleanup(release)
		stores = append(stores, store)
	}
	return stores
}

func TestTwoNodesShareALimitExactly(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		flush(t, client)
		stores := opened(t, at(server, pipelined))
		bounds := []policy.Bound{
			daily(t, 100, policy.ByTenant, "acme"), daily(t, 1000, policy.ByIP, "192.0.2.7"),
			daily(t, 1000, policy.ByAll, ""),
		}
		must(t, client, "config", "resetstat")
		if admitted := offer(t, bounds, stores...); admitted != 100 {
			t.Errorf("%d requests were admitted of a limit of 100", admitted)
		}
		// Each process may miss the script at first. The wire merges calls.
		n := calls(t, client)["evalsha"]
		if n > 160+32 || n < 160/maxMerged || !pipelined && n < 160 {
			t.Errorf("160 requests are %d EVALSHA", n)
		}
	})
}

func TestInAClusterEachGroupOfARequestIsOneEvalsha(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	eachWay(t, func(t *testing.T, pipelined bool) {
		for _, master := range nodes.Masters {
			flush(t, master.Client(t))
			must(t, master.Client(t), "script", "load", takeScript.source)
			must(t, master.Client(t), "config", "resetstat")
		}
		stores := opened(t, among(nodes, pipelined))
		bounds := []policy.Bound{
			daily(t, 100, policy.ByTenant, "acme"), daily(t, 1000, policy.ByTenant, "acme"),
			daily(t, 1000, policy.ByIP, "192.0.2.7"), daily(t, 1000, policy.ByAll, ""),
		}
		bounds[1].Key.Policy = "other"
		if admitted := offer(t, bounds, stores...); admitted != 100 {
			t.Errorf("%d requests were admitted of a limit of 100", admitted)
		}
		evalshas, others := 0, 0
		for _, master := range nodes.Masters {
			calls := calls(t, master.Client(t))
			evalshas += calls["evalsha"]
			others += calls["eval"] + calls["script|load"]
		}
		// The groups of 160 requests, and what the 60 denied ones gave back: the address's and everybody's tokens.
		if want := 160*3 + 60*2; evalshas != want || others != 0 {
			t.Errorf("%d EVALSHA, want %d, and %d EVAL and SCRIPT LOAD", evalshas, want, others)
		}
		read := []policy.Bound{bounds[2], bounds[3]}
		read[0].Cost, read[1].Cost = 0, 0
		statuses := make([]decision.Status, 2)
		require.NoError(t, stores[0].Take(t.Context(), read, statuses))
		// A refund keeps what the bucket may have got back meanwhile: all of them together less than a token.
		if statuses[0].Used < 100 || statuses[0].Used > 101 || statuses[1].Used < 100 || statuses[1].Used > 101 {
			t.Errorf("100 admitted requests have spent %d and %d of the other groups' buckets",
				statuses[0].Used, statuses[1].Used)
		}
	})
}

func TestARequestWithoutBoundsDoesNotAskRedis(t *testing.T) {
	store, release, err := NewRegistry(quiet,
		openGates{}).Open(schema.Redis{Host: "127.0.0.1", Port: int64(freeport.Port(t))})
	require.NoError(t, err)
	defer release()
	if err := store.Take(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
}
