package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

const (
	// strangers are made up, and a node gives so many of them a bucket of their own.
	strangers, mostStrangers = 8000, 1000
	// roomForStrangers is the memory that Redis has for them: 230 bytes each would take nearly twice as much.
	roomForStrangers = 1 << 20
)

// fillRedis has each stranger send a request, while a tenant whose limit fails closed goes on, and returns how many
// requests of that tenant were admitted.
func fillRedis(t *testing.T, n *chaosNode) (paid int) {
	t.Helper()
	var clients sync.WaitGroup
	for c := range floodClients {
		clients.Go(func() {
			for i := c; i < strangers; i += floodClients {
				a, err := n.send(http.MethodGet, "/flood", "X-Real-IP", fmt.Sprintf("10.0.%d.%d", i/256, i%256))
				if err != nil || a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Degraded") != "" {
					t.Errorf("stranger %d: %d, %v, %v: want it admitted, and Redis well", i, a.Status, a.Header, err)
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

// usedMemory returns how many bytes a Redis uses.
func usedMemory(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.Atoi(info["Memory"]["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	return used
}

func TestChaosNewAddressesThatFillRedisDenyNoTenantAndNoEarlierAddress(t *testing.T) {
	server := redistest.Single(t)
	n := floodStart(t, single(server.Port), "closed", "-max-addresses", strconv.Itoa(mostStrangers), "-new-addresses", "0")
	for i := range floodTenants {
		left(t, n.get("/pay", "X-Org", floodOrg(i)))
	}
	const known = "192.0.2.1"
	left(t, n.get("/flood", "X-Real-IP", known))
	client := server.Client(t)
	before := usedMemory(t, client)
	if err := client.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(before+roomForStrangers)).Err(); err != nil {
		t.Fatal(err)
	}

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
	if got := left(t, n.get("/flood", "X-Real-IP", known)); got != floodQuota-2 {
		t.Errorf("the address that was known has %d left, want %d", got, floodQuota-2)
	}
	keys, err := client.DBSize(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	// The tables of addresses and of prefixes are rounded up to 32; beside them are the tenants and the set of nodes.
	if most := int64(mostStrangers + mostStrangers/10 + 64 + floodTenants + 1); keys > most {
		t.Errorf("%d keys in Redis, want %d at most", keys, most)
	}
	last := n.scrape()
	own := last.sum("rate_limiter_new_addresses_total", `by="own"`)
	if all := last.sum("rate_limiter_new_addresses_total"); all != strangers+1 || own < mostStrangers/2 || own > mostStrangers+32 {
		t.Errorf("%v addresses are counted, %v of them apart: want %d, and about %d\n%s", all, own, strangers+1, mostStrangers, last)
	}
	if last.sum("rate_limiter_unavailable_total") != 0 || last.sum("rate_limiter_unverified_total") != 0 {
		t.Errorf("requests were decided without Redis, which was well\n%s", last)
	}
}
