package spec

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// scopes lists the scopes of the four limits of a request.
var scopes = []string{"tenant", "tenant+endpoint", "user", "global"}

// named returns the name of the limit with a scope.
func named(scope string) string { return strings.ReplaceAll(scope, "+", "-") }

// openScoped starts an instance of a config with a limit for each scope in a namespace, of perSecond tokens a second.
// The limit of the scope apart has other settings.
func (m *member) openScoped(namespace string, perSecond int, apart, settings string) int32 {
	m.t.Helper()
	limits := map[string]string{}
	for _, scope := range scopes {
		limits[scope] = fmt.Sprintf(`{"name":%q,"scope":%q,"limit":%d,"window_size":1}`, named(scope), scope, perSecond)
	}
	if apart != "" {
		limits[apart] = fmt.Sprintf(`{"name":%q,"scope":%q,%s}`, named(apart), apart, settings)
	}
	return m.open(fmt.Sprintf(`"namespace":%q,"global":{"limits":[%s]},`, namespace, limits["global"]),
		limits["tenant"]+","+limits["tenant+endpoint"]+","+limits["user"])
}

// flood sends requests that are denied to a member, for a second and at least 1,000, and counts the denials and the
// scripts of Redis.
func (m *member) flood(t testing.TB, client *redis.Client, id int32) (calls, denied int) {
	t.Helper()
	before := scripts(t, client)
	tr := m.fleet.offer(by("acme"), steady(4000))
	tr.to(m, id, 8)
	tr.awaitDenials(t, 1000)
	samples := tr.lastFor(time.Second)
	calls, denied = scripts(t, client)-before, counted(samples, http.StatusTooManyRequests)
	if denied != len(samples) {
		t.Errorf("%d of %d requests were denied, want all", denied, len(samples))
	}
	return calls, denied
}

// hotRate is the number of requests a second that a hot tenant sends, as far as the machine can.
const hotRate = 5000

// hotTenant loads four scopes of one tenant through some processes, and counts the scripts of Redis and the decisions
// in about two seconds.
func hotTenant(t testing.TB, processes int) (calls, decisions int, took time.Duration) {
	server := redistest.Single(t)
	f := onSocket(t, server)
	client := server.Client(t)
	members := f.joinAll(processes)
	f.awaitLeases(members...)
	awaitTurn(t)
	tr := f.offer(by("acme"), steady(hotRate))
	for _, m := range members {
		tr.to(m, m.openScoped("default", 2*hotRate, "", ""), 16/processes)
	}
	elapse(t.Context(), time.Second) // leases grow to the rate
	before, scriptsBefore, begun := tr.count(http.StatusOK), scripts(t, client), time.Now()
	elapse(t.Context(), 2*time.Second)
	decisions, calls, took = tr.count(http.StatusOK)-before, scripts(t, client)-scriptsBefore, time.Since(begun)
	if all := tr.stop(); counted(all, http.StatusOK) != len(all) {
		t.Errorf("%d of %d requests were admitted, want all", counted(all, http.StatusOK), len(all))
	}
	if calls == 0 {
		t.Error("Redis was never called: nothing is limited")
	}
	return calls, decisions, took
}
