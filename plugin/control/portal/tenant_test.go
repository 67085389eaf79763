package portal

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// hostile is text that must not become part of a page's markup.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>`

// answersWith has the API answer the requests of acme's pages, with a text in every field that others choose.
func answersWith(w *world, text string) {
	w.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(w, err)
	fill := func(body string) string { return strings.ReplaceAll(body, "TEXT", string(quoted)) }
	const at = "/v1/orgs/acme"
	for path, body := range map[string]string{
		"": `{"id":"acme","tier":TEXT,"time_zone":TEXT}`,
		"/ratelimit/policies": `{"at":"2026-11-22T12:00:00Z","tier":TEXT,"tier_title":TEXT,
			"tier_price":TEXT,"limits":[{"policy":TEXT,"endpoint":TEXT,
			"scope":"tenant","limit":1000,"window_size":86400,"burst":1000,"algorithm":"fixed_window","mode":"enforce",
			"public_note":TEXT,"until":"2026-12-01T00:00:00Z"}],
			"exceptions":[{"verdict":"banned","endpoint":TEXT,"public_note":TEXT}],
			"overrides":[{"kind":TEXT,"target":TEXT,"endpoint":TEXT,"public_note":TEXT,"applied":true}]}`,
		"/ratelimit/usage": `{"items":[{"policy":TEXT,"of":TEXT,"endpoint":TEXT,"scope":"tenant","limit":1000,"used":900,
			"remaining":100,"fraction":0.9,"reset":"2026-11-23T00:00:00Z"}]}`,
		"/ratelimit/usage/history": `{"from":"2026-11-22T00:00:00Z","to":"2026-11-22T12:00:00Z","items":[
			{"at":"2026-11-22T03:00:00Z","endpoint":TEXT,"admitted":7,"denied":2}]}`,
		"/ratelimit/denial-groups": `{"from":"2026-11-22T11:00:00Z","step_seconds":900,"items":[
			{"at":"2026-11-22T11:00:00Z","endpoint":TEXT,"policy":TEXT,"reason":"quota","limit":1000,"window":"1d",
			"count":12,"counts":[2,10]},{"reason":"others","count":3,"counts":[3,0]}]}`,
		"/ratelimit/webhooks": `{"items":[{"id":7,"url":TEXT,"types":[],"enabled":false,"disabled_reason":TEXT}]}`,
		"/ratelimit/webhooks/7": `{"id":7,"url":TEXT,"types":[],"enabled":true,"last_error":TEXT,
			"failing_since":"2026-11-22T11:00:00Z"}`,
		"/ratelimit/webhooks/7/deliveries": `{"items":[{"id":"msg_1","state":"waiting","error":TEXT}]}`,
		"/tokens":                          `{"tokens":[{"name":TEXT,"state":"live"},{"name":"old","state":"revoked"}]}`,
	} {
		w.api.answer("GET "+at+path, http.StatusOK, fill(body))
	}
	w.api.answer("GET /openapi.json", http.StatusOK, published(w))
	w.api.answer("GET /v1/ratelimit/denials/"+text, http.StatusOK, fill(`{"denials":[{"at":"2026-11-22T11:00:00Z",
		"endpoint":TEXT,"policy":TEXT,"reason":"quota","limit":1000,"window":"1d","user":TEXT,"count":1,
		"retry_at":"2026-11-22T13:00:00Z","would_admit":TEXT}]}`))
}

// published returns the API's description of itself.
func published(t testing.TB) string {
	t.Helper()
	var document any
	text, err := os.ReadFile("../../../schema/openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &document))
	text, err = json.Marshal(document)
	require.NoError(t, err)
	return string(text)
}

// orgPages are the paths of the pages of tenants.
var orgPages = []string{
	"/portal/org", "/portal/org?user=", "/portal/org/usage", "/portal/org/usage?span=7d", "/portal/org/usage?span=30d",
	"/portal/org/denials", "/portal/org/denials?since=1h&endpoint=",
	"/portal/org/denials?request_id=", "/portal/org/webhooks", "/portal/org/webhooks/7",
	"/portal/org/tokens",
}

func TestNoTextOfOthersBecomesMarkupOfAPageOfATenant(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, hostile)
	b := w.signedIn(acmeSecret)
	for _, path := range orgPages {
		if strings.HasSuffix(path, "=") {
			path += url.QueryEscape(hostile)
		}
		a := w.want(b.get(path), http.StatusOK, "alert(1)")
		for _, markup := range []string{"<script>", "<img", "onerror=alert(2)>", `"><`} {
			if strings.Contains(a.text, markup) && markup != `"><` || strings.Contains(a.text, `"><script`) {
				t.Errorf("%s has %s", path, markup)
			}
		}
	}
}

