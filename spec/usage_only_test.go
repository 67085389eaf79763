package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// ownUsage is what a tenant reads of its own limits.
type ownUsage struct {
	Tenant   string `json:"tenant"`
	Degraded bool   `json:"degraded"`
	Limits   []struct {
		Name      string `json:"name"`
		Limit     int64  `json:"limit"`
		Used      *int64 `json:"used"`
		Remaining *int64 `json:"remaining"`
	} `json:"limits"`
}

// used returns what is used of a limit; -1: the answer does not show it.
func (u *ownUsage) used(name string) int64 {
	for _, l := range u.Limits {
		if l.Name == name && l.Used != nil && l.Remaining != nil {
			return *l.Used
		}
	}
	return -1
}

// limit returns a limit; 0: the answer does not have it.
func (u *ownUsage) limit(name string) int64 {
	for _, l := range u.Limits {
		if l.Name == name {
			return l.Limit
		}
	}
	return 0
}

// ownUsage returns the own usage of the tenant with a key.
func (n *node) ownUsage(t *testing.T, key string) (u ownUsage) {
	t.Helper()
	a := n.get("/ratelimit/usage", "apikey", key)
	if err := json.Unmarshal([]byte(a.Body), &u); err != nil || a.Status != 200 ||
		a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("usage with the key %s: %d %v %v\n%s", key, a.Status, err, a.Header, a.Body)
	}
	return u
}

// usageDeck is a decK file with limits of all routes but one, which shows their usage. %s stands for the redis block.
const usageDeck = `_format_version: "3.0"
_plugin_configs:
  quota:
    strategy: redis
    redis: {%s}
    tiers:
    - name: essentials
      limits:
      - {name: burst, scope: tenant, limit: 50, window_size: 1, burst: 100}
      - {name: daily, scope: tenant, limit: 15000, window_size: 31536000, algorithm: fixed_window}
    global: {limits: [{name: platform, scope: global, limit: 5000, window_size: 1}]}
services:
- name: api
  url: http://echo.internal
  routes:
  - {name: records, paths: [/records]}
routes:
- {name: usage, paths: [/ratelimit/usage]}
plugins:
- name: key-auth
- {name: tenant-rate-limiting, _config: quota}
- {name: tenant-rate-limiting, route: usage, _config: quota, config: {usage_only: true}}
`

func TestATenantReadsItsOwnUsageWithItsKeyAndSpendsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	address := freeport.Address(t)
	n := start(t, fmt.Sprintf(usageDeck, "socket: "+server.Socket+", "+patience)+consumers, watched(address))
	if u := n.ownUsage(t, "alice"); u.Tenant != "acme" || u.used("daily") != 0 || u.used("burst") != 0 || u.Degraded {
		t.Errorf("before any request: %+v", u)
	}
	n.want(times(3, 200), "/records", "apikey", "alice")
	n.want(times(1, 200), "/records", "apikey", "beth")
	for key, want := range map[string]int64{"alice": 3, "beth": 1} {
		await.That(t, "the usage of "+key, func() bool { u := n.ownUsage(t, key); return u.used("daily") == want })
	}
	for range 50 {
		n.ownUsage(t, "alice")
	}
	if a := n.get("/records", "apikey", "alice"); !strings.Contains(a.Header.Get("RateLimit"), `"daily";r=14996;`) {
		t.Errorf("after 4 requests RateLimit is %s, want 14996 left of the day", a.Header.Get("RateLimit"))
	}
	a := n.get("/ratelimit/usage", "apikey", "beth")
	for _, foreign := range []string{"acme", "platform"} {
		if strings.Contains(a.Body, foreign) {
			t.Errorf("beta reads %s:\n%s", foreign, a.Body)
		}
	}
	if a := n.get("/ratelimit/usage"); a.Status != 401 {
		t.Errorf("without a key: %d", a.Status)
	}
	for method, want := range map[string]int{http.MethodHead: 200, http.MethodOptions: 204, http.MethodPost: 405} {
		a, err := n.send(method, "/ratelimit/usage", "apikey", "alice")
		if err != nil || a.Status != want || (method != http.MethodPost) != (a.Body == "") {
			t.Errorf("%s: %d %v %q, want %d", method, a.Status, err, a.Body, want)
		}
	}
	if _, numbers := read(address, "/metrics"); !strings.Contains(numbers, `usage_answers_total{status="405"} 1`) {
		t.Errorf("the answer 405 is not counted:\n%s", numbers)
	}
	server.Kill()
	await.That(t, "usage without numbers", func() bool {
		u := n.ownUsage(t, "alice")
		return u.Degraded && len(u.Limits) == 2 && u.used("daily") == -1
	})
}

