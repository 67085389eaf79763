package spec

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// fairly is a config with one limit of 10 requests a second that all tenants share. The share of a tenant on the tier
// essentials is three times that of one on enterprise.
const fairly = `{%s
	tiers: [{name: essentials}, {name: enterprise}],
	global: {limits: [{name: platform, scope: global, limit: 600, window_size: 60, burst: 10, %s
		fair: {weights: {essentials: 3}}}]}}`

// rush sends requests of the tenant alice to nodes until the test ends: some hundred a second for each time that a node
// is named. It returns how many were admitted, and the last denial.
func rush(t *testing.T, nodes ...*node) (admitted *atomic.Int64, denial *atomic.Pointer[answer]) {
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() {
		stop()
		group.Wait()
	})
	admitted, denial = new(atomic.Int64), new(atomic.Pointer[answer])
	for _, n := range nodes {
		group.Go(func() {
			every := time.NewTicker(3 * time.Millisecond)
			defer every.Stop()
			for ctx.Err() == nil {
				switch a, err := n.send(http.MethodGet, "/records", "apikey", "alice"); {
				case err == nil && a.Status == 200:
					admitted.Add(1)
				case err == nil && a.Status == 429:
					denial.Store(&a)
				}
				select {
				case <-ctx.Done():
				case <-every.C:
				}
			}
		})
	}
	return admitted, denial
}

// keepsShare waits until a tenant that sends two requests a second gets ten in a row admitted. In a bucket that a rush
// empties hundreds of times a second, that does not happen by chance.
func keepsShare(t *testing.T, n *node) {
	t.Helper()
	every := time.NewTicker(500 * time.Millisecond)
	defer every.Stop()
	inRow := 0
	await.That(t, "ten requests in a row of a tenant within its share", func() bool {
		<-every.C
		if n.get("/records", "apikey", "beth").Status == 200 {
			inRow++
		} else {
			inRow = 0
		}
		return inRow == 10
	})
}

func TestATenantKeepsItsShareWhileAnotherRushes(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		metrics := freeport.Address(t)
		n := start(t, deck(fmt.Sprintf(fairly, in, "")), watched(metrics))
		admitted, denial := rush(t, n, n, n)
		await.That(t, "the rush meets its share", func() bool {
			d := denial.Load()
			return d != nil && strings.Contains(d.Body, "Your share of a shared limit")
		})
		keepsShare(t, n)
		before := admitted.Load()
		await.That(t, "the rush gets its own share", func() bool { return admitted.Load() > before })
		for _, header := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "RateLimit-Policy", "RateLimit"} {
			if text := denial.Load().Header.Get(header); text != "" {
				t.Errorf("a denial by a shared limit has %s: %s", header, text)
			}
		}
		var last problem
		await.That(t, "another denial by the share", func() bool {
			last = denial.Load().problem(t)
			return last.Detail == "Your share of a shared limit, 'platform', is used up. Try again in 1 s."
		})
		if last.RetryAfter != 1 || len(last.Violated) != 1 || last.Violated[0] != "platform" {
			t.Errorf("the denial is %+v", last)
		}
		if denials := sampleOf(metrics, `rate_limiter_fair_share_denials_total{mode="enforce",policy="platform"}`); denials == 0 {
			t.Error("no denial by a share is counted")
		}
	})
}

// sampleOf returns the value of a sample of the plugin process, 0 if it has none.
func sampleOf(address, sample string) float64 {
	_, metrics := read(address, "/metrics")
	value, _ := number(metrics, sample)
	return value
}

func TestAnotherNodeDividesALimitAfterTheOneThatDidIsKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	inRedis := fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}, ", server.Socket, patience)
	config := deck(fmt.Sprintf(fairly, inRedis, ""))
	var nodes []*node
	var metrics []string
	for range 2 {
		address := freeport.Address(t)
		nodes, metrics = append(nodes, start(t, config, watched(address))), append(metrics, address)
	}
	rush(t, nodes...)
	leading := -1
	await.That(t, "one node divides the limit", func() bool {
		leading = slices.IndexFunc(metrics, func(address string) bool {
			return sampleOf(address, "rate_limiter_fair_share_leading") == 1
		})
		return leading >= 0
	})
	keepsShare(t, nodes[1-leading])
	nodes[leading].crash()
	keepsShare(t, nodes[1-leading])
}
