package portal

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// openStored starts a portal on the real API, whose tenants have a thousand requests a day, with the tokens of its
// database. Its clock stands still, so that no day ends while the test runs.
func openStored(t *testing.T) *realWorld {
	t.Helper()
	start := time.Now()
	return overDatabase(t, pgtest.Pool(t, pgtest.Shared(t).Database(t)), policy.Rows{Version: 1}, setting{
		config: schema.Config{DefaultTier: "basic", TenantFrom: []string{"consumer.custom_id"}, Tiers: []schema.Tier{{
			Name: "basic", Limits: []schema.Limit{{
				Name: "daily", Scope: "tenant", Limit: 1000, WindowSize: 86400, Algorithm: "fixed_window",
			}},
		}}},
		now:  start,
		edit: func(o *Options, real *api.Server) { o.API, o.Now = real, func() time.Time { return start } },
	})
}

// issue makes a token as an operator does.
func (s *realWorld) issue(name, role, org string) string {
	s.Helper()
	secret, _, err := s.store.CreateToken(s.Context(), rows.Change{Actor: "test", Reason: "a test"},
		rows.NewToken{Name: name, Role: role, Org: org})
	require.NoError(s, err)
	return secret
}

// checks sends a check to the API with a token, and returns the status.
func (s *realWorld) checks(secret string) int {
	s.Helper()
	r := httptest.NewRequestWithContext(s.Context(), "POST", "/v1/ratelimit/check", strings.NewReader(`{"org_id":"acme"}`))
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	s.real.ServeHTTP(recorder, r)
	return recorder.Code
}

// secretField matches the secret that a page shows.
var secretField = regexp.MustCompile(`id="secret"[^>]* value="([^"]+)"`)

// secretOf returns the secret that a page shows.
func (s *realWorld) secretOf(a shown) string {
	s.Helper()
	found := secretField.FindStringSubmatch(s.want(a, http.StatusOK, "shown once").text)
	if found == nil {
		s.Fatal("the page shows no secret")
	}
	return found[1]
}

func TestATenantSeesItsPlanAndManagesItsTokens(t *testing.T) {
	t.Parallel()
	s := openStored(t)
	b := s.signedIn(s.issue("acme-portal", "tenant", "acme"))
	s.want(b.get("/portal/org"), http.StatusOK, "1,000 requests per day", "1,000 <small>left of 1,000",
		"Not known yet", "No request was seen yet")
	first := s.secretOf(b.post("/portal/org/new/tokens", url.Values{"name": {"ci"}, "expires_in": {"7d"}}))
	for range 3 {
		if status := s.checks(first); status != http.StatusOK {
			t.Fatalf("a check with the new token: %d", status)
		}
	}
	s.want(b.get("/portal/org"), http.StatusOK, "997 <small>left of 1,000")
	s.want(b.get("/portal/org/tokens"), http.StatusOK, ">ci</th>", ">live<")
	s.want(b.post("/portal/org/new/tokens", url.Values{"name": {"ci"}}), http.StatusConflict, `value="ci"`)
	s.want(b.post("/portal/org/new/tokens", url.Values{"name": {"a/b"}}),
		http.StatusUnprocessableEntity, `aria-invalid="true"`)

	second := s.secretOf(b.post("/portal/org/tokens/ci/rotate", nil))
	if old, renewed := s.checks(first), s.checks(second); old != http.StatusOK || renewed != http.StatusOK {
		t.Errorf("after a rotation the old secret has %d and the new one %d, want both to work", old, renewed)
	}
	third := s.secretOf(b.post("/portal/org/tokens/ci/rotate", url.Values{"overlap": {"0s"}}))
	if old := s.checks(second); old != http.StatusUnauthorized {
		t.Errorf("an old secret that ended at once has %d", old)
	}
	a := s.want(b.post("/portal/org/tokens/ci/revoke", nil), http.StatusSeeOther)
	s.want(b.get(a.Header.Get("Location")), http.StatusOK, "The token ci is revoked.")
	for _, secret := range []string{first, second, third} {
		if status := s.checks(secret); status != http.StatusUnauthorized {
			t.Errorf("a secret of a revoked token has %d", status)
		}
	}
}

