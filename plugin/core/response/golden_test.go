package response_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// published are all kinds of answers that a client can read; each has a golden file of its name.
func published(t testing.TB) []struct {
	name     string
	config   schema.Config
	decision *decision.Decision
	grpc     bool
} {
	both := answers{status(0, 2*second, 20_000), status(0, 6400*second, 6400*second), status(0, 60*second, 6*second)}
	tooLarge := answers{status(100, 0, limit.Never), status(14_990, 6400*second, 0), status(10, 0, limit.Never)}
	throttled := answers{status(3, 1_500_000, 0), soft(6400 * second), status(9, 6*second, 0)}
	closed := schema.Limit{
		Name: "billing", Scope: "tenant", Limit: 1000, WindowSize: 86400, Algorithm: "fixed_window", FailMode: "closed",
	}
	shadowed := closed
	shadowed.Mode = "shadow"
	nasty := "Slow down, \"friend\"\\\r\n<b>\x00é\xff{}\u2028"
	// A limit that all tenants share: what a store says of it comes after roomy.
	platform := schema.Limit{
		Name: "platform", Scope: "global", Limit: 150_000, WindowSize: 777_600, Algorithm: "fixed_window", FailMode: "closed",
	}
	beside := func(own answers, shared decision.Status) *decision.Decision {
		return decide(t, append(append(answers{}, own...), shared), platform)
	}
	egress := settling("egress", "log.response.size", "log.request.size")
	tokens := settling("llm-tokens", "log.ai.*.usage.total_tokens")
	money := settling("llm-hour", schema.SourcePrices)
	money.Unit, money.Limit = schema.UnitUSD, 2_000_000
	spent := func(wait limit.Micros, cost int64) *decision.Decision {
		return costing(decide(t, append(append(answers{}, roomy...), status(4_200, 60*second, wait)), money), cost)
	}
	settles := func(first int64) *decision.Decision {
		return decide(t, append(append(answers{}, roomy...), status(first, 60*second, 0), status(700, 60*second, 0)),
			tokens, egress)
	}
	full := status(149_321, 7654*second, 6543*second)
	capped := status(149_321, 400_000, 400_000)
	capped.Source = decision.FairShare
	softShared := soft(7654 * second)
	shown := schema.Config{ShowSharedLimits: true, KongHeaders: true}
	return []struct {
		name     string
		config   schema.Config
		decision *decision.Decision
		grpc     bool
	}{
		{"allowed", schema.Config{}, decide(t, roomy), false},
		{"allowed_grpc", schema.Config{}, decide(t, roomy), true},
		{"allowed_binding", schema.Config{RateLimitHeader: "binding"}, decide(t, roomy), false},
		{"allowed_five", schema.Config{}, many(t, 3, 98), false},
		{"allowed_all_of_five", schema.Config{RateLimitHeader: "all"}, many(t, 3, 98), false},
		{"allowed_all_of_twenty", schema.Config{RateLimitHeader: "all"}, many(t, 18, 98), false},
		{"denied_all_of_five", schema.Config{RateLimitHeader: "all"}, many(t, 3, 0), false},
		{"denied_binding", schema.Config{RateLimitHeader: "binding"}, decide(t, both), false},
		{
			"exposed",
			schema.Config{ExposeHeaders: true, KongHeaders: true, ShowCost: true, DegradedHeader: true},
			decide(t, roomy), false,
		},
		{"exposed_denied", schema.Config{ExposeHeaders: true}, decide(t, denies), false},
		{"exposed_hidden", schema.Config{ExposeHeaders: true, HideClientHeaders: true}, decide(t, denies), false},
		{"exposed_without_limits", schema.Config{ExposeHeaders: true}, without(decision.Counted, false), false},
		{"allowed_kong_headers", schema.Config{KongHeaders: true}, decide(t, roomy), false},
		{"allowed_cost", schema.Config{ShowCost: true}, costing(decide(t, roomy), 20), false},
		{"allowed_cost_hidden", schema.Config{ShowCost: true, HideClientHeaders: true}, decide(t, roomy), false},
		{"allowed_hidden_headers", schema.Config{HideClientHeaders: true, KongHeaders: true}, decide(t, roomy), false},
		{"allowed_without_limits", schema.Config{}, without(decision.Counted, false), false},
		{"allowed_fault", schema.Config{}, without(decision.InternalFault, false), false},
		{"soft", schema.Config{}, decide(t, throttled), false},
		{"settles", schema.Config{KongHeaders: true}, settles(800), false},
		{"denied_money", schema.Config{KongHeaders: true}, spent(60*second, 20_000), false},
		{"denied_too_much_money", schema.Config{}, spent(limit.Never, 2_000_001), false},
		{"settles_tokens_binding", schema.Config{KongHeaders: true}, settles(400), false},
		{"settles_tokens_alone", schema.Config{ShowCost: true}, alone(settles(400), "llm-tokens"), false},
		{"denied_by_one", schema.Config{}, decide(t, denies), false},
		{"denied_by_two", schema.Config{}, decide(t, both), false},
		{"denied_kong_headers", schema.Config{KongHeaders: true}, decide(t, denies), false},
		{"denied_cost", schema.Config{ShowCost: true}, costing(decide(t, denies), 20), false},
		{"denied_hidden_headers", schema.Config{HideClientHeaders: true}, decide(t, both), false},
		{"denied_jitter", schema.Config{RetryAfterJitterMax: 30}, decide(t, both), false},
		{"denied_own_code_and_message", schema.Config{ErrorCode: 503, ErrorMessage: nasty}, decide(t, both), false},
		{"denied_described", schema.Config{}, described(decide(t, denies), `Protects the "nightly" C:\import.`), false},
		{"denied_grpc", schema.Config{}, decide(t, denies), true},
		{"cost_too_large", schema.Config{KongHeaders: true}, costing(decide(t, tooLarge), 250), false},
		{"cost_too_large_for_a_leased_bucket", schema.Config{}, costing(decide(t, holding(98, tooLarge)), 99), false},
		{"tenant_missing", schema.Config{}, without(decision.TenantMissing, true), false},
		{"tenant_missing_grpc", schema.Config{}, without(decision.TenantMissing, true), true},
		{"user_missing", schema.Config{}, without(decision.UserMissing, true), false},
		{"user_missing_grpc", schema.Config{}, without(decision.UserMissing, true), true},
		{"header_repeated", schema.Config{}, repeated("X-Org"), false},
		{"header_repeated_grpc", schema.Config{}, repeated("X-Org"), true},
		{"internal_fault", schema.Config{}, without(decision.InternalFault, true), false},
		{"config_fault", schema.Config{}, without(decision.ConfigFault, true), false},
		{"meta_limited", schema.Config{}, after(without(decision.MetaLimited, true), 20_000), false},
		{
			"degraded",
			schema.Config{DegradedHeader: true},
			decide(t, answers{shared(roomy[0]), failing(0), roomy[2], failing(0)}, shadowed), false,
		},
		{"degraded_not_shown", schema.Config{}, decide(t, answers{shared(roomy[0]), failing(0), roomy[2]}), false},
		{
			"degraded_in_shadow",
			schema.Config{DegradedHeader: true},
			decide(t, answers{roomy[0], roomy[1], roomy[2], failing(0)}, shadowed), false,
		},
		{
			"degraded_hidden",
			schema.Config{DegradedHeader: true, HideClientHeaders: true},
			decide(t, answers{shared(roomy[0]), failing(0), roomy[2]}), false,
		},
		{
			"store_away",
			schema.Config{DegradedHeader: true},
			decide(t, answers{failing(second), failing(0), roomy[2], failing(1_200_000)}, closed), false,
		},
		{
			"store_away_own_status",
			schema.Config{ClosedStatus: 429},
			decide(t, answers{roomy[0], roomy[1], roomy[2], failing(0)}, closed), false,
		},
		{"store_away_grpc", schema.Config{}, decide(t, answers{roomy[0], roomy[1], roomy[2], failing(0)}, closed), true},
		{
			"denied_beside_store_away",
			schema.Config{DegradedHeader: true},
			decide(t, answers{denies[0], roomy[1], roomy[2], failing(second)}, closed), false,
		},
		{"banned", schema.Config{}, after(without(decision.Banned, true), 90*second), false},
		{"banned_for_good", schema.Config{}, after(without(decision.Banned, true), limit.Never), false},
		{"banned_grpc", schema.Config{}, after(without(decision.Banned, true), 90*second), true},
		{"shared_allowed", schema.Config{KongHeaders: true}, beside(roomy, status(149_321, 7654*second, 0)), false},
		{"shared_soft", schema.Config{}, beside(roomy, softShared), false},
		{"shared_soft_beside_own", schema.Config{}, beside(throttled, softShared), false},
		{"shared_denied", schema.Config{KongHeaders: true}, beside(roomy, full), false},
		{"shared_denied_grpc", schema.Config{}, beside(roomy, full), true},
		{"shared_denied_beside_own", schema.Config{}, beside(denies, full), false},
		{"shared_denied_remembered", schema.Config{}, beside(make(answers, len(roomy)), full), false},
		{"shared_cost_too_large", schema.Config{}, costing(beside(roomy, status(149_321, 0, limit.Never)), 151_000), false},
		{
			"shared_degraded",
			schema.Config{DegradedHeader: true},
			beside(roomy, shared(status(149_321, 7654*second, 0))), false,
		},
		{"shared_away", schema.Config{DegradedHeader: true}, beside(roomy, failing(second)), false},
		{"shared_shown_allowed", shown, beside(roomy, status(14_932, 7654*second, 0)), false},
		{"shared_shown_soft", shown, beside(roomy, softShared), false},
		{"shared_shown_denied", shown, beside(roomy, full), false},
		{"share_used", schema.Config{KongHeaders: true}, beside(make(answers, len(roomy)), capped), false},
		{"share_used_grpc", schema.Config{}, beside(make(answers, len(roomy)), capped), true},
		{"share_used_shown", shown, beside(make(answers, len(roomy)), capped), false},
		{"config_fault_grpc", schema.Config{}, without(decision.ConfigFault, true), true},
	}
}

