package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func init() {
	samples["preview-override"] = sample{body: `{"kind":"ban","reason":"abuse","permanent":true}`}
	may["preview-override"] = "yy..???"
	scenarios["preview-override"] = func(c *contract, o operation) { c.check(o, c.do(o.call(viewer))) }
}

// previews returns a server on which acme has the limits of enterprise and an override on the limit per user.
func previews(t *testing.T) *world {
	t.Helper()
	rows := enterprise()
	rows.Overrides = []policy.Override{
		policytest.Override(1, schema.Override{Kind: policy.CustomLimit, Policy: "per-user", Limit: 7, Tenant: "acme"}),
	}
	return open(t, func(o *api.Options) {
		o.Decider = deciderOf(t, plan(), shelf{memory.New(memory.Options{Now: clock})}, rows)
	})
}

// previewed returns what an override of acme would change.
func (w *world) previewed(body string) answers.OverridePreview {
	w.Helper()
	return read[answers.OverridePreview](w, w.want(w.do(call{viewer, "POST", overrides + "/preview", body, nil}),
		http.StatusOK))
}

func TestAPreviewShowsTheLimitsThatAnOverrideChanges(t *testing.T) {
	t.Parallel()
	w := previews(t)
	day := func(n int64) answers.LimitNumbers { return answers.LimitNumbers{Limit: n, WindowSize: 86400, Burst: n} }
	for body, want := range map[string][]answers.LimitChange{
		`{"kind":"custom_limit","policy":"daily","limit":2000,"reason":"r","expires_at":"2031-01-01T00:00:00Z"}`: {
			{Policy: "daily", Scope: "tenant", Algorithm: "token_bucket", Before: day(1000), After: day(2000)},
		},
		`{"kind":"multiplier","factor":0.5,"endpoint":"POST /records/{id}","reason":"r","permanent":true}`: {
			{
				Policy: "writes", Endpoint: "POST /records/{id}", Scope: "tenant", Algorithm: "token_bucket",
				Before: day(20), After: day(10),
			},
		},
		`{"kind":"multiplier","factor":2,"policy":"per-user","user":"u","reason":"r","permanent":true}`: {
			{Policy: "per-user", Scope: "user", Algorithm: "token_bucket", Before: day(7), After: day(100)},
		},
	} {
		got := w.previewed(body)
		if len(got.Changes) != len(want) || !got.Applied {
			t.Errorf("%s: %+v, want the changes %+v", body, got, want)
			continue
		}
		for i := range want {
			if got.Changes[i] != want[i] {
				t.Errorf("%s: the change is %+v, want %+v", body, got.Changes[i], want[i])
			}
		}
	}
}

func TestAPreviewOfABanOrAnExemptionHasItsVerdict(t *testing.T) {
	t.Parallel()
	w := previews(t)
	for kind, want := range map[string]string{"ban": "banned", "exempt": "exempt"} {
		for _, endpoint := range []string{"", `"endpoint":"GET /x",`} {
			body := `{"kind":"` + kind + `",` + endpoint + `"reason":"r","permanent":true}`
			if got := w.previewed(body); got.Verdict != want || !got.Applied || len(got.Changes) > 0 {
				t.Errorf("%s: %+v, want the verdict %s", body, got, want)
			}
		}
	}
}

func TestAPreviewWithoutAnEffectSaysWhy(t *testing.T) {
	t.Parallel()
	w := previews(t)
	got := w.previewed(`{"kind":"custom_limit","policy":"weekly","limit":1,"reason":"r","permanent":true}`)
	warnings := strings.Join(got.Warnings.Warnings, " ")
	if got.Applied || got.Why == "" || len(got.Changes) > 0 || !strings.Contains(warnings, "weekly") {
		t.Errorf("%+v, want no change and a warning of the policy", got)
	}
	began := w.previewed(`{"kind":"ban","reason":"r","starts_at":"2035-01-01T00:00:00Z","expires_in":"1h"}`)
	if began.At.Year() != 2035 || began.End.Sub(began.Begin).Hours() != 1 || began.Verdict != "banned" {
		t.Errorf("%+v, want the state when the override begins", began)
	}
}

func TestAPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	w := previews(t)
	w.previewed(`{"kind":"ban","reason":"r","permanent":true}`)
	if a := w.as("GET", "/v1/ratelimit/overrides", ""); !strings.Contains(a.Body.String(), `"items":[]`) {
		t.Errorf("after a preview the overrides are %s", a.Body)
	}
	if a := w.as("GET", "/v1/orgs/acme/ratelimit/policies", ""); strings.Contains(a.Body.String(), "banned") {
		t.Errorf("after a preview the limits are %s", a.Body)
	}
	if a := w.as("GET", "/v1/ratelimit/audit", ""); !strings.Contains(a.Body.String(), `"items":[]`) {
		t.Errorf("after a preview the audit is %s", a.Body)
	}
}

func TestAPreviewReportsTheFaultsOfAnOverride(t *testing.T) {
	t.Parallel()
	w := previews(t)
	a := w.want(w.as("POST", overrides+"/preview", `{"kind":"custom_limit","limit":0,"reason":""}`),
		http.StatusUnprocessableEntity)
	paths := read[problem](w, a).paths()
	if !strings.Contains(paths, "body.policy") || !strings.Contains(paths, "body.limit") {
		t.Errorf("the faults are at %s", paths)
	}
}
