package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// clusterDeck has the routes /both, /tenant and /global, with a budget of the tenant, of all, or both. The key of a
// tenant is its name.
func clusterDeck(nodes *redistest.Nodes, tenant string) string {
	var addresses, routes []string
	for _, s := range nodes.Masters {
		addresses = append(addresses, fmt.Sprintf("{ip: %s, port: %d}", s.Host, s.Port))
	}
	limits := func(scope string) string {
		return fmt.Sprintf(`limits: [{name: by-%s, scope: %[1]s, limit: 100000, window_size: 31536000,
			algorithm: fixed_window, settle: {sources: [{from: header.X-Tokens-Used}], reserve: 100}}]`, scope)
	}
	own, all := "tiers: [{name: a, "+limits("tenant")+"}]", "global: {"+limits("global")+"}"
	for name, config := range map[string]string{"both": own + ", " + all, "tenant": own, "global": all} {
		routes = append(routes, fmt.Sprintf(`{name: %s, paths: [/%[1]s], plugins: [{name: key-auth},
			{name: tenant-rate-settling}, {name: tenant-rate-limiting, config: {strategy: redis, show_shared_limits: true,
			redis: {cluster_nodes: [%s], %s}, %s}}]}`, name, strings.Join(addresses, ", "), patience, config))
	}
	return fmt.Sprintf(`_format_version: "3.0"
services: [{name: answer, url: "http://answer.internal", routes: [%s]}]
consumers: [{username: %s, keyauth_credentials: [{key: %[2]s}]}]`, strings.Join(routes, ", "), tenant)
}

// farTenant returns a tenant whose buckets have another master than the global ones.
func farTenant(t *testing.T, nodes *redistest.Nodes) string {
	t.Helper()
	for i := range 100 {
		tenant := fmt.Sprint("tenant-", i)
		if nodes.MasterOf(t, bucketKey(tenant)) != nodes.MasterOf(t, "rl:default:{g}") {
			return tenant
		}
	}
	t.Fatal("all tenants have the same master")
	return ""
}

func TestOneRequestIsSettledOnEveryMasterOfACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	nodes.KeepHealthySlots(t)
	tenant := farTenant(t, nodes)
	n := start(t, clusterDeck(nodes, tenant), settling)
	var sent atomic.Int64
	awaitEnds := func() {
		await.That(t, "the log phases", func() bool { return n.Counters().LogEvents() >= sent.Load() })
	}
	charged := func(route string) int {
		sent.Add(1)
		a := n.get("/"+route+"?header=X-Tokens-Used:0", "apikey", tenant)
		awaitEnds()
		left, err := strconv.Atoi(a.Header.Get("X-RateLimit-Remaining"))
		if err != nil {
			t.Fatalf("%d %v %s", a.Status, a.Header, a.Body)
		}
		return 100_000 - 100 - left
	}
	want := 0
	for _, c := range []struct {
		query   string
		charged int
	}{{"header=X-Tokens-Used:30", 30}, {"header=X-Tokens-Used:250", 250}, {"size=1", 100}} {
		sent.Add(1)
		n.get("/both?"+c.query, "apikey", tenant)
		awaitEnds()
		want += c.charged
		if own, all := charged("tenant"), charged("global"); own != want || all != want {
			t.Errorf("%s: the tenant has paid %d and all tenants %d, want %d", c.query, own, all, want)
		}
	}
	var group sync.WaitGroup
	var used atomic.Int64
	for i := range 32 {
		group.Go(func() {
			for j := range 10 {
				tokens := (i*7 + j*31) % 200
				sent.Add(1)
				a, err := n.send("GET", fmt.Sprint("/both?header=X-Tokens-Used:", tokens), "apikey", tenant)
				if err != nil || a.Status != http.StatusOK {
					t.Errorf("%d, %v", a.Status, err)
				}
				used.Add(int64(tokens))
			}
		})
	}
	group.Wait()
	awaitEnds()
	want += int(used.Load())
	if own, all := charged("tenant"), charged("global"); own != want || all != want {
		t.Errorf("the tenant has paid %d and all tenants %d, want the %d tokens that were used", own, all, want)
	}
}
