package spec

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
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

func TestAFloodOfDenialsByAnyScopeCostsRedisAlmostNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	f := onSocket(t, server)
	client := server.Client(t)
	for _, scope := range scopes {
		t.Run(scope, func(t *testing.T) {
			m := f.join()
			id := m.openScoped(named(scope), 1000, scope, `"limit":30,"window_size":3600`)
			m.want(t, id, append(times(30, 200), 429))
			checkNames(t, m.ask(t, id, by("acme")), named(scope))
			begun := time.Now()
			calls, n := m.flood(t, client, id)
			took := time.Since(begun)
			t.Logf("%d calls of Redis for %d denials in %v", calls, n, took)
			// Each connection may ask once a second, even if a busy machine has few denials in that time.
			if float64(calls) > max(5*float64(n)/1000, 15*took.Seconds()) {
				t.Errorf("%d calls of Redis for %d denials in %v: more than 5 per 1,000", calls, n, took)
			}
		})
	}
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

// checkNames checks that a denial has one limit, the one that denies.
func checkNames(t *testing.T, denial gateway.Outcome, limit string) {
	t.Helper()
	if denial.Exit == nil {
		t.Fatal("it was not denied")
	}
	body := answer{Body: string(denial.Exit.Body)}.problem(t)
	shown, want := asSpelled(denial.Exit.Header, "RateLimit"), strconv.Quote(limit)+";r=0;"
	if limit == "global" {
		want = "" // clients do not see the numbers of a shared limit
	}
	if !slices.Equal(body.Violated, []string{limit}) || strings.Count(shown, ";r=") > 1 ||
		!strings.HasPrefix(shown, want) ||
		(want == "") != (shown == "") {
		t.Errorf("the denial names %v and shows %q; want %s alone, shown as %q", body.Violated, shown, limit, want)
	}
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
