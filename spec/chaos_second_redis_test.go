package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// withSecond returns a redis block of floodStart with a second Redis for addresses.
func withSecond(main, second int) string {
	timeout := chaosPatience.Milliseconds()
	return fmt.Sprintf("%s, send_timeout: %d, read_timeout: %d}, address_redis: {%s", single(main), timeout, timeout,
		single(second))
}

// fillSecond sends a request for each new address, and returns the number that were decided without Redis.
func fillSecond(t *testing.T, n *chaosNode) (unverified int) {
	t.Helper()
	counts := make([]int, floodClients)
	var clients sync.WaitGroup
	for c := range floodClients {
		clients.Go(func() {
			for i := c; i < newAddresses; i += floodClients {
				a, err := n.send(http.MethodGet, "/flood", "X-Real-IP", fmt.Sprintf("10.0.%d.%d", i/256, i%256))
				if err != nil || a.Status != http.StatusOK {
					t.Errorf("address %d: %d, %v: want it admitted, by a limit that fails open", i, a.Status, err)
					return
				}
				if a.Header.Get("X-RateLimit-Degraded") != "" {
					counts[c]++
				}
			}
		})
	}
	clients.Wait()
	for _, n := range counts {
		unverified += n
	}
	return unverified
}

func TestChaosNewAddressesThatFillTheirOwnRedisDenyNoTenant(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t)
	n := floodStart(t, withSecond(main.Port, second.Port), "closed", "-max-addresses", "0", "-new-addresses", "0",
		"-ready-needs-redis", "true")
	client := second.Client(t)
	before := usedMemory(t, client)
	if err := client.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(before+newAddressMemory)).Err(); err != nil {
		t.Fatal(err)
	}

	paid, flooded := 0, make(chan int, 1)
	go func() { flooded <- fillSecond(t, n) }()
	unverified := -1
	for unverified < 0 {
		if a := n.get("/pay", "X-Org", floodOrg(0)); a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Degraded") != "" {
			t.Errorf("a tenant's request in the flood: %d, %v: want it admitted by Redis", a.Status, a.Header)
		}
		paid++
		select {
		case unverified = <-flooded:
		default:
		}
	}

	if unverified == 0 {
		t.Error("all addresses were decided by Redis: it was not filled")
	}
	for i := range floodTenants {
		want := floodQuota - 1
		if i == 0 {
			want -= paid
		}
		if got := left(t, n.get("/pay", "X-Org", floodOrg(i))); got != want {
			t.Errorf("tenant %d has %d left, want %d", i, got, want)
		}
	}
	if n := addressKeys(t, main); n != 0 {
		t.Errorf("%d keys of addresses are in the Redis of the tenants", n)
	}
	if n := addressKeys(t, second); n == 0 {
		t.Error("no key of an address is in the Redis of addresses")
	}
	last := n.scrape()
	name := func(server *redistest.Server) string { return fmt.Sprintf("store=%q", server.Address()) }
	if last.sum("rate_limiter_degraded_seconds_total", name(main)) != 0 ||
		last.sum("rate_limiter_degraded_seconds_total", name(second)) == 0 {
		t.Errorf("want only the Redis of addresses degraded\n%s", last)
	}
	if a, err := http.Get("http://" + n.metrics + "/readyz"); err != nil || a.StatusCode != http.StatusOK {
		t.Errorf("%v, %v: want the node ready without the Redis of addresses", a, err)
	} else if err := a.Body.Close(); err != nil {
		t.Error(err)
	}
}

// addressKeys returns the number of keys of addresses in a Redis.
func addressKeys(t *testing.T, server *redistest.Server) (n int) {
	t.Helper()
	keys, err := server.Client(t).Keys(t.Context(), "rl:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if strings.Contains(key, "{i=") {
			n++
		}
	}
	return n
}