// withUsage returns a decK file with the routes /records and /ratelimit/usage of a config, in YAML flow style.
func withUsage(config string) string {
	return deckOf(fmt.Sprintf(`
  - {name: records, paths: [/records], plugins: [{name: key-auth}, {name: tenant-rate-limiting, config: {%[1]s}}]}
  - {name: usage, paths: [/ratelimit/usage], plugins: [{name: key-auth},
      {name: tenant-rate-limiting, config: {usage_only: true, %[1]s}}]}`, config))
}

func TestATenantReadsTheLimitsOfTheCandidateThatIsEnforcedForIt(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	n := start(t, withUsage(strings.Trim(p.config, "{}")), serverWith("-database", p.dsn, "-snapshot-dir", "off",
		"-metrics-listen", "off", "-node-name", "one"))
	// it fails while no node is live
	await.That(t, "the node reports", func() bool {
		return p.command("fleet").Run() == nil
	})
	p.operate("tenant", "set", "gamma", "--tier", "enterprise", "--reason", "a spec")
	p.putYear(1000, "policy", "put")
	p.operate("candidate", "create", "july", "--reason", "a spec")
	p.putYear(5, "candidate", "put", "july")
	for _, key := range []string{"alice", "gus"} {
		n.want(times(3, 200), "/records", "apikey", key)
	}
	reads := func(key string, limit, used int64) {
		t.Helper()
		await.That(t, fmt.Sprintf("%s reads that %d of %d are used", key, used, limit), func() bool {
			u := n.ownUsage(t, key)
			return u.limit("year") == limit && u.used("year") == used
		})
	}
	reads("alice", 1000, 3) // the open candidate is enforced for no tenant
	p.operate("candidate", "assign", "july", "--tenant", "acme", "--reason", "a spec", "--wait=30s")
	reads("alice", 5, 3)
	reads("gus", 1000, 3)
	n.want([]int{200, 200, 429}, "/records", "apikey", "alice")
	reads("alice", 5, 5)
	p.operate("candidate", "promote", "july", "--reason", "a spec", "--wait=30s")
	reads("gus", 5, 3)
	p.operate("candidate", "rollback", "july", "--reason", "a spec", "--wait=30s")
	reads("alice", 1000, 5)
}

// farTenant returns a tenant whose buckets have another master than the global ones.
func farTenant(t *testing.T, nodes *redisCluster) string {
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

func TestATenantReadsItsUsageOfEveryMasterOfACluster(t *testing.T) {
	t.Parallel()
	nodes := &redisCluster{redistest.Cluster(t, 3, 0)}
	nodes.KeepHealthySlots(t)
	var addresses []string
	for _, s := range nodes.Masters {
		addresses = append(addresses, fmt.Sprintf("{ip: %s, port: %d}", s.Host, s.Port))
	}
	tenant := farTenant(t, nodes)
	year := func(name, scope string) string {
		return fmt.Sprintf(`{name: %s, scope: %s, limit: 1000, window_size: 31536000, algorithm: fixed_window}`, name, scope)
	}
	n := start(t, withUsage(fmt.Sprintf(`strategy: redis, redis: {cluster_nodes: [%s], %s}, accuracy: exact,
		show_shared_limits: true, global: {limits: [%s]}, tiers: [{name: a, limits: [%s]}]`,
		strings.Join(addresses, ", "), patience, year("all", "global"), year("own", "tenant")))+
		fmt.Sprintf("- {username: %s, keyauth_credentials: [{key: %[1]s}]}\n", tenant))
	n.want(times(3, 200), "/records", "apikey", tenant)
	n.want(times(2, 200), "/records", "apikey", "beth")
	if u := n.ownUsage(t, tenant); u.used("own") != 3 || u.used("all") != 5 || u.Degraded {
		t.Errorf("with all masters: %+v", u)
	}
	nodes.MasterOf(t, bucketKey(tenant)).Kill()
	await.That(t, "the usage without that of a master", func() bool {
		u := n.ownUsage(t, tenant)
		return u.Degraded && u.limit("own") == 1000 && u.used("own") == -1 && u.used("all") == 5
	})
}
