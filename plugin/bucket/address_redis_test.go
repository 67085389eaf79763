package bucket_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// inTwo returns a config whose addresses have a Redis of their own.
func inTwo(main, second *redistest.Server) schema.Config {
	config := inRedis(main.Port)
	config.AddressRedis = schema.Redis{
		Host: second.Host, Port: int64(second.Port), ConnectTimeout: 60_000, SendTimeout: 60_000, ReadTimeout: 60_000,
	}
	return config.WithDefaults()
}

// The keys of requests: of a tenant, of an address, and of a user of the tenant that only an address names.
var (
	ofTenant   = policy.Key{Group: policy.ByTenant, GroupID: "acme"}
	ofAddress  = policy.Key{Group: policy.ByIP, GroupID: "192.0.2.1"}
	ofNameless = policy.Key{Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindIP, Subject: "192.0.2.2"}
	ofUser     = policy.Key{Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindUser, Subject: "u"}
)

// spend takes one token from each bucket, by a policy of one fail mode for all.
func spend(t *testing.T, from taker, mode policy.FailMode, keys ...policy.Key) []decision.Status {
	t.Helper()
	var bounds []policy.Bound
	for _, key := range keys {
		bound := daily(t, key, mode)
		bound.Policy.Accuracy = policy.Exact // so that each request asks Redis
		bounds = append(bounds, bound)
	}
	statuses := make([]decision.Status, len(bounds))
	require.NoError(t, from.Take(t.Context(), bounds, statuses))
	return statuses
}

// keysIn returns the keys of buckets in a Redis.
func keysIn(t *testing.T, server *redistest.Server) (keys []string) {
	t.Helper()
	all, err := server.Client(t).Keys(t.Context(), "rl:*").Result()
	require.NoError(t, err)
	for _, key := range all {
		if !strings.HasSuffix(key, ":{n}") {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestOnlyBucketsOfAddressesAreInTheSecondRedis(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t)
	of, _ := serving(t, time.Minute)
	config := inTwo(main, second)
	view := opened(t, of, &config)
	for i, s := range spend(t, view, policy.FailClosed, ofTenant, ofAddress, ofNameless, ofUser) {
		assert.True(t, s.Source == decision.Redis && s.Used == 1, "bound %d: %+v, want it spent in Redis", i, s)
	}
	if keys := keysIn(t, second); len(keys) != 2 || !strings.Contains(strings.Join(keys, " "), "{i=192.0.2.1}") ||
		!strings.Contains(strings.Join(keys, " "), ":i=192.0.2.2") {
		t.Errorf("the second Redis has %q, want both addresses", keys)
	}
	if keys := keysIn(t, main); len(keys) != 2 || strings.Contains(strings.Join(keys, " "), "192.0.2") {
		t.Errorf("the first Redis has %q, want the tenant and its user", keys)
	}
	stats := map[bool]bucket.Stats{}
	for _, s := range of.Stats() {
		stats[s.Second] = s
	}
	if len(stats) != 2 || stats[false].Addresses.Apart != 0 || stats[true].Addresses.Apart != 2 ||
		stats[true].Redis.Calls == 0 {
		t.Errorf("%+v: want the addresses among the numbers of the second Redis", stats)
	}
}

func TestReadersAndOperatorsFindBucketsInTheRedisThatHasThem(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t)
	of, _ := serving(t, time.Minute)
	config := inTwo(main, second)
	view := opened(t, of, &config)
	for name, open := range map[string]func(*schema.Config) (bucket.Central, func(), error){
		"readers": of.OpenCentral, "operators": of.OpenOperators,
	} {
		t.Run(name, func(t *testing.T) {
			spend(t, view, policy.FailClosed, ofTenant, ofAddress)
			shared, release, err := open(&config)
			require.NoError(t, err)
			t.Cleanup(release)
			bounds := []policy.Bound{daily(t, ofTenant, policy.FailClosed), daily(t, ofAddress, policy.FailClosed)}
			statuses := make([]decision.Status, 2)
			if err := shared.Peek(t.Context(), bounds, statuses); err != nil || statuses[0].Used != 1 || statuses[1].Used != 1 {
				t.Errorf("%+v, %v: want one used of each", statuses, err)
			}
			if n, err := shared.Forget(t.Context(), policy.KeysOf(bounds)); n != 2 || err != nil {
				t.Errorf("%d buckets are emptied, %v: want both", n, err)
			}
			if err := shared.Peek(t.Context(), bounds, statuses); err != nil || statuses[0].Used != 0 || statuses[1].Used != 0 {
				t.Errorf("%+v, %v: want nothing used", statuses, err)
			}
		})
	}
}

func TestWhileOneRedisIsUnavailableOnlyTheLimitsInItFollowTheirFailModes(t *testing.T) {
	for name, secondUnavailable := range map[string]bool{"the second": true, "the first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := map[bool]*redistest.Server{false: redistest.Single(t), true: redistest.Single(t)}
			of, _ := serving(t, time.Minute)
			config := inTwo(servers[false], servers[true])
			view := opened(t, of, &config)
			there, unavailable := ofTenant, ofAddress
			if !secondUnavailable {
				there, unavailable = ofAddress, ofTenant
			}
			spend(t, view, policy.FailClosed, there, unavailable)
			servers[secondUnavailable].Kill()

			if s := spend(t, view, policy.FailClosed, there)[0]; s.Source != decision.Redis || s.Used != 2 {
				t.Errorf("the Redis that is there: %+v, want 2 used in it", s)
			}
			both := spend(t, view, policy.FailLocal, there, unavailable)
			if both[0].Source != decision.Redis || both[0].Used != 3 || both[1].Source != decision.Local ||
				both[1].Failure == decision.NoFailure {
				t.Errorf("fail mode local: %+v, want 3 used in Redis, and the other counted here", both)
			}
			both = spend(t, view, policy.FailOpen, there, unavailable)
			if both[0].Source != decision.Redis || both[0].Used != 4 || both[1].Source != decision.Unanswered {
				t.Errorf("fail mode open: %+v, want 4 used in Redis, and the other unanswered", both)
			}
			both = spend(t, view, policy.FailClosed, there, unavailable)
			if both[0].Charged || both[1].Source != decision.Unanswered {
				t.Errorf("fail mode closed: %+v, want nothing spent", both)
			}
			if s := spend(t, view, policy.FailClosed, there)[0]; s.Used != 5 {
				t.Errorf("after a request that failed closed: %+v, want 5 used", s)
			}
			await.That(t, "the second Redis alone is degraded", func() bool {
				spend(t, view, policy.FailOpen, unavailable)
				for _, s := range of.Stats() {
					if s.Degraded != (s.Second == secondUnavailable) {
						return false
					}
				}
				return true
			})
		})
	}
}