// many is a decision about the burst, the quota and n more limits, of which the burst has some left.
func many(t testing.TB, n int, left int64) *decision.Decision {
	given, more := append(answers{}, roomy...), []schema.Limit{}
	if left == 0 {
		given[0] = denies[0]
	}
	for i := range n {
		name := "limit-" + string(rune('a'+i))
		more = append(more, schema.Limit{Name: name, Scope: "tenant", Limit: 1000, WindowSize: 3600})
		given = append(given, status(999-int64(i), 4*second, 0))
	}
	return decide(t, given, more...)
}

// settling is a limit of 1,000 an hour that settles to the sum of sources.
func settling(name string, sources ...string) schema.Limit {
	l := schema.Limit{
		Name: name, Scope: "tenant", Limit: 1000, WindowSize: 3600, Algorithm: "fixed_window",
		Settle: &schema.Settle{Reserve: 20},
	}
	for _, from := range sources {
		l.Settle.Sources = append(l.Settle.Sources, schema.SettleSource{From: from, Weight: 1})
	}
	return l
}

// alone drops all bounds of a decision but one.
func alone(d *decision.Decision, name string) *decision.Decision {
	for i, b := range d.Resolution.Bounds {
		if b.Policy.Name == name {
			d.Resolution.Bounds, d.Statuses = d.Resolution.Bounds[i:i+1], d.Statuses[i:i+1]
			d.Binding, d.OwnBinding = 0, 0
			return d
		}
	}
	return nil
}