func TestAPageOfATenantShowsItsOwnOrgWhateverTheRequestNames(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, "daily")
	b := w.signedIn(acmeSecret)
	for _, path := range orgPages {
		if !strings.HasSuffix(path, "=") {
			b.get(path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "org=globex&tenant=globex")
		}
	}
	for _, call := range w.api.calls {
		if !strings.Contains(call, "/v1/orgs/acme") || strings.Contains(call, "globex") {
			t.Errorf("the API was called with %s", call)
		}
	}
	if len(w.api.calls) < len(orgPages) {
		t.Errorf("the API was called %d times", len(w.api.calls))
	}
}

func TestAnOrgWhoseNameIsADotSegmentReachesItself(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, org := range []string{"..", ".", "a/../b", "ä ö?#"} {
		w.tokens.set(org, api.Caller{Token: "t", Role: api.Tenant, Org: org})
		w.signedIn(org).get("/portal/org/tokens")
		last := w.api.calls[len(w.api.calls)-1]
		_, path, _ := strings.Cut(last, "GET ")
		segments := strings.Split(path, "/")
		name, err := url.PathUnescape(segments[3])
		if err != nil || len(segments) != 5 || name != org {
			t.Errorf("%q: the API was called with %s (%v)", org, last, err)
		}
	}
}

func TestThePlanShowsLimitsInWordsWithWhatIsUsedIfThatCanBeRead(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	answersWith(w, "daily")
	b := w.signedIn(acmeSecret)
	w.want(b.get("/portal/org"), http.StatusOK,
		"1,000 requests per day to daily", "90 % used", `100 <small>left of 1,000</small>`, "2026-11-23", "are denied",
		`high="0.95" optimum="0" value="0.9"`)
	w.api.answer("GET /v1/orgs/acme", http.StatusNotFound, `{"status":404}`)
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage", http.StatusServiceUnavailable, `{"status":503}`)
	w.want(b.get("/portal/org"), http.StatusOK, "1,000 requests", "cannot be read at the moment", "UTC")
	w.want(b.get("/portal/org/usage"), http.StatusOK, `class="chart"`, "cannot be read at the moment")
	w.api.answer("GET /v1/orgs/acme/ratelimit/policies", http.StatusServiceUnavailable,
		`{"status":503,"detail":"no rows"}`)
	w.want(b.get("/portal/org"), http.StatusServiceUnavailable, "no rows")
}

func TestDenialsAreGroupedAndARequestSaysWhyItWasDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, "daily")
	b := w.signedIn(acmeSecret)
	a := w.want(b.get("/portal/org/denials"), http.StatusOK, "1,000 per day", ">12<", "rising", "falling", ">several<",
		"Counted together: gateways", `class="chart"`)
	w.missing(a, "would have admitted")
	w.want(b.get("/portal/org/denials?request_id=daily"), http.StatusOK, "daily: 1,000 per day",
		"would have admitted it: daily", "of user daily")
	w.want(b.get("/portal/org/denials?request_id=other"), http.StatusOK, "No denial of request <code>other</code>")
	for _, c := range clients {
		if !strings.Contains(a.text, "<summary>"+c.Language+"</summary>") {
			t.Errorf("there is no client in %s", c.Language)
		}
	}
}

