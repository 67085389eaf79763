package spec

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// tight is a config in which the second request of a tenant or an address is denied; more is more of the config.
func tight(more string) string {
	return deck(`{tiers: [{name: essentials, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600}]}],
		anonymous: {limits: [{name: per-ip, scope: ip, limit: 1, window_size: 3600}]}, ` + more + `}`)
}

// wantExempt sends a request repeatedly: it is exempt if it is never denied and carries no rate limit headers.
func (n *node) wantExempt(path string, headers ...string) {
	n.t.Helper()
	for range 4 {
		a := n.get(path, headers...)
		limited := a.Header.Get("X-RateLimit-Limit") + a.Header.Get("RateLimit-Policy") + a.Header.Get("RateLimit")
		if a.Status != http.StatusOK || limited != "" {
			n.t.Errorf("%s %v: %d with the headers %v, want it exempt", path, headers, a.Status, a.Header)
		}
	}
}

func TestEachKindOfEntryExemptsItsRequestsAndNoOthers(t *testing.T) {
	t.Parallel()
	n := start(t, tight(`user_from: [header.X-User], trusted_headers: [X-User], exempt: [{tenant: beta},
		{tenant: acme, user: batch}, {tag: "tier:unlimited"}, {endpoint: "GET /records/healthz"},
		{tag: "tier:internal", endpoint: "* /records/*"}, {cidr: 198.51.100.0/24}]`))
	n.wantExempt("/records", "apikey", "beth")
	n.wantExempt("/records", "apikey", "alice", "X-User", "batch")
	n.wantExempt("/records", "apikey", "gus")
	n.wantExempt("/records/healthz", "apikey", "tom")
	n.wantExempt("/records/healthz")
	n.wantExempt("/records/7", "apikey", "ida")

	n.want([]int{200, 429}, "/records", "apikey", "alice", "X-User", "batches")
	n.want([]int{200, 429}, "/records", "apikey", "ida")
	n.want([]int{200, 429}, "/records", "apikey", "tom", "X-User", "batch")
	n.want([]int{200, 429}, "/records")
}

func TestAClientCannotClaimAnExemption(t *testing.T) {
	t.Parallel()
	trusting := func(o *gateway.Options) {
		o.TrustedIPs = []string{"192.0.2.0/24"} // not this client
	}
	n := start(t, tight(`user_from: [header.X-User], trusted_headers: [X-User],
		exempt: [{tenant: beta}, {tenant: acme, user: batch}, {cidr: 198.51.100.0/24}, {tag: "tier:internal"},
		{endpoint: "GET /records/healthz"}, {endpoint: "* /records/public/*"}]`), trusting)
	n.want([]int{200, 429}, "/records", "apikey", "alice", "X-Org", "beta", "X-Consumer-Custom-ID", "beta",
		"X-Tenant", "beta", "X-Consumer-Tags", "tier:internal", "X-Forwarded-For", "198.51.100.7",
		"X-Real-IP", "198.51.100.7")
	if a := n.get("/records", "apikey", "alice", "X-User", "u, batch"); a.Status != 400 {
		t.Errorf("two users in one request: %d, want 400", a.Status)
	}
	for _, path := range []string{
		"/records/healthz/../7", "/records/healthz/%2e%2e/7", "/records/public/..%2f7", "/records/public/..;/7",
		"//records//public/%2e%2e%2f%2e%2e/7", "/records/public/%5c..%5c7", "/records/Public/7", "/records/healthz;x",
	} {
		n.want([]int{429}, path, "apikey", "alice")
	}
	n.wantExempt("//records//%68ealthz?x=1", "apikey", "alice")
}

func TestAnEntryOfANetworkCountsTheAddressThatKongTrusts(t *testing.T) {
	t.Parallel()
	behindProxy := func(o *gateway.Options) {
		o.TrustedIPs = []string{"127.0.0.1"} // this client
	}
	n := start(t, tight(`exempt: [{cidr: 198.51.100.0/24}, {cidr: 198.51.100.7/32}, {cidr: "2001:db8::/48"}]`), behindProxy)
	for _, address := range []string{"198.51.100.7", "198.51.100.8", "::ffff:198.51.100.9", "2001:db8::1"} {
		n.wantExempt("/records", "X-Real-IP", address)
	}
	for _, address := range []string{"198.51.101.7", "2001:db8:1::1"} {
		n.want([]int{200, 429}, "/records", "X-Real-IP", address)
	}
}

func TestPreflightsAreExemptOnlyIfTheConfigSaysSoAndUpToTheLimitsPerAddress(t *testing.T) {
	t.Parallel()
	const global = `global: {limits: [{name: flood, scope: ip, limit: 5, window_size: 3600}]}`
	options := func(n *node, headers ...string) int {
		t.Helper()
		a, err := n.send(http.MethodOptions, "/records", append(headers, "apikey", "beth")...)
		require.NoError(t, err)
		return a.Status
	}
	origin, method := []string{"Origin", "https://app.example"}, []string{"Access-Control-Request-Method", "PUT"}
	both := append(origin, method...)

	off := start(t, tight(global))
	if first, second := options(off, both...), options(off, both...); first != 200 || second != 429 {
		t.Errorf("preflights of a config that does not exempt them: %d and %d, want 200 and 429", first, second)
	}
	n := start(t, tight(`exempt_preflights: true, `+global))
	n.want([]int{200}, "/records", "apikey", "beth")
	for name, headers := range map[string][]string{"no header": nil, "no method": origin, "no origin": method} {
		if got := options(n, headers...); got != 429 {
			t.Errorf("an OPTIONS request with %s: %d, want 429", name, got)
		}
	}
	for i := range 4 {
		if got := options(n, both...); got != 200 {
			t.Errorf("preflight %d of a tenant without room: %d, want 200", i+1, got)
		}
	}
	if got := options(n, both...); got != 429 {
		t.Errorf("a preflight beyond the limit per address: %d, want 429", got)
	}
	if a := n.get("/search", append(both, "apikey", "tom")...); a.Status != 429 {
		t.Errorf("a GET request with the headers of a preflight: %d, want 429", a.Status)
	}
}