func TestATenantManagesItsWebhooks(t *testing.T) {
	t.Parallel()
	s := openStored(t)
	b := s.signedIn(s.issue("acme-portal", "tenant", "acme"))
	types := url.Values{"url": {"https://example.com/hooks"}}
	for _, e := range orgEvents {
		types.Add("types", e.Value)
	}
	first := s.secretOf(b.post("/portal/org/new/webhooks", types))
	s.want(b.get("/portal/org/webhooks"), http.StatusOK, "https://example.com/hooks", orgEvents[0].Label, ">enabled<")
	if second := s.secretOf(b.post("/portal/org/webhooks/1/rotate", nil)); second == first {
		t.Error("a rotation shows the same secret")
	}
	for _, step := range [][2]string{
		{"test", "A test event is on its way"}, {"disable", "The webhook is disabled"}, {"enable", "The webhook is enabled"},
	} {
		at := "/portal/org/webhooks/1"
		form := hiddenFields(b.get(at).text)
		a := s.want(b.post(at+"/"+step[0], form), http.StatusSeeOther)
		s.want(b.get(a.Header.Get("Location")), http.StatusOK, step[1], ">waiting<")
		if step[0] == "disable" {
			s.want(b.post(at+"/rotate", form), http.StatusConflict, "Changed by somebody else")
		}
	}
	s.want(b.post("/portal/org/new/webhooks", url.Values{"url": {"http://10.0.0.1/"}}),
		http.StatusUnprocessableEntity, `value="http://10.0.0.1/"`, `aria-invalid="true"`)

	other := s.signedIn(s.issue("globex-portal", "tenant", "globex"))
	s.want(other.get("/portal/org/webhooks"), http.StatusOK, "Your organization has no webhooks yet.")
	s.want(other.get("/portal/org/webhooks/1"), http.StatusNotFound)
	for _, action := range []string{"test", "disable", "enable", "rotate", "delete"} {
		s.want(other.post("/portal/org/webhooks/1/"+action, nil), http.StatusNotFound)
	}
	s.want(b.post("/portal/org/webhooks/1/delete", nil), http.StatusSeeOther)
	s.want(b.get("/portal/org/webhooks/1"), http.StatusNotFound)
}

// recentDenials are denials by a limit of acme, by one that tenants share, and by one of globex.
const recentDenials = `[
	{"event":"a","tenant":"acme","policy":"daily","scope":"tenant","limit":1000,"window_size":86400,"retry_after":7200,
		"count":3,"tenant_count":3,"endpoint":"<i>b</i>","age":0,"reason":"quota","shadow":false,"user":"","ip":""},
	{"event":"b","tenant":"acme","policy":"platform","scope":"global","limit":7777,"window_size":60,"retry_after":7,
		"count":9,"tenant_count":2,"endpoint":"","age":0,"reason":"quota","shadow":false,"user":"","ip":""},
	{"event":"c","tenant":"globex","policy":"theirs","scope":"tenant","limit":5,"window_size":60,"retry_after":7,
		"count":1,"tenant_count":1,"endpoint":"","age":0,"reason":"quota","shadow":false,"user":"","ip":""}]`

// use adds requests of the last minute to the usage history, as leaders do, and denials, as nodes do.
func (s *realWorld) use() {
	s.Helper()
	_, err := s.pool.Exec(s.Context(), `SELECT rate_limiter.keep_usage_partitions();
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), ('globex'), ('GET /a'), ('<i>b</i>');
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT date_trunc('minute', now()), t.id, e.id, p.id, 4321, 0, 1234, 0, 0, 0
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE (t.name, e.name) IN (('acme', 'GET /a'), ('acme', '<i>b</i>'), ('globex', '')) AND p.name = ''`)
	var added int
	if err == nil {
		const report = `SELECT rate_limiter.report_recent_denials('n1', $1)`
		err = s.pool.QueryRow(s.Context(), report, recentDenials).Scan(&added)
	}
	if err != nil || added != 3 {
		s.Fatalf("%d denials are added (%v)", added, err)
	}
}

func TestATenantSeesItsUsageAndDenialsAndNoNumbersOfOthers(t *testing.T) {
	t.Parallel()
	s := openStored(t)
	s.use()
	b := s.signedIn(s.issue("acme-portal", "tenant", "acme"))
	for _, span := range usageSpans {
		a := s.want(b.get("/portal/org/usage?span="+span.Name), http.StatusOK,
			"8,642", "2,468", "GET /a", "&lt;i&gt;b&lt;/i&gt;", "4,321", `data-line="1000"`)
		if strings.Contains(a.text, "12,963") {
			t.Errorf("%s counts the requests of another org", span.Name)
		}
	}
	a := s.want(b.get("/portal/org/denials"), http.StatusOK, "1,000 per day", "platform",
		"numbers you cannot see", "&lt;i&gt;b&lt;/i&gt;")
	for _, theirs := range []string{"7,777", "theirs", ">9<"} {
		if strings.Contains(a.text, theirs) {
			t.Errorf("the denials have %q", theirs)
		}
	}
	s.want(b.get("/portal/org/denials?endpoint="+url.QueryEscape("GET /a")), http.StatusOK, "Nothing was denied")
}

func TestUsageOfVeryManyEndpointsIsShownWithoutThem(t *testing.T) {
	t.Parallel()
	s := openStored(t)
	_, err := s.pool.Exec(s.Context(), `SELECT rate_limiter.keep_usage_partitions();
		INSERT INTO rate_limiter.usage_names (name) SELECT 'GET /' || n FROM generate_series(1, 10001) n;
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme');
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT date_trunc('minute', now()), t.id, e.id, p.id, 1, 0, 0, 0, 0, 0
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name = 'acme' AND e.name LIKE 'GET /%' AND p.name = ''`)
	require.NoError(t, err)
	a := s.signedIn(s.issue("acme-portal", "tenant", "acme")).get("/portal/org/usage")
	s.want(a, http.StatusOK, "10,001", "other requests")
}
