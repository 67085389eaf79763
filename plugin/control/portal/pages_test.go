package portal

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// parameter matches a part of a pattern that stands for any segment.
var parameter = regexp.MustCompile(`\{[a-z]+\}`)

func TestEachRoleGetsThePagesThatAreForIt(t *testing.T) {
	w := open(t)
	signedIn := map[api.Role]*browser{
		api.Admin: w.signedIn(adminSecret), api.Viewer: w.signedIn(viewerSecret), api.Tenant: w.signedIn(acmeSecret),
	}
	for _, page := range pages() {
		method, _, _ := strings.Cut(page.Pattern, " ")
		path := parameter.ReplaceAllString(page.Path(), "globex")
		visit := func(b *browser) shown {
			if method == http.MethodGet {
				return b.get(path)
			}
			return b.post(path, nil)
		}
		if to := w.location(visit(w.browser())); !strings.HasPrefix(to, signInPath) {
			t.Errorf("%s without a session leads to %q", page.Pattern, to)
		}
		for role, b := range signedIn {
			before := len(w.api.requests())
			a := visit(b)
			denied := a.StatusCode == http.StatusForbidden
			if denied == slices.Contains(page.For, role) || a.StatusCode >= http.StatusInternalServerError {
				t.Errorf("%s as %s: %s\n%s", page.Pattern, role, a.Status, a.text)
			}
			calls := w.api.requests()[before:]
			if denied && len(calls) > 0 {
				t.Errorf("%s as %s is denied, after %v", page.Pattern, role, calls)
			}
			name := w.tokens.tokens[map[api.Role]string{
				api.Admin: adminSecret, api.Viewer: viewerSecret, api.Tenant: acmeSecret,
			}[role]].Token
			for _, call := range calls {
				if !strings.HasPrefix(call, name+" ") {
					t.Errorf("%s as %s calls the API as another: %s", page.Pattern, role, call)
				}
				if role == api.Tenant && !strings.Contains(call+"/", " /v1/orgs/acme/") && !strings.HasSuffix(call, ".json") {
					t.Errorf("%s of a tenant reads another org: %s", page.Pattern, call)
				}
			}
		}
	}
}

func TestTheTableOfPagesHasNoWriteForViewersAndNoOrgForTenants(t *testing.T) {
	for _, page := range pages() {
		method, path, ok := strings.Cut(page.Pattern, " ")
		if !ok || !strings.HasPrefix(path, home) || len(page.For) == 0 || page.Serve == nil {
			t.Errorf("%+v is not a page", page)
		}
		if slices.Contains(page.For, api.Tenant) && strings.Contains(path, "{org}") {
			t.Errorf("%s is for tenants, whose org is that of their session", page.Pattern)
		}
		if method != http.MethodGet && method != http.MethodPost {
			t.Errorf("%s: browsers send GET and POST only", page.Pattern)
		}
	}
}

func TestEachAnswerHasTheHeadersOfSecurity(t *testing.T) {
	w := open(t)
	b := w.signedIn(adminSecret)
	for _, path := range []string{home, signInPath, "/portal/nowhere", "/portal/sign-out", "/portal/assets/nothing"} {
		a := b.get(path)
		for name, want := range map[string]string{
			"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "same-origin", "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			if got := a.Header.Values(name); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		for _, inline := range []string{" style=", "<style", " onclick=", " onload=", "javascript:", "<script>"} {
			if strings.Contains(a.text, inline) {
				t.Errorf("%s has %q, which the policy forbids", path, inline)
			}
		}
	}
}

func TestNothingInAnAddressBecomesMarkup(t *testing.T) {
	w := open(t)
	const evil = `"><script>alert(1)</script>`
	b := w.signedIn(adminSecret)
	for _, path := range []string{
		"/portal/" + url.PathEscape(evil), "/portal/?q=" + url.QueryEscape(evil),
		"/portal/assets/" + url.PathEscape(evil),
	} {
		if a := b.get(path); strings.Contains(a.text, "<script>alert") {
			t.Errorf("%s\n%s", path, a.text)
		}
	}
	a := w.browser().get(signInPath + "?next=" + url.QueryEscape(home+evil))
	if strings.Contains(a.text, "<script>alert") {
		t.Errorf("the sign-in page has\n%s", a.text)
	}
}

func TestUnknownPathsAndMethodsGetAPage(t *testing.T) {
	w := open(t)
	for _, b := range []*browser{w.browser(), w.signedIn(adminSecret)} {
		for _, path := range []string{"/portal/nowhere", "/portal/../v1/orgs", "/portal//nowhere"} {
			w.want(b.get(path), http.StatusNotFound, "There is nothing at this address")
		}
		a := w.want(b.get("/portal/sign-out"), http.StatusMethodNotAllowed, "does not accept")
		if a.Header.Get("Allow") != "POST" {
			t.Errorf("Allow is %q", a.Header.Get("Allow"))
		}
		w.want(b.do("DELETE", home, "", "Sec-Fetch-Site", "same-origin"), http.StatusMethodNotAllowed)
	}
	b := w.signedIn(adminSecret)
	if a := w.want(b.do("HEAD", home, ""), http.StatusOK); a.text != "" || a.ContentLength <= 0 {
		t.Errorf("the answer to HEAD has %d bytes and %q", a.ContentLength, a.text)
	}
}

func TestAnAssetIsKeptForeverUnderTheHashOfItsContent(t *testing.T) {
	w := open(t)
	b := w.browser()
	page := b.get(signInPath).text
	for _, file := range []string{"style", "app", "icon"} {
		path := regexp.MustCompile(`/portal/assets/[0-9a-f]{12}/` + file + `\.[a-z]+`).FindString(page)
		if path == "" {
			t.Fatalf("the page names no asset %s:\n%s", file, page)
		}
		a := w.want(b.get(path), http.StatusOK)
		if got := a.Header.Get("Cache-Control"); !strings.Contains(got, "immutable") {
			t.Errorf("%s: Cache-Control is %q", path, got)
		}
	}
	w.want(b.get("/portal/assets/000000000000/style.css"), http.StatusNotFound)
	w.want(b.get("/portal/assets/style.css"), http.StatusNotFound)
}

func TestAFormIsBoundedAndAForm(t *testing.T) {
	w := open(t)
	b := w.browser()
	w.want(b.post(signInPath, url.Values{"token": {strings.Repeat("x", maxForm)}}), http.StatusRequestEntityTooLarge)
	const site = "Sec-Fetch-Site"
	w.want(b.do("POST", signInPath, `{"token":"x"}`, site, "same-origin", "Content-Type", "application/json"),
		http.StatusUnsupportedMediaType)
	w.want(b.do("POST", signInPath, "token=%zz", site, "same-origin", "Content-Type", "application/x-www-form-urlencoded"),
		http.StatusBadRequest)
	w.want(w.signedIn(adminSecret).get("/portal/?a=%zz"), http.StatusBadRequest)
}

func TestTheMetricsAreThoseOfTheDocs(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	newMetrics(registry)
	promtest.CheckGathered(t, "testdata/metrics.golden", registry)
}
