package portal

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// following adds a page with a live part to a portal.
func (w *world) following(to []api.Role, read func(*visit) (string, error)) {
	w.Helper()
	w.define("test.html", `<h1>Test</h1>{{template "test_live" .}}`)
	w.define("test_live", `<p>{{.}}</p>`)
	p := page{Pattern: "GET /portal/test", For: to, Live: true, Serve: pageOf("test", "Test", read)}
	w.portal.mux.HandleFunc(p.Pattern, func(a http.ResponseWriter, r *http.Request) { w.portal.servePage(a, r, &p) })
}

// part is a live part that a page follows.
type part struct {
	*browser
	path, etag string
}

// watch opens the live part of a page.
func (b *browser) watch(path string) *part { return &part{browser: b, path: path} }

// read fetches the part once, as the script of pages does.
func (p *part) read() shown {
	p.Helper()
	a := p.do("GET", p.path, "", "If-None-Match", p.etag, liveHeader, "1")
	if a.StatusCode == http.StatusOK {
		p.etag = a.Header.Get("ETag")
	}
	return a
}

// next returns the next content of the part.
func (p *part) next() string {
	p.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		switch a := p.read(); a.StatusCode {
		case http.StatusOK:
			return a.text
		case http.StatusNotModified:
		default:
			return a.Status
		}
	}
	p.Fatalf("%s has not changed for a minute", p.path)
	return ""
}

func TestALivePartFollowsTheStateAndSendsNothingForTheSame(t *testing.T) {
	w := open(t)
	state := "a\n<b>"
	var as api.Caller
	w.following(everyone, func(v *visit) (string, error) {
		switch as = v.caller; state {
		case "fails":
			return "", errors.New("no connection: hunter2")
		case "panics":
			panic("a bug: hunter2")
		}
		return state, nil
	})
	e := w.signedIn(acmeSecret).watch("/portal/test")
	for _, c := range []struct {
		state, want string
		status      int
	}{
		{"a\n<b>", "<p>a\n&lt;b&gt;</p>", http.StatusOK},
		{"a\n<b>", "", http.StatusNotModified},
		{"fails", "", http.StatusInternalServerError},
		{"a\n<b>", "", http.StatusNotModified},
		{"c", "<p>c</p>", http.StatusOK},
		{"panics", "", http.StatusInternalServerError},
		{"", "<p></p>", http.StatusOK},
	} {
		state = c.state
		a := e.read()
		isRows := a.StatusCode < http.StatusBadRequest
		if a.StatusCode != c.status || isRows && a.text != c.want || strings.Contains(a.text, "hunter2") {
			t.Errorf("%q is %s %q, want %d %q", c.state, a.Status, a.text, c.status, c.want)
		}
		if isRows && a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("the headers are %v", a.Header)
		}
	}
	if want := (api.Caller{Token: "acme-portal", Role: api.Tenant, Org: "acme", Routine: true}); as != want {
		t.Errorf("the part was read as %+v, want %+v", as, want)
	}
}

// The API logs what a live part reads as details only.
func TestAPageWithoutALivePartIsReadAsAnyOther(t *testing.T) {
	w := open(t)
	w.visiting("GET /portal/plain", func(v *visit) error {
		if v.caller.Routine {
			t.Error("the page is read as a live part")
		}
		return v.render("error", "Plain", &problem{})
	})
	w.want(w.signedIn(adminSecret).do("GET", "/portal/plain", "", liveHeader, "1"), http.StatusOK, "<title>Plain")
}

func TestTheOverviewIsNotReplacedByAnEmptyOneWhileTheDatabaseIsAway(t *testing.T) {
	w := open(t)
	b := w.signedIn(viewerSecret)
	w.api.answer("GET /v1/ratelimit/fleet", http.StatusOK, `{"nodes":[],"decision_p99_ms":1234.5}`)
	w.want(b.get(home), http.StatusOK, ">1,235<small> ms")
	w.api.answer("GET /v1/ratelimit/fleet", http.StatusServiceUnavailable, `{"status":503,"detail":"the query failed"}`)
	w.want(b.watch(home).read(), http.StatusServiceUnavailable)
	w.want(b.get(home), http.StatusServiceUnavailable, "the query failed")
}

func TestALivePartEndsWithItsSessionAndDoesNotProlongIt(t *testing.T) {
	for name, c := range map[string]struct {
		secret string
		end    func(*ring, *time.Time)
		want   int
	}{
		"the token is revoked": {
			adminSecret, func(r *ring, _ *time.Time) { r.set(adminSecret, api.Caller{}) }, http.StatusUnauthorized,
		},
		"the token cannot be checked": {
			awaySecret, func(r *ring, _ *time.Time) { r.set(awaySecret, api.Caller{}) }, http.StatusServiceUnavailable,
		},
		"the idle timeout": {
			adminSecret, func(_ *ring, now *time.Time) { *now = now.Add(11 * time.Minute) }, http.StatusUnauthorized,
		},
		"within the idle timeout": {adminSecret, func(_ *ring, now *time.Time) { *now = now.Add(9 * time.Minute) }, http.StatusOK},
	} {
		now := time.Now()
		w := open(t, func(o *Options) { o.Now, o.Idle = func() time.Time { return now }, 20*time.Minute })
		w.tokens.set(awaySecret, api.Caller{Token: "ann", Role: api.Admin})
		w.following(operators, func(*visit) (string, error) { return name, nil })
		r := signedInRequest(t, w.portal, c.secret, "/portal/test")
		r.Header.Set(liveHeader, "1")
		now = now.Add(10 * time.Minute)
		for i, want := range []int{http.StatusOK, c.want} {
			a := httptest.NewRecorder()
			if w.portal.ServeHTTP(a, r); a.Code != want || len(a.Result().Cookies()) > 0 {
				t.Errorf("%s: answer %d has the status %d, want %d, and cookies %v", name, i, a.Code, want, a.Result().Cookies())
			}
			c.end(w.tokens, &now)
		}
	}
}

// signedInRequest returns a request with the session of a token.
func signedInRequest(t *testing.T, p *Portal, secret, path string) *http.Request {
	t.Helper()
	request := func(method, path, body string) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
		r.RemoteAddr = "127.0.0.1:4711"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		return r
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, request("POST", signInPath, "token="+secret))
	r := request("GET", path, "")
	for _, cookie := range w.Result().Cookies() {
		r.AddCookie(cookie)
	}
	return r
}
