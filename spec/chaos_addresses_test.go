package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

const (
	// newAddresses is the number of new addresses, and mostAddresses of those that a node gives a bucket of their own.
	newAddresses, mostAddresses = 8000, 1000
	// newAddressMemory is the memory that Redis has for them. With 230 bytes each they would need nearly twice as much.
	newAddressMemory = 1 << 20
)

// fillRedis sends a request for each new address, and meanwhile requests of a tenant whose limit fails closed. It
// returns the number of admitted requests of that tenant.
func fillRedis(t *testing.T, n *chaosNode) (paid int) {
	t.Helper()
	var clients sync.WaitGroup
	for c := range floodClients {
		clients.Go(func() {
			for i := c; i < newAddresses; i += floodClients {
				a, err := n.send(http.MethodGet, "/flood", "X-Real-IP", fmt.Sprintf("10.0.%d.%d", i/256, i%256))
				if err != nil || a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Degraded") != "" {
					t.Errorf("address %d: %d, %v, %v: want it admitted by Redis", i, a.Status, a.Header, err)
					return
				}
			}
		})
	}
	flooded := make(chan struct{})
	go func() { clients.Wait(); close(flooded) }()
	for {
		if a := n.get("/pay", "X-Org", floodOrg(0)); a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Degraded") != "" {
			t.Errorf("a tenant's request in the flood: %d, %v: want it admitted by Redis", a.Status, a.Header)
		}
		paid++
		select {
		case <-flooded:
			return paid
		default:
		}
	}
}

// usedMemory returns the memory of a Redis, in bytes.
func usedMemory(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "memory").Result()
	require.NoError(t, err)
	used, err := strconv.Atoi(info["Memory"]["used_memory"])
	require.NoError(t, err)
	return used
}

func TestChaosNewAddressesThatFillRedisDenyNoTenantAndNoEarlierAddress(t *testing.T) {
	server := redistest.Single(t)
	n := floodStart(t, single(server.Port), "closed", "-max-addresses", strconv.Itoa(mostAddresses), "-new-addresses", "0")
	for i := range floodTenants {
		left(t, n.get("/pay", "X-Org", floodOrg(i)))
	}
	const earlier = "192.0.2.1"
	left(t, n.get("/flood", "X-Real-IP", earlier))
	client := server.Client(t)
	before := usedMemory(t, client)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(before+newAddressMemory)).Err())

	paid := fillRedis(t, n)

	for i := range floodTenants {
		want := floodQuota - 2
		if i == 0 {
			want -= paid
		}
		if got := left(t, n.get("/pay", "X-Org", floodOrg(i))); got != want {
			t.Errorf("tenant %d has %d left, want %d", i, got, want)
		}
	}
	if got := left(t, n.get("/flood", "X-Real-IP", earlier)); got != floodQuota-2 {
		t.Errorf("the earlier address has %d left, want %d", got, floodQuota-2)
	}
	keys, err := client.DBSize(t.Context()).Result()
	require.NoError(t, err)
	// The tables of addresses and prefixes are rounded up to 32. The other keys are the tenants and the set of nodes.
	if most := int64(mostAddresses + mostAddresses/10 + 64 + floodTenants + 1); keys > most {
		t.Errorf("%d keys in Redis, want %d at most", keys, most)
	}
	last := n.scrape()
	own := last.sum("rate_limiter_new_addresses_total", `by="own"`)
	all := last.sum("rate_limiter_new_addresses_total")
	if all != newAddresses+1 || own < mostAddresses/2 || own > mostAddresses+32 {
		t.Errorf("%v addresses are counted, %v of them apart: want %d, and about %d\n%s",
			all, own, newAddresses+1, mostAddresses, last)
	}
	if last.sum("rate_limiter_unavailable_total") != 0 || last.sum("rate_limiter_unverified_total") != 0 {
		t.Errorf("requests were decided without Redis, which was reachable\n%s", last)
	}
}