// described gives every limit of a decision a description.
func described(d *decision.Decision, text string) *decision.Decision {
	for i := range d.Resolution.Bounds {
		p := *d.Resolution.Bounds[i].Policy
		p.Description = text
		d.Resolution.Bounds[i].Policy = &p
	}
	return d
}

// repeated is the denial of a request in which a trusted header came twice.
func repeated(header string) *decision.Decision {
	d := without(decision.HeaderRepeated, true)
	d.Identity.Repeated = header
	return d
}

func TestClientsReadWhatIsPublished(t *testing.T) {
	for _, test := range published(t) {
		t.Run(test.name, func(t *testing.T) {
			got := show(render(test.config, test.decision, test.grpc))
			golden.Check(t, filepath.Join("testdata", test.name+".golden"), got)
		})
	}
}

func TestNoNumberOfASharedLimitIsReadUnlessTheConfigShowsThem(t *testing.T) {
	seen := 0
	for _, test := range published(t) {
		if !strings.HasPrefix(test.name, "shared_") || test.config.ShowSharedLimits {
			continue
		}
		seen++
		text := show(render(test.config, test.decision, test.grpc))
		for _, number := range []string{"150000", "149321", "14932", "777600", "7654", "151000"} {
			if strings.Contains(text, number) {
				t.Errorf("%s: a client reads %s of the shared limit:\n%s", test.name, number, text)
			}
		}
		denies := strings.Contains(test.name, "denied") || strings.Contains(test.name, "away") ||
			strings.Contains(test.name, "too_large")
		if !test.grpc && strings.Contains(text, "platform") != denies {
			t.Errorf("%s: the shared limit is named wrongly:\n%s", test.name, text)
		}
	}
	assert.True(t, seen >= 10, "only %d answers have a shared limit", seen)
}

