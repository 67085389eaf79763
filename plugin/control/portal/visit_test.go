package portal

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

// visiting adds a page to a portal, for admins.
func (w *world) visiting(pattern string, serve func(*visit) error) {
	p := page{Pattern: pattern, For: admins, Serve: serve}
	w.portal.mux.HandleFunc(pattern, func(a http.ResponseWriter, r *http.Request) { w.portal.servePage(a, r, &p) })
}

// define adds a template.
func (w *world) define(name, text string) {
	w.Helper()
	if _, err := w.portal.templates.New(name).Parse(text); err != nil {
		w.Fatal(err)
	}
}

func TestAPageReadsAndWritesAsItsCaller(t *testing.T) {
	w := open(t)
	w.api.answer("GET /v1/things", http.StatusOK, `{"name":"<b>acme</b>","extra":1}`)
	w.api.answer("PUT /v1/things", http.StatusNoContent, "")
	w.define("test.html", "<h1>{{.Name}}</h1>")
	w.visiting("GET /portal/test", func(v *visit) error {
		var thing struct{ Name string }
		if err := v.get("/v1/things", url.Values{"q": {"a b"}}, &thing); err != nil {
			return err
		}
		return v.render("test", "Test & try", thing)
	})
	w.visiting("POST /portal/test", func(v *visit) error {
		body := map[string]string{"name": v.r.PostForm.Get("name")}
		if err := v.send("PUT", "/v1/things", body, nil, "If-Match", `"1"`); err != nil {
			return err
		}
		return v.redirect("/portal/test", notice{Text: "<script>alert(1)</script> is changed."})
	})
	b := w.signedIn(adminSecret)
	w.want(b.get("/portal/test"), http.StatusOK, "<h1>&lt;b&gt;acme&lt;/b&gt;</h1>", "<title>Test &amp; try")
	if to := w.location(b.post("/portal/test", url.Values{"name": {"x"}})); to != "/portal/test" {
		t.Errorf("the write leads to %q", to)
	}
	w.want(b.get("/portal/test"), http.StatusOK, `role="status">&lt;script&gt;alert(1)&lt;/script&gt; is changed.`)
	if calls := w.api.requests(); len(calls) != 3 || calls[0] != "ann GET /v1/things?q=a+b" ||
		calls[1] != "ann PUT /v1/things" {
		t.Errorf("the requests are %q", calls)
	}
}

func TestAProblemOfTheAPIBecomesAPageWithItsStatus(t *testing.T) {
	w := open(t)
	for path, c := range map[string]struct {
		status       int
		body         string
		shown, never string
	}{
		"missing": {404, `{"status":404,"title":"Not Found","detail":"no <i>x</i>"}`, "no &lt;i&gt;x&lt;/i&gt;", "<i>x"},
		"faulty":  {422, `{"errors":[{"location":"body.limit","message":"must be <b>","value":"x"}]}`, "must be &lt;b&gt;", "<b>"},
		"away":    {503, `{"detail":"the database query failed"}`, "the database query failed", "hunter2"},
		"strange": {500, `hunter2`, "unexpected way", "hunter2"},
	} {
		w.api.answer("GET /v1/"+path, c.status, c.body)
		w.visiting("GET /portal/test/"+path, func(v *visit) error { return v.get("/v1/"+path, nil, nil) })
		a := w.want(w.signedIn(adminSecret).get("/portal/test/"+path), c.status, c.shown, "Back to the first page")
		if strings.Contains(a.text, c.never) {
			t.Errorf("%s\n%s", path, a.text)
		}
	}
	w.visiting("GET /portal/test/fails", func(*visit) error { return errors.New("hunter2") })
	a := w.want(w.signedIn(adminSecret).get("/portal/test/fails"), http.StatusInternalServerError)
	if strings.Contains(a.text, "hunter2") || !strings.Contains(w.log.String(), "hunter2") {
		t.Errorf("the error belongs into the log only:\n%s", a.text)
	}
}

func TestPeopleCanSignInByOpenIDConnect(t *testing.T) {
	w := open(t, func(o *Options) {
		o.Provider = oidc.New(oidc.Options{Settings: oidc.Settings{Issuer: "http://127.0.0.1:1"}, Now: time.Now, Log: o.Log})
	})
	b := w.browser()
	w.want(b.get(signInPath), http.StatusOK, "Sign in with OpenID Connect",
		`href="/portal/oidc/start?next=%2fportal%2f"`, `href="/portal/oidc/start?next=%2fportal%2f&amp;switch"`)
	w.want(b.get("/portal/oidc/start"), http.StatusServiceUnavailable, "not available at the moment", `id="token"`)
	w.want(b.get("/portal/oidc/callback?state=x"), http.StatusBadRequest, "was not started in this browser")
}

func TestASessionOfAnotherProcessWithTheSameKeyIsValid(t *testing.T) {
	key := []byte(strings.Repeat("k", session.KeySize))
	one, two := open(t, func(o *Options) { o.Key = key }), open(t, func(o *Options) { o.Key = key })
	other := open(t)
	r := signedInRequest(t, one.portal, adminSecret, home)
	for _, c := range []struct {
		*world
		want int
	}{{one, http.StatusOK}, {two, http.StatusOK}, {other, http.StatusSeeOther}} {
		a := httptest.NewRecorder()
		if c.portal.ServeHTTP(a, r); a.Code != c.want {
			t.Errorf("%d, want %d", a.Code, c.want)
		}
	}
}
