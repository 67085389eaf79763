package spec

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

func TestEveryPromiseAboutLimitsHoldsInRedisToo(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	inEveryConfig = fmt.Sprintf("strategy: redis, redis: {socket: %s}, ", server.Socket)
	defer func() { inEveryConfig = "" }()
	for name, promise := range map[string]func(*testing.T){
		"tiers":            TestEachTierMeetsItsOwnLimits,
		"headers":          TestEveryResponseHasTheBindingLimitAndA429HasRetryAfter,
		"retry after":      TestARequestAfterRetryAfterIsAdmitted,
		"all or none":      TestADeniedRequestSpendsNoScope,
		"one quota":        TestATenantsQuotaSpansItsConsumersAndRoutes,
		"namespaces":       TestNamespacesKeepQuotasApart,
		"missing tenant":   TestAMissingTenantIsLimitedByAddressDeniedOrSkipped,
		"missing user":     TestLeavingTheUserOutEvadesNoLimit,
		"endpoints":        TestNoSpellingOfAPathEvadesAnEndpointsLimit,
		"costs":            TestCostsAreSpentAndACostAboveTheCapacityIsDeniedWithAReason,
		"shadow":           TestShadowAndLogNeverDenyAndSendNoHeaders,
		"global":           TestGlobalLimitsHoldForAllTenantsTogether,
		"one token":        TestSoakTheLastTokenAdmitsExactlyOneRequest,
		"nasty identities": TestHostileTenantNamesShareNoBucket,
	} {
		if err := client.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		t.Run(name, promise)
		if size, err := client.DBSize(context.Background()).Result(); err != nil || size == 0 {
			t.Errorf("%s: %d keys in Redis (%v): the promise was not kept there", name, size, err)
		}
	}
}

func TestTwoNodesWithOneRedisShareALimitExactly(t *testing.T) {
	server := redistest.Single(t)
	config := deck(fmt.Sprintf(`{strategy: redis, accuracy: exact,
		redis: {host: 127.0.0.1, port: %[1]d, send_timeout: %[2]d, read_timeout: %[2]d}, tiers: [{name: a, limits: [
		{name: day, scope: tenant, limit: 500, window_size: 86400},
			{name: all, scope: global, limit: 100000, window_size: 60, algorithm: fixed_window}]}]}`, server.Port,
		chaosTimeout.Milliseconds()))
	nodes := []*node{start(t, config), start(t, config)}
	var admitted, denied, other atomic.Int64
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 100 {
				switch a, err := nodes[i%2].send("GET", "/records", "apikey", "alice"); {
				case err == nil && a.Status == 200:
					admitted.Add(1)
				case err == nil && a.Status == 429:
					denied.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	if group.Wait(); admitted.Load() != 500 || denied.Load() != 300 || other.Load() != 0 {
		t.Errorf("admitted %d, denied %d, otherwise %d; want 500, 300, 0", admitted.Load(), denied.Load(), other.Load())
	}
}

func TestSoakFourProcessesOnOneRedisNeverExceedAnyAlgorithmsBound(t *testing.T) {
	server := redistest.Single(t)
	exact(t, load{
		processes: 4, connections: 64, lasts: soak.For(t, 2*time.Second),
		config: fmt.Sprintf(`"strategy":"redis","redis":{"socket":%q},`, server.Socket),
	})
}
