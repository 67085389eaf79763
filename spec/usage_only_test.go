package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// ownUsage is what a tenant reads of its own limits.
type ownUsage struct {
	Tenant   string `json:"tenant"`
	Degraded bool   `json:"degraded"`
	Limits   []struct {
		Name      string `json:"name"`
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

// usageExample returns the decK file of docs/clients.md, with a Redis, an upstream that answers, and consumers.
func usageExample(t *testing.T, server *redistest.Server) string {
	t.Helper()
	for _, s := range snippets(t, "docs/clients.md") {
		if strings.Contains(s.text, "usage_only: true") {
			return strings.NewReplacer(
				"redis: {host: redis.internal}", fmt.Sprintf("redis: {socket: %s, %s}", server.Socket, patience),
				"http://api.internal", "http://echo.internal",
				"window_size: 86400", "window_size: 31536000", // no midnight ends it while the spec runs
			).Replace(s.deck(t)) + consumers
		}
	}
	t.Fatal("docs/clients.md has no example of usage_only")
	return ""
}

func TestATenantReadsItsOwnUsageWithItsKeyAndSpendsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	n := start(t, usageExample(t, server))
	if u := n.ownUsage(t, "alice"); u.Tenant != "acme" || u.used("daily") != 0 || u.used("burst") != 0 || u.Degraded {
		t.Errorf("before any request: %+v", u)
	}
	n.want(times(3, 200), "/records", "apikey", "alice")
	n.want(times(1, 200), "/records", "apikey", "beth")
	for key, want := range map[string]int64{"alice": 3, "beth": 1} {
		await(t, "the usage of "+key, func() bool { u := n.ownUsage(t, key); return u.used("daily") == want })
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
	server.Kill()
	await(t, "usage without numbers", func() bool {
		u := n.ownUsage(t, "alice")
		return u.Degraded && len(u.Limits) == 2 && u.used("daily") == -1
	})
}

func TestUsageOfAnonymousClientsIsDeniedInWords(t *testing.T) {
	t.Parallel()
	n := start(t, deckOf(`
  - {name: usage, paths: [/ratelimit/usage], plugins: [{name: key-auth, config: {anonymous: anonymous}},
      {name: tenant-rate-limiting, config: {usage_only: true, tiers: [{name: a}]}}]}`))
	a := n.get("/ratelimit/usage")
	if p := a.problem(t); a.Status != 403 || !strings.Contains(p.Detail, "No tenant is identified") {
		t.Errorf("%d %s, want 403", a.Status, a.Body)
	}
}
