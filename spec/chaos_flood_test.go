package spec

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const (
	// floodQuota is the limit of each tenant and of each address, for a day.
	floodQuota = 100_000
	// floodTenants and floodAddresses are the numbers of tenants and addresses that floodClients send requests for.
	floodTenants, floodAddresses, floodClients = 20, 4000, 16
)

// floodStart starts a node with a route for tenants, whose limits have a fail mode, and one for addresses, whose limits
// fail open. args are more flags of the plugin server.
func floodStart(t *testing.T, redis, mode string, args ...string) *chaosNode {
	t.Helper()
	const route = `
  - {name: %[1]s, paths: [/%[1]s],
      plugins: [{name: tenant-rate-limiting, config: {strategy: redis, accuracy: exact, fail_mode: %[6]s,
          degraded_header: true,
      redis: {%[2]s, send_timeout: %[3]d, read_timeout: %[3]d}, tenant_from: [header.X-Org], trusted_headers: [X-Org],
      tiers: [{name: a, limits: [{name: %[1]s, scope: %[4]s, limit: %[5]d, window_size: 86400,
          algorithm: fixed_window}]}]}}]}`
	tenants := fmt.Sprintf(route, "pay", redis, chaosPatience.Milliseconds(), "tenant", floodQuota, mode)
	addresses := fmt.Sprintf(route, "flood", redis, chaosPatience.Milliseconds(), "ip", floodQuota, "open")
	metrics := freeport.Address(t)
	return &chaosNode{start(t, deckOf(tenants+addresses), func(o *gateway.Options) {
		o.TrustedIPs = []string{"127.0.0.1"}
		o.Servers = []gateway.PluginServer{{
			Binary: plugin(), Args: slices.Concat([]string{"-metrics-listen", metrics}, patient, args),
		}}
	}), metrics}
}

// left returns the remaining quota of an answer.
func left(t *testing.T, a answer) int {
	t.Helper()
	n, err := strconv.Atoi(a.Header.Get("X-RateLimit-Remaining"))
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("%d, %v: want a remaining quota", a.Status, a.Header)
	}
	return n
}

func floodOrg(i int) string { return fmt.Sprint("tenant-", i) }

// floodOnce sends a request for each address, and fails the test unless all are admitted without Redis.
func floodOnce(t *testing.T, n *chaosNode) {
	t.Helper()
	var clients sync.WaitGroup
	for c := range floodClients {
		clients.Go(func() {
			for i := c; i < floodAddresses; i += floodClients {
				a, err := n.send(http.MethodGet, "/flood", "X-Real-IP", fmt.Sprintf("10.0.%d.%d", i/256, i%256))
				if err != nil || a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Degraded") == "" {
					t.Errorf("address %d: %d, %v: want it admitted without Redis", i, a.Status, err)
					return
				}
			}
		})
	}
	clients.Wait()
}

func TestChaosAFloodOfAddressesDuringAnOutageLosesNoDebtOfTenants(t *testing.T) {
	proxy := proxyTo(t, redistest.Single(t))
	n := floodStart(t, single(proxy.Port()), "open")
	for i := range floodTenants {
		if got := left(t, n.get("/pay", "X-Org", floodOrg(i))); got != floodQuota-1 {
			t.Fatalf("tenant %d has %d left after its first request", i, got)
		}
	}
	require.NoError(t, proxy.Down())
	floodOnce(t, n)
	spent := floodAddresses
	for i := range floodTenants {
		for range i + 1 {
			a := n.get("/pay", "X-Org", floodOrg(i))
			if a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Degraded") == "" {
				t.Fatalf("tenant %d: %d, %v: want it admitted without Redis", i, a.Status, a.Header)
			}
		}
		spent += i + 1
	}
	require.NoError(t, proxy.Heal())
	var last numbers
	charged := func() float64 { return last.sum("rate_limiter_reconciled_tokens_total", `outcome="charged"`) }
	await.That(t, "all admissions without Redis to be charged", func() bool {
		last = n.scrape()
		return charged() >= float64(spent) || last.sum("rate_limiter_reconciled_tokens_total") >= float64(spent)
	})
	if got := charged(); got != float64(spent) || last.sum("rate_limiter_unverified_total") != float64(spent) {
		t.Errorf("%v tokens are charged for %d admissions without Redis\n%s", got, spent, last)
	}
	for i := range floodTenants {
		if got, want := left(t, n.get("/pay", "X-Org", floodOrg(i))), floodQuota-1-(i+1)-1; got != want {
			t.Errorf("tenant %d has %d left, want %d", i, got, want)
		}
	}
	for i := 0; i < floodAddresses; i += 97 {
		if got := left(t, n.get("/flood", "X-Real-IP", fmt.Sprintf("10.0.%d.%d", i/256, i%256))); got != floodQuota-2 {
			t.Errorf("address %d has %d left, want %d", i, got, floodQuota-2)
		}
	}
}
