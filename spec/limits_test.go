package spec

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

func TestEachTierMeetsItsOwnLimits(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tiers: [
			{name: essentials, limits: [{name: hour, scope: tenant, limit: 2, window_size: 3600}]},
			{name: enterprise, limits: [{name: hour, scope: tenant, limit: 4, window_size: 3600}]},
			{name: unlimited, limits: [{name: year, scope: tenant, limit: 1, window_size: 31536000, algorithm: fixed_window,
				soft_only: true}]},
			{name: internal}]}`))
		n.want([]int{200, 200, 429, 429}, "/records", "apikey", "beth")
		n.want([]int{200, 200, 200, 200, 429}, "/records", "apikey", "alice")
		n.want(times(5, 200), "/records", "apikey", "ida")
		n.want([]int{200, 200, 429}, "/records", "apikey", "tom") // a tier that does not exist is the default one
		for i, warning := range []string{"", "true", "true"} {
			if a := n.get("/records", "apikey", "gus"); a.Status != 200 || a.Header.Get("X-RateLimit-Warning") != warning {
				t.Errorf("request %d of a soft-only tier: %d, warning %q, want 200 and %q",
					i+1, a.Status, a.Header.Get("X-RateLimit-Warning"), warning)
			}
		}
		a := n.get("/records", "apikey", "ida")
		if a.Header.Get("X-RateLimit-Limit") != "" || a.Header.Get("RateLimit-Policy") != "" {
			t.Errorf("a tier without limits has rate headers: %v", a.Header)
		}
	})
}

func TestEveryResponseHasTheBindingLimitAndA429HasRetryAfter(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tiers: [{name: essentials, limits: [
			{name: burst, scope: tenant, limit: 2, window_size: 60},
			{name: daily, scope: tenant, limit: 1000, window_size: 86400, algorithm: fixed_window}]}]}`))
		for remaining := 1; remaining >= 0; remaining-- {
			before := time.Now().Unix()
			a := n.get("/records", "apikey", "beth")
			after := time.Now().Unix()
			r := strconv.Itoa(remaining)
			for name, want := range map[string]string{
				"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": r, "X-RateLimit-Warning": "", "Retry-After": "",
				"RateLimit-Policy": `"burst";q=2;w=60,"daily";q=1000;w=86400`,
			} {
				if got := a.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if got := a.Header.Get("RateLimit"); !strings.HasPrefix(got, `"burst";r=`+r+`;t=`) {
				t.Errorf("RateLimit: %q", got)
			}
			reset, err := strconv.ParseInt(a.Header.Get("X-RateLimit-Reset"), 10, 64)
			if err != nil || reset <= before || reset > after+62 {
				t.Errorf("X-RateLimit-Reset: %q from %d to %d, want epoch seconds within the minute",
					a.Header.Get("X-RateLimit-Reset"), before, after)
			}
		}
		a := n.get("/records", "apikey", "beth")
		p := a.problem(t)
		wait, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if a.Status != 429 || err != nil || wait < 1 || wait > 30 || p.RetryAfter != wait {
			t.Errorf("status %d, Retry-After %q, in the body %d; want 429 and at most 30 s",
				a.Status, a.Header.Get("Retry-After"), p.RetryAfter)
		}
		if a.Header.Get("Content-Type") != "application/problem+json" || a.Header.Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("headers of the 429: %v", a.Header)
		}
		if p.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || len(p.Violated) != 1 ||
			p.Violated[0] != "burst" ||
			p.Message != "API rate limit exceeded" || !strings.Contains(p.Detail, "burst") || p.Status != 429 {
			t.Errorf("body of the 429: %s", a.Body)
		}
	})
}