func TestEachRedisOfAPairIsPingedByItself(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t)
	of, _ := serving(t, time.Minute)
	config, alone := inTwo(main, second), inRedis(main.Port)
	second.Kill()
	for _, test := range []struct {
		config *schema.Config
		fails  bool
	}{{&config, true}, {&alone, false}} {
		shared, release, err := of.OpenCentral(test.config)
		require.NoError(t, err)
		t.Cleanup(release)
		assert.NoError(t, shared.Ping(t.Context()), "the first Redis")
		if err := shared.PingSecond(t.Context()); (err != nil) != test.fails {
			t.Errorf("the second Redis: %v, want an error: %t", err, test.fails)
		}
	}
}

func TestASecondRedisThatIsFullDeniesNoTenant(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t, "--maxmemory-policy", "noeviction")
	of, _ := serving(t, time.Minute)
	config := inTwo(main, second)
	view := opened(t, of, &config)
	spend(t, view, policy.FailClosed, ofTenant, ofAddress)
	require.NoError(t, second.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	for i := range int64(200) {
		if s := spend(t, view, policy.FailClosed, ofTenant)[0]; s.Source != decision.Redis || s.Used != i+2 {
			t.Fatalf("%+v: want %d used in Redis", s, i+2)
		}
		address := ofAddress
		address.GroupID = "198.51.100." + string(rune('0'+i%10))
		if s := spend(t, view, policy.FailLocal, address)[0]; s.Source != decision.Local {
			t.Fatalf("an address: %+v, want it counted in this process", s)
		}
	}
}

func TestConfigsThatShareTheFirstRedisAloneCountAddressesApart(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t)
	of, _ := serving(t, time.Minute)
	both, alone := inTwo(main, second), inRedis(main.Port)
	withSecond, without := opened(t, of, &both), opened(t, of, &alone)
	spend(t, withSecond, policy.FailClosed, ofTenant, ofAddress)
	statuses := spend(t, without, policy.FailClosed, ofTenant, ofAddress)
	if statuses[0].Used != 2 || statuses[1].Used != 1 {
		t.Errorf("%+v: want 2 used of the tenant, and 1 of the address", statuses)
	}
	var calls uint64
	for _, s := range of.Stats() {
		calls += s.Redis.Calls
	}
	assert.EqualValues(t, 3, calls, "%d calls of Redis are counted, want 2 of the request with a second, and 1", calls)
}

func TestWhatAnAddressWasAdmittedWithoutItsRedisIsChargedThere(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t)
	of, _ := serving(t, time.Minute)
	config := inTwo(main, second)
	view := opened(t, of, &config)
	spend(t, view, policy.FailOpen, ofTenant, ofAddress)
	second.Kill()
	const without = 20
	for range without {
		if s := spend(t, view, policy.FailOpen, ofAddress)[0]; s.Source != decision.Unanswered {
			t.Fatalf("%+v: want no answer", s)
		}
	}
	second.Restart(t) // it has forgotten what was used
	shared, release, err := of.OpenCentral(&config)
	require.NoError(t, err)
	t.Cleanup(release)
	read, status := []policy.Bound{daily(t, ofAddress, policy.FailOpen)}, make([]decision.Status, 1)
	await.That(t, "the debt is charged", func() bool {
		require.NoError(t, shared.Peek(t.Context(), read, status))
		return status[0].Source == decision.Redis && status[0].Used == without
	})
	if keys := keysIn(t, main); len(keys) != 1 {
		t.Errorf("the first Redis has %q, want the tenant alone", keys)
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
	spend(t, view, policy.FailOpen, ofTenant)
	allow("-mget")
	const without = 200
	for range without {
		if s := spend(t, view, policy.FailOpen, ofTenant)[0]; s.Failure != decision.Unavailable {
			t.Fatalf("%+v: want that nothing was spent", s)
		}
	}
	allow("+mget")
	shared, release, err := of.OpenCentral(&config)
	require.NoError(t, err)
	t.Cleanup(release)
	read, status := []policy.Bound{daily(t, ofTenant, policy.FailOpen)}, make([]decision.Status, 1)
	await.That(t, "the debt is charged", func() bool {
		require.NoError(t, shared.Peek(t.Context(), read, status))
		return status[0].Source == decision.Redis && status[0].Used == 1+without
	})
}
