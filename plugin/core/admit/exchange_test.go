package admit_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// someRequest draws from few values each, so that limits are met and names return.
var someRequest = rapid.Custom(func(t *rapid.T) identity.Request {
	return identity.Request{
		Consumer: identity.Consumer{
			CustomID: rapid.SampledFrom([]string{"", "acme", "globex"}).Draw(t, "tenant"),
			Tags: rapid.SampledFrom([][]string{
				nil, {"tier:paid"}, {"a", "tier:trial"}, {"tier:internal"}, {"tier:?"},
			}).Draw(t, "tags"),
		},
		CredentialID: rapid.SampledFrom([]string{"", "k-1"}).Draw(t, "credential"),
		IP:           rapid.SampledFrom([]string{"192.0.2.1", "2001:db8::1"}).Draw(t, "address"),
		Headers:      []string{rapid.SampledFrom([]string{"", "u_1", "u_2"}).Draw(t, "user")},
		Method:       rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"),
		Path:         rapid.SampledFrom([]string{"/", "/records"}).Draw(t, "path"),
		ContentType:  rapid.SampledFrom([]string{"", "application/grpc"}).Draw(t, "content type"),
		HTTP2:        true, GRPCRoute: true, // the content type decides
	}
})

func TestAnExchangeThatIsUsedAgainAnswersAsAFreshOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := config(
			"%tenant%", rapid.SampledFrom([]string{"limit_by_ip", "deny", "skip"}).Draw(rt, "on_missing_tenant"),
			"%user%", rapid.SampledFrom([]string{"credential", "ip", "skip", "deny"}).Draw(rt, "on_missing_user"),
			"%error%", rapid.SampledFrom([]string{"open", "closed"}).Draw(rt, "on_internal_error"),
			"%mode%", rapid.SampledFrom([]string{"enforce", "enforce", "shadow"}).Draw(rt, "mode"),
		)
		reusing, _, observedReusing := deciderOf(t, text)
		fresh, _, observedFresh := deciderOf(t, text)
		var used admit.Exchange
		for range rapid.IntRange(2, 8).Draw(rt, "requests") {
			request := someRequest.Draw(rt, "request")
			failAt := rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "fails at")
			var x admit.Exchange
			errUsed := reusing.Admit(context.Background(), &gateway{request: request, failAt: failAt}, &used)
			errFresh := fresh.Admit(context.Background(), &gateway{request: request, failAt: failAt}, &x)
			if got, want := read(&used.Response), read(&x.Response); got != want || (errUsed == nil) != (errFresh == nil) {
				rt.Fatalf("client reads\n%s (%v)\nwant\n%s (%v)", got, errUsed, want, errFresh)
			}
			if got, want := describe(&used.Decision), describe(&x.Decision); got != want {
				rt.Fatalf("decision is\n%s\nwant\n%s", got, want)
			}
		}
		for i := range *observedFresh {
			if len(*observedReusing) != len(*observedFresh) || (*observedReusing)[i] != (*observedFresh)[i] {
				rt.Fatalf("observed decisions are\n%q\nwant\n%q", *observedReusing, *observedFresh)
			}
		}
	})
}

func TestAdmittingAllocatesNothingInSteadyState(t *testing.T) {
	const roomy = `
user_from: [header.X-User-Id]
trusted_headers: [X-User-Id]
tiers:
- {name: small}
- name: large
  limits:
  - {name: daily, scope: tenant, limit: 1000000, window_size: 86400, algorithm: fixed_window}
  - {name: per-user, scope: user, limit: 100000, window_size: 60}
  - {name: writes, scope: tenant+endpoint, endpoint: "POST /records", limit: 100000, window_size: 60,
     algorithm: sliding_window}
global: {limits: [{name: all, scope: global, limit: 100000, window_size: 60}]}
`
	for name, text := range map[string]string{
		"allowed":       roomy,
		"denied":        `{tiers: [{name: a, limits: [{name: a, scope: tenant, limit: 1, window_size: 60}]}]}`,
		"denied by all": strings.Replace(roomy, "scope: global, limit: 100000", "scope: global, limit: 1", 1),
	} {
		decider, _, _ := deciderOf(t, text)
		decider.Observers = nil // describing a decision allocates
		var x admit.Exchange
		g := gateway{request: ofTier("large", "u_42", "POST", "/records"), rounds: make([]identity.Facts, 0, 8)}
		ctx := context.Background()
		allocations := testing.AllocsPerRun(100, func() {
			g.rounds = g.rounds[:0]
			require.NoError(t, decider.Admit(ctx, &g, &x))
		})
		if allocations != 0 || x.Response.Denied != (name != "allowed") {
			t.Errorf("%s: %v allocations, denied %v, want 0", name, allocations, x.Response.Denied)
		}
	}
}