func TestATenantsQuotaSpansItsConsumersAndRoutes(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tenant_from: [consumer.tag.org, consumer.custom_id],
			tiers: [{name: enterprise, limits: [{name: hour, scope: tenant, limit: 4, window_size: 3600}]}]}`))
		n.want([]int{200, 200}, "/records", "apikey", "alice")
		n.want([]int{200}, "/search", "apikey", "bob")
		n.want([]int{200, 429}, "/search", "apikey", "alice")
		n.want([]int{429}, "/records", "apikey", "bob")
		n.want([]int{200}, "/records", "apikey", "beth")
	})
}

func TestAMissingTenantIsLimitedByAddressDeniedOrSkipped(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		const tiers = `tiers: [{name: a, limits: [{name: hour, scope: tenant, limit: 9, window_size: 3600}]}],
			anonymous: {limits: [{name: per-ip, scope: ip, limit: 2, window_size: 3600}]}`
		for _, c := range []struct {
			mode     string
			statuses []int
		}{
			{"limit_by_ip", []int{200, 200, 429}},
			{"deny", []int{403, 403, 403}},
			{"skip", []int{200, 200, 200, 200}},
		} {
			n := in.start(t, deck(`{on_missing_tenant: `+c.mode+`, `+tiers+`}`))
			n.want(c.statuses, "/records") // key-auth sets the consumer anonymous
			n.want([]int{200}, "/records", "apikey", "alice")
		}
	})
}

func TestAForgedTokenIdentifiesNoTenant(t *testing.T) {
	t.Parallel()
	const config = `{tenant_from: [jwt.org], user_from: [jwt.sub], on_missing_tenant: deny,
		tiers: [{name: a, limits: [{name: user, scope: user, limit: 2, window_size: 3600}]}]}`
	n := start(t, deckOf(`
  - {name: jwt, paths: [/jwt], plugins: [{name: jwt}, {name: tenant-rate-limiting, config: `+config+`}]}
  - {name: open, paths: [/open], plugins: [{name: tenant-rate-limiting, config: `+config+`}]}`))
	token := func(secret, sub string) string {
		signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256,
			jwt.MapClaims{"iss": "iss-alice", "org": "acme", "sub": sub}).SignedString([]byte(secret))
		require.NoError(t, err)
		return "Bearer " + signed
	}
	n.want([]int{200, 200, 429}, "/jwt", "Authorization", token("s3cret", "u1"))
	n.want([]int{200}, "/jwt", "Authorization", token("s3cret", "u2"))
	n.want([]int{401}, "/jwt", "Authorization", token("forged", "u3"))
	n.want([]int{403}, "/open", "Authorization", token("s3cret", "u1")) // this route does not verify tokens
}

func TestNoSpellingOfAPathEvadesAnEndpointsLimit(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tiers: [{name: a,
			limits: [{name: item, scope: tenant+endpoint, endpoint: "GET /records/{id}", limit: 3, window_size: 3600}]}]}`))
		n.want([]int{200}, "/records/7", "apikey", "alice")
		n.want([]int{200}, "//records//8", "apikey", "alice")
		n.want([]int{200}, "/%72ecords/%39", "apikey", "alice")
		for _, path := range []string{
			"/records/1", "/records/1/", "/x/../records/1", "/records/./1",
			"/records/%2e%2e/records/1", "/records/1?q=/x", "//records/1",
		} {
			n.want([]int{429}, path, "apikey", "alice")
		}
		if a, err := n.send("HEAD", "/records/1", "apikey", "alice"); err != nil || a.Status != 429 {
			t.Errorf("HEAD: %d, %v; want 429", a.Status, err)
		}
		n.want(times(5, 200), "/records", "apikey", "alice")
		n.want([]int{200}, "/records/1/parts", "apikey", "alice")
		if a, err := n.send("POST", "/records/1", "apikey", "alice"); err != nil || a.Status != 200 {
			t.Errorf("POST: %d, %v; want 200", a.Status, err)
		}
	})
}

