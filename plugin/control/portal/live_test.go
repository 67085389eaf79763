package portal

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

// following adds a live part to a portal.
func following(p *Portal, name string, to audience, read func(*visit) (string, error)) {
	if p.views.templates.Lookup("test_rows") == nil {
		if _, err := p.views.templates.New("test_rows").Parse(`<p>{{.}}</p>`); err != nil {
			panic(err)
		}
	}
	p.topics[name] = live(name, to, "test_rows", read)
}

// part is a live part that a page follows.
type part struct {
	*browser
	path, etag string
}

// watch opens a live part.
func (b *browser) watch(path string) *part { return &part{browser: b, path: livePath + path} }

// read fetches the part once, as the script of pages does.
func (p *part) read() shown {
	p.Helper()
	a := p.do("GET", p.path, "", "If-None-Match", p.etag)
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
	following(w.portal, "state", everyone, func(*visit) (string, error) {
		switch state {
		case "fails":
			return "", errors.New("no connection: hunter2")
		case "panics":
			panic("a bug: hunter2")
		}
		return state, nil
	})
	e := w.signedIn(acmeSecret).watch("state")
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
}

func TestALivePartEndsWithItsSessionAndDoesNotProlongIt(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*ring, *time.Time)
		want int
	}{
		"the token is revoked":    {func(r *ring, _ *time.Time) { r.set(adminSecret, Caller{}) }, http.StatusUnauthorized},
		"the idle timeout":        {func(_ *ring, now *time.Time) { *now = now.Add(11 * time.Minute) }, http.StatusUnauthorized},
		"within the idle timeout": {func(_ *ring, now *time.Time) { *now = now.Add(9 * time.Minute) }, http.StatusOK},
	} {
		now := time.Now()
		w := open(t, func(o *Options) { o.Now, o.Idle = func() time.Time { return now }, 20*time.Minute })
		following(w.portal, "count", operators, func(*visit) (string, error) { return name, nil })
		r := signedInRequest(t, w.portal, adminSecret, livePath+"count")
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

func TestALivePartOfATokenThatCannotBeCheckedGoesOn(t *testing.T) {
	w := open(t)
	a, r := httptest.NewRecorder(), signedInRequest(t, w.portal, adminSecret, livePath+"fleet")
	require.NoError(t, w.portal.sessions.Start(a, r, session.Session{Secret: awaySecret}, time.Time{}))
	r.Header.Set("Cookie", a.Result().Cookies()[0].String())
	if w.portal.ServeHTTP(a, r); a.Code != http.StatusServiceUnavailable {
		t.Errorf("the status is %d, want 503: 401 would end the part", a.Code)
	}
}

func TestALivePartIsForItsRolesOnly(t *testing.T) {
	w := open(t)
	following(w.portal, "count", operators, func(*visit) (string, error) { return "", nil })
	w.want(w.browser().get(livePath+"count"), http.StatusUnauthorized)
	w.want(w.signedIn(acmeSecret).get(livePath+"count"), http.StatusForbidden)
	w.want(w.signedIn(viewerSecret).get(livePath+"other"), http.StatusNotFound)
	w.want(w.signedIn(viewerSecret).get(livePath+"count?%zz"), http.StatusBadRequest)
	w.want(w.signedIn(viewerSecret).do("HEAD", livePath+"count", ""), http.StatusOK)
}

func TestALivePartReadsAsItsViewerAndLeavesNoTraceInTheLog(t *testing.T) {
	w := open(t)
	var as Caller
	following(w.portal, "count", everyone, func(v *visit) (string, error) { as = v.caller; return "", nil })
	w.want(w.signedIn(acmeSecret).get(livePath+"count"), http.StatusOK)
	if want := (Caller{Name: "acme-portal", Role: RoleTenant, Org: "acme", Poll: true}); as != want {
		t.Errorf("the part was read as %+v, want %+v", as, want)
	}
	before := w.log.String()
	w.want(w.signedIn(viewerSecret).get(livePath+"reach?version=x"), http.StatusBadRequest)
	if after := w.log.String(); strings.Contains(after[len(before):], "failed") {
		t.Errorf("a viewer fills the log:\n%s", after)
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