// The specs build and run these clients against a server that denies.
func TestTheClientsAreThoseOfTheDocs(t *testing.T) {
	t.Parallel()
	var languages []string
	for _, c := range clients {
		languages = append(languages, c.Language)
		if !strings.Contains(c.Text, "etry") { // curl reads Retry-After by itself
			t.Errorf("the client in %s does not honour Retry-After", c.Language)
		}
		if c.Language != "Go" {
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "client.go", c.Text, parser.AllErrors); err != nil {
			t.Errorf("the client in Go: %v", err)
		}
	}
	if got := fmt.Sprint(languages); got != "[curl Go Python JavaScript]" {
		t.Errorf("there are clients in %s", got)
	}
}

func TestASecretIsInTheAnswerToTheWriteAloneAndNotInACookie(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, "ci")
	w.api.answer("POST /v1/orgs/acme/tokens", http.StatusCreated, `{"name":"ci","secret":"rl_hush"}`)
	w.api.answer("POST /v1/orgs/acme/tokens/ci/rotate", http.StatusOK, `{"name":"ci","secret":"rl_hush"}`)
	const made = `{"webhook":{"url":"u"},"secret":"rl_hush"}`
	w.api.answer("POST /v1/orgs/acme/ratelimit/webhooks", http.StatusCreated, made)
	w.api.answer("POST /v1/orgs/acme/ratelimit/webhooks/7/rotate", http.StatusOK, made)
	b := w.signedIn(acmeSecret)
	for path, form := range map[string]url.Values{
		"/portal/org/new/tokens":        {"name": {"ci"}, "expires_in": {"90d"}},
		"/portal/org/tokens/ci/rotate":  {"overlap": {"0s"}},
		"/portal/org/new/webhooks":      {"url": {"https://example.com/"}, "types": {orgEvents[0].Value}},
		"/portal/org/webhooks/7/rotate": {},
	} {
		a := w.want(b.post(path, form), http.StatusOK, "rl_hush", "shown once")
		if a.Header.Get("Cache-Control") != "no-store" || strings.Contains(fmt.Sprint(a.Header), "hush") {
			t.Errorf("%s: the headers are %v", path, a.Header)
		}
	}
	for _, path := range orgPages {
		if a := b.get(path); strings.Contains(a.text, "rl_hush") {
			t.Errorf("%s shows the secret again", path)
		}
	}
	if strings.Contains(w.log.String(), "rl_hush") {
		t.Error("the log has the secret")
	}
}

func TestAFormThatTheAPIDeniesKeepsWhatWasEntered(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, "ci")
	w.api.answer("POST /v1/orgs/acme/tokens", http.StatusUnprocessableEntity,
		`{"status":422,"detail":"invalid","errors":[{"location":"body.name","message":"must be short"}]}`)
	w.api.answer("POST /v1/orgs/acme/ratelimit/webhooks", http.StatusConflict, `{"status":409,"detail":"there are 10"}`)
	w.api.answer("POST /v1/orgs/acme/ratelimit/webhooks/7/rotate", http.StatusConflict,
		`{"status":409,"detail":"4 secrets"}`)
	b := w.signedIn(acmeSecret)
	w.want(b.post("/portal/org/new/tokens", url.Values{"name": {"too long"}, "expires_in": {"7d"}}),
		http.StatusUnprocessableEntity, "must be short", `value="too long"`, `aria-invalid="true"`, `value="7d" selected`)
	w.want(b.post("/portal/org/new/webhooks", url.Values{"url": {"https://a.example/"}, "types": {orgEvents[1].Value}}),
		http.StatusConflict, "there are 10", `value="https://a.example/"`, `value="`+orgEvents[1].Value+`" checked`)
	w.want(b.post("/portal/org/webhooks/7/rotate", nil), http.StatusConflict, "4 secrets")
}

func TestResourcesOfAnotherOrgAndUnknownActionsDoNotExist(t *testing.T) {
	t.Parallel()
	w := open(t)
	answersWith(w, "ci")
	w.api.answer("GET /v1/orgs/acme/ratelimit/webhooks/x", http.StatusUnprocessableEntity, `{"status":422}`)
	b := w.signedIn(acmeSecret)
	for _, path := range []string{"/portal/org/webhooks/8", "/portal/org/webhooks/x"} {
		w.want(b.get(path), http.StatusNotFound)
	}
	for _, path := range []string{
		"/portal/org/webhooks/8/test", "/portal/org/webhooks/8/delete", "/portal/org/webhooks/7/explode",
		"/portal/org/tokens/theirs/revoke", "/portal/org/tokens/theirs/rotate", "/portal/org/tokens/ci/explode",
	} {
		w.want(b.post(path, nil), http.StatusNotFound)
	}
}