func TestCostsAreSpentAndACostAboveTheCapacityIsDeniedWithAReason(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{costs: {"GET /search": 4}, cost_header: X-Cost, trusted_headers: [X-Cost],
			tiers: [{name: a, limits: [
			{name: units, scope: tenant, limit: 10, window_size: 3600},
				{name: requests, scope: tenant, limit: 100, window_size: 3600, cost: 1}]}]}`))
		n.want([]int{200, 200, 429}, "/search", "apikey", "alice")
		n.want([]int{200, 200, 429}, "/records", "apikey", "alice")
		a := n.get("/records", "apikey", "beth", "X-Cost", "11")
		p := a.problem(t)
		if a.Status != 429 || a.Header.Get("Retry-After") != "" || !strings.Contains(p.Detail, "costs 11") {
			t.Errorf("a cost above the capacity: %d, %v\n%s", a.Status, a.Header, a.Body)
		}
		n.want([]int{200, 429}, "/records", "apikey", "beth", "X-Cost", "6")
	})
}

func TestShadowAndLogNeverDenyAndSendNoHeaders(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tiers: [{name: a,
			limits: [{name: tight, scope: tenant, limit: 1, window_size: 3600, mode: log}]}]}`))
		for range 3 {
			if a := n.get("/records", "apikey", "alice"); a.Status != 200 || a.Header.Get("RateLimit") != "" {
				t.Errorf("%d, %v; want 200 without rate headers", a.Status, a.Header)
			}
		}
		await.That(t, "two would-deny lines", func() bool { return strings.Count(n.log.String(), "would deny") >= 2 })
		if !strings.Contains(n.log.String(), "tight") {
			t.Errorf("the lines do not name the policy:\n%s", n.log)
		}
	})
}

func TestAConfigInLogModeLogsDenialsForMissingTenants(t *testing.T) {
	t.Parallel()
	n := start(t, deck(`{mode: log, on_missing_tenant: deny,
		tiers: [{name: a, limits: [{name: l, scope: tenant, limit: 1, window_size: 3600}]}]}`))
	n.want([]int{200, 200}, "/records")
	await.That(t, "two would-deny lines", func() bool { return strings.Count(n.log.String(), "tenant_missing") == 2 })
}

