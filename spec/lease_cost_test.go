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
	server := redistest.Single(t)
	f := onSocket(t, server)
	client := server.Client(t)
	for _, scope := range scopes {
		t.Run(scope, func(t *testing.T) {
			m := f.join()
			id := m.openScoped(named(scope), 1000, scope, `"limit":30,"window_size":3600`)
			m.want(t, id, append(times(30, 200), 429))
			checkNames(t, m.ask(t, id, by("acme")), named(scope))
			calls, n := m.flood(t, client, id)
			t.Logf("%d calls of Redis for %d denials", calls, n)
			// Each connection may ask once a second, even if a busy machine has few denials in that time.
			if 1000*calls > 5*max(n, 3000) {
				t.Errorf("%d calls of Redis for %d denials: more than 5 per 1,000", calls, n)
			}
		})
	}
}

// flood sends requests that are denied to a member for a second, and counts the denials and the scripts of Redis.
func (m *member) flood(t testing.TB, client *redis.Client, id int32) (calls, denied int) {
	t.Helper()
	before := scripts(t, client)
	tr := m.fleet.offer(by("acme"), steady(4000))
	tr.to(m, id, 8)
	samples := tr.lastFor(time.Second)
	calls, denied = scripts(t, client)-before, counted(samples, http.StatusTooManyRequests)
	if denied != len(samples) || denied < 400 {
		t.Errorf("%d of %d requests were denied: no flood", denied, len(samples))
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

func TestARememberedDenialEndsAfterItsRetryAfter(t *testing.T) {
	f := onSocket(t, redistest.Single(t))
	m := f.join()
	b := bound{algorithm: "token_bucket", limit: 30, burst: 30, window: time.Minute} // a token in two seconds
	id := m.openScoped("default", 1000, "user", `"limit":30,"window_size":60`)
	flood := f.offer(by("acme"), steady(500))
	flood.to(m, id, 4)
	flood.awaitDenials(t, 1)
	deniedAt := f.since()
	denial := m.ask(t, id, by("acme"))
	if denial.Exit == nil {
		t.Fatal("it was not denied")
	}
	seconds, err := strconv.Atoi(denial.Exit.Header.Get("Retry-After"))
	if err != nil || seconds < 1 || seconds > 2 {
		t.Fatalf("Retry-After: %v; want 1 or 2", denial.Exit.Header)
	}
	before := flood.count(http.StatusOK)
	await(t, "an admission after the denial", func() bool { return flood.count(http.StatusOK) > before })
	samples := flood.stop()
	all := admitted(samples)
	first := slices.IndexFunc(all, func(a admission) bool { return a.Answered > deniedAt })
	if all[first].Sent > deniedAt+time.Duration(seconds)*time.Second+100*time.Millisecond {
		t.Errorf("denied at %v with Retry-After %d, and admitted only at %v", deniedAt, seconds, all[first].Answered)
	}
	b.check(t, samples, 5)
}

// hotTenant loads four scopes of one tenant through some processes, and measures the cost for Redis.
func hotTenant(t testing.TB, processes int) (scriptsPer1000, perSecond float64) {
	const offered, lasts = 5000, 2 * time.Second
	server := redistest.Single(t)
	f := onSocket(t, server)
	client := server.Client(t)
	members := f.joinAll(processes)
	f.awaitLeases(members...)
	alone(t)
	tr := f.offer(by("acme"), steady(offered))
	for _, m := range members {
		tr.to(m, m.openScoped("default", 2*offered, "", ""), 16/processes)
	}
	elapse(t.Context(), time.Second) // leases grow to the rate
	before, calls, begun := tr.count(http.StatusOK), scripts(t, client), time.Now()
	elapse(t.Context(), lasts)
	n, calls, took := tr.count(http.StatusOK)-before, scripts(t, client)-calls, time.Since(begun)
	if all := tr.stop(); counted(all, http.StatusOK) != len(all) {
		t.Errorf("%d of %d requests were admitted, want all", counted(all, http.StatusOK), len(all))
	}
	if calls == 0 {
		t.Error("Redis was never called: nothing is limited")
	}
	return 1000 * float64(calls) / float64(max(n, 1)), float64(n) / took.Seconds()
}

func TestAHotTenantWithFourLimitsHardlyNeedsRedis(t *testing.T) {
	for processes, most := range map[int]float64{1: 40, 4: 160} {
		t.Run(fmt.Sprint("processes=", processes), func(t *testing.T) {
			t.Parallel()
			got, perSecond := hotTenant(t, processes)
			t.Logf("%.1f scripts per 1,000 decisions, at %.0f decisions a second", got, perSecond)
			if got > most {
				t.Errorf("%.1f scripts per 1,000 decisions, at most %g", got, most)
			}
		})
	}
}