func TestTheUsagePageSaysUntilWhenAQuotaLasts(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	answersWith(w, "daily")
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage/history", http.StatusOK, `{"from":"2026-11-22T11:00:00Z",
		"to":"2026-11-22T12:00:00Z","items":[{"at":"2026-11-22T11:00:00Z","endpoint":"daily","admitted":50}]}`)
	b := w.signedIn(acmeSecret)
	w.want(b.get("/portal/org/usage"), http.StatusOK, "used up</span> <time", "2026-11-22 14:00:00 UTC", ">in 2 h<")
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage/history", http.StatusOK, `{"from":"2026-11-22T11:00:00Z",
		"to":"2026-11-22T12:00:00Z","items":[{"at":"2026-11-22T11:00:00Z","endpoint":"daily","admitted":1}]}`)
	w.want(b.get("/portal/org/usage?span=30d"), http.StatusOK, "lasts", "until it resets", `aria-current="page">30 days`)
}

func TestAPeriodResetsByTheClocksOfItsTimeZone(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	answersWith(w, "monthly")
	w.api.answer("GET /v1/orgs/acme/ratelimit/policies", http.StatusOK, `{"limits":[{"policy":"monthly","scope":"tenant",
		"limit":20000,"burst":20000,"period":"month","time_zone":"Europe/Berlin","algorithm":"fixed_window",
		"mode":"enforce"}]}`)
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage", http.StatusOK, `{"items":[{"policy":"monthly","of":"the org",
		"scope":"tenant","limit":20000,"used":12345,"remaining":7655,"fraction":0.617,"period":"month",
		"time_zone":"Europe/Berlin","reset":"2026-11-30T23:00:00Z"}]}`)
	b := w.signedIn(acmeSecret)
	const reset = `resets <time datetime="2026-11-30T23:00:00Z" title="2026-12-01 00:00:00 Europe/Berlin" data-relative>in 8 d</time>`
	w.want(b.get("/portal/org"), http.StatusOK, `7,655 <small>left of 20,000 this month</small>`, reset)
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage/history", http.StatusOK, `{"from":"2026-11-22T11:00:00Z",
		"to":"2026-11-22T12:00:00Z","items":[{"at":"2026-11-22T11:00:00Z","admitted":30}]}`)
	w.want(b.get("/portal/org/usage"), http.StatusOK, "lasts", "until it "+strings.Replace(reset, "s <", "s, <", 1))
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage/history", http.StatusOK, `{"from":"2026-11-22T11:00:00Z",
		"to":"2026-11-22T12:00:00Z","items":[{"at":"2026-11-22T11:00:00Z","admitted":7655}]}`)
	w.want(b.get("/portal/org/usage"), http.StatusOK, ">in 59 min<", "2026-11-22 12:59:59 UTC")
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage", http.StatusOK, `{"items":[{"policy":"monthly","of":"the org",
		"scope":"tenant","limit":10,"max_duration":600,"used":10,"remaining":0,"fraction":1}]}`)
	w.want(b.get("/portal/org"), http.StatusOK, `0 <small>left of 10 at once</small>`)
	w.want(b.get("/portal/org/usage"), http.StatusOK, "Free as requests end.")
}

func TestALivePartOfATenantBeginsAsItsPageAndFollowsTheOrg(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	answersWith(w, "daily")
	b := w.signedIn(acmeSecret)
	var parts []*part
	for _, path := range []string{"/portal/org", "/portal/org/usage", "/portal/org/denials"} {
		page, live := w.want(b.get(path), http.StatusOK, "load again", " data-live "), b.watch(path)
		if rows := live.next(); !strings.Contains(page.text, rows) {
			t.Errorf("%s begins with\n%s\nnot as its page:\n%s", path, rows, page.text)
		}
		parts = append(parts, live)
	}
	answersWith(w, "other")
	for _, live := range parts {
		if rows := live.next(); !strings.Contains(rows, "other") {
			t.Errorf("%s goes on with\n%s", live.path, rows)
		}
	}
}

func TestThePagesOfATenantNameThePlanTheTokenInUseAndNoTimesThatArePast(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	answersWith(w, "ci")
	w.api.answer("GET /v1/orgs/acme/ratelimit/policies", http.StatusOK, `{"tier":"gold","tier_title":"Gold plan",
		"tier_price":"$9 a month","limits":[{"policy":"daily","scope":"tenant","limit":1000,"window_size":86400,
		"algorithm":"fixed_window","mode":"enforce"}]}`)
	w.api.answer("GET /v1/orgs/acme/ratelimit/usage", http.StatusOK, `{"items":[{"policy":"daily","of":"the org",
		"scope":"tenant","limit":1000,"used":14,"remaining":986,"fraction":0.014,"reset":"2026-11-23T00:00:00Z",
		"may_lease":true}]}`)
	w.api.answer("GET /v1/orgs/acme/ratelimit/webhooks/7/deliveries", http.StatusOK, `{"items":[
		{"id":"a","state":"waiting","due_at":"2026-11-22T11:59:00Z"},{"id":"b","state":"waiting",
		"due_at":"2026-11-22T12:05:00Z"}]}`)
	b := w.signedIn(acmeSecret)
	w.want(b.get("/portal/org"), http.StatusOK, `<div class="figure">Gold plan</div>`, "<p>$9 a month</p>", ">986 <small>",
		"Gateways take a small part ahead of need", ">lasts</span> until then, at the rate")
	a := w.want(b.get("/portal/org/webhooks/7"), http.StatusOK, "being sent", "next try <time", ">in 5 min<")
	w.missing(a, "2026-11-22T11:59:00Z")
	w.want(b.get("/portal/org/tokens"), http.StatusOK, "signed in with <code>acme-portal</code>, which operators made")
	w.tokens.set("own", api.Caller{Token: "acme/ci", Role: api.Tenant, Org: "acme"})
	a = w.want(w.signedIn("own").get("/portal/org/tokens"), http.StatusOK, ">signed in with it<", "this session ends too")
	w.missing(a, "which operators made")
	w.tokens.set("person", api.Caller{Token: "oidc:ci/ci", Role: api.Tenant, Org: "acme"})
	w.missing(w.signedIn("person").get("/portal/org/tokens"), "signed in with")
}

func TestTheUsageOfATenantSaysWhyLimitsHaveNoLine(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	answersWith(w, "daily")
	const why = "for each user, credential, address or endpoint has no line"
	w.missing(w.signedIn(acmeSecret).get("/portal/org/usage"), why)
	w.api.answer("GET /v1/orgs/acme/ratelimit/policies", http.StatusOK, `{"limits":[{"policy":"each","scope":"user",
		"limit":10,"window_size":60,"mode":"enforce"}]}`)
	w.want(w.signedIn(acmeSecret).get("/portal/org/usage"), http.StatusOK, why)
}

func TestAnOverrideIsShownWithItsNumbers(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]answers.OverrideInForce{
		"each limit × 1.5": {Kind: "multiplier", Target: "tenant", Factor: 1.5},
		"daily × 0.5 for one user at GET /a": {
			Kind: "multiplier", Target: "user", Factor: 0.5, Policy: "daily", Endpoint: "GET /a",
		},
		"daily 2,000": {Kind: "custom_limit", Target: "tenant", Policy: "daily", Limit: 2000},
		"daily 2,000 per 10 minutes, at most 50 at once": {
			Kind: "custom_limit", Target: "tenant", Policy: "daily", Limit: 2000, WindowSize: 600, Burst: 50,
		},
		"+100,000 monthly": {Kind: "topup", Target: "tenant", Policy: "monthly", Amount: 100_000},
		"No requests":      {Kind: "ban", Target: "tenant"},
	} {
		if got := overrideWords(o); got != want {
			t.Errorf("%+v is %q, want %q", o, got, want)
		}
	}
}