func TestGlobalLimitsHoldForAllTenantsTogether(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tiers: [{name: a}], global: {limits: [
			{name: all, scope: global, limit: 5, window_size: 3600},
			{name: heavy, scope: endpoint, endpoint: "* /records/heavy", limit: 2, window_size: 3600}]}}`))
		n.want([]int{200}, "/records/heavy", "apikey", "alice")
		n.want([]int{200, 429}, "/records/heavy", "apikey", "beth")
		n.want([]int{200, 200}, "/records", "apikey", "gus")
		n.want([]int{200, 429}, "/records", "apikey", "ida")
		n.want([]int{429}, "/records")
	})
}

func TestATenantSeesItsOwnLimitsAndOnlyTheNameOfASharedOneThatDenies(t *testing.T) {
	t.Parallel()
	const limits = `tiers: [{name: a, limits: [{name: burst, scope: tenant, limit: 50, window_size: 3600}]}],
		global: {limits: [
		{name: all, scope: global, limit: 150000, window_size: 3600, cost: 150000},
		{name: heavy, scope: endpoint, endpoint: "* /records/heavy", limit: 1, window_size: 777600}]}`
	n := start(t, deck(`{`+limits+`}`))
	for i, status := range []int{200, 429, 429} {
		a := n.get("/records/heavy", "apikey", "alice")
		if got := a.Header.Get("X-RateLimit-Limit"); a.Status != status || got != "50" {
			t.Errorf("request %d: %d, X-RateLimit-Limit %q, want %d and the tenant's 50", i+1, a.Status, got, status)
		}
		if got := a.Header.Get("RateLimit-Policy"); got != `"burst";q=50;w=3600` {
			t.Errorf("request %d: RateLimit-Policy %q, want the tenant's limit alone", i+1, got)
		}
		if status == 200 { // the body is that of the upstream
			continue
		}
		if strings.Contains(a.Body, "150000") {
			t.Errorf("request %d shows the number of a shared limit:\n%s", i+1, a.Body)
		}
		if p := a.problem(t); len(p.Violated) != 2 || a.Header.Get("Retry-After") == "" {
			t.Errorf("request %d: violated %q, Retry-After %q, want both shared limits and a wait",
				i+1, p.Violated, a.Header.Get("Retry-After"))
		}
	}
	n = start(t, deck(`{show_shared_limits: true, `+limits+`}`))
	if got := n.get("/records", "apikey", "alice").Header.Get("X-RateLimit-Limit"); got != "150000" {
		t.Errorf("with show_shared_limits: X-RateLimit-Limit %q, want the shared limit's 150000", got)
	}
}

func TestSoakTheLastTokenAdmitsExactlyOneRequest(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{user_from: [header.X-User], trusted_headers: [X-User], tiers: [{name: a, limits: [
			{name: user, scope: user, limit: 1, window_size: 86400}]}]}`), raced(t))
		const contenders = 4
		for round := range soak.Count(100, 1000) {
			user := "u" + strconv.Itoa(round)
			var won, failed atomic.Int64
			var group sync.WaitGroup
			for range contenders {
				group.Go(func() {
					switch a, err := n.send("GET", "/records", "apikey", "alice", "X-User", user); {
					case err != nil || (a.Status != 200 && a.Status != 429):
						failed.Add(1)
					case a.Status == 200:
						won.Add(1)
					}
				})
			}
			if group.Wait(); won.Load() != 1 || failed.Load() != 0 {
				t.Fatalf("round %d: %d requests won, %d failed; want exactly one to win", round, won.Load(), failed.Load())
			}
		}
	})
}

func TestSoakTenantsAtOnceEachHaveTheirOwnQuota(t *testing.T) {
	t.Parallel()
	n := start(t, deck(`{tenant_from: [header.X-Org], trusted_headers: [X-Org],
		tiers: [{name: a,
			limits: [{name: year, scope: tenant, limit: 1, window_size: 31536000, algorithm: fixed_window}]}]}`))
	const workers = 16
	tenants := soak.Count(500, 10_000)
	var admitted, denied, other atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for round := range 2 {
				for i := w; i < tenants; i += workers {
					switch a, err := n.send("GET", "/records", "apikey", "alice", "X-Org", "org-"+strconv.Itoa(i)); {
					case err == nil && a.Status == 200 && round == 0:
						admitted.Add(1)
					case err == nil && a.Status == 429 && round == 1:
						denied.Add(1)
					default:
						other.Add(1)
					}
				}
			}
		})
	}
	group.Wait()
	if each := int64(tenants); admitted.Load() != each || denied.Load() != each || other.Load() != 0 {
		t.Errorf("admitted %d, denied %d, otherwise %d; want %d, %d, 0",
			admitted.Load(), denied.Load(), other.Load(), each, each)
	}
}

func TestLeavingTheUserOutEvadesNoLimit(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		const tiers = `user_from: [header.X-User], trusted_headers: [X-User],
			tiers: [{name: a, limits: [{name: user, scope: user, limit: 1, window_size: 3600}]}]`
		n := in.start(t, deck(`{`+tiers+`}`))
		n.want([]int{200, 429}, "/records", "apikey", "alice")                 // by credential
		n.want([]int{200, 429}, "/records", "apikey", "bob")                   // another credential of the tenant
		n.want([]int{200, 429}, "/records", "apikey", "alice", "X-User", "u1") // a user
		n = in.start(t, deck(`{on_missing_user: deny, `+tiers+`}`))
		n.want([]int{403}, "/records", "apikey", "alice")
		n.want([]int{200, 429}, "/records", "apikey", "alice", "X-User", "u2")
	})
}