func show(r *response.Response) string {
	var b strings.Builder
	if r.Denied {
		fmt.Fprintf(&b, "denied with %d\n", r.Status)
	} else {
		fmt.Fprintln(&b, "passed on")
	}
	for _, h := range r.Headers {
		fmt.Fprintf(&b, "%s: %s\n", h.Name, h.Value)
	}
	if len(r.Body) > 0 {
		fmt.Fprintf(&b, "\n%s\n", r.Body)
	}
	return b.String()
}

// A problem document as RFC 9457 and draft-ietf-httpapi-ratelimit-headers-10 define it, with what is ours.
type problem struct {
	Type              string   `json:"type"`
	Title             string   `json:"title"`
	Detail            string   `json:"detail"`
	ViolatedPolicies  []string `json:"violated-policies"`
	UncheckedPolicies []string `json:"unchecked-policies"`
	Status            int      `json:"status"`
	RetryAfterSeconds int64    `json:"retry_after_seconds"`
	Message           string   `json:"message"`
}

func TestEveryBodyIsAProblemDocumentThatAgreesWithTheHeaders(t *testing.T) {
	for _, test := range published(t) {
		t.Run(test.name, func(t *testing.T) {
			r := render(test.config, test.decision, test.grpc)
			if !r.Denied || test.grpc {
				assert.Empty(t, r.Body, "body %s, want none", r.Body)
				return
			}
			decoder := json.NewDecoder(strings.NewReader(string(r.Body)))
			decoder.DisallowUnknownFields()
			var p problem
			require.NoError(t, decoder.Decode(&p), "decode %s", r.Body)
			if decoder.More() || p.Type == "" || p.Title == "" || p.Detail == "" || p.Message == "" || p.Status != r.Status {
				t.Errorf("problem is %+v with status %d", p, r.Status)
			}
			assert.Equal(t, "application/problem+json", r.Get("content-type"), "Content-Type")
			want := r.Get("Retry-After")
			if got := fmt.Sprint(p.RetryAfterSeconds); !test.config.HideClientHeaders && got != want &&
				(want != "" || got != "0") {
				t.Errorf("retry_after_seconds is %s, Retry-After %q", got, want)
			}
			if counted := test.decision.Reason == decision.Counted; counted != (len(p.ViolatedPolicies) > 0) {
				t.Errorf("violated policies are %q", p.ViolatedPolicies)
			}
			if away := test.decision.Reason == decision.StoreAway; away != (len(p.UncheckedPolicies) > 0) {
				t.Errorf("unchecked policies are %q", p.UncheckedPolicies)
			}
		})
	}
}
