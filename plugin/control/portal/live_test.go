package portal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// ticking adds a topic to a portal, which counts its polls.
func ticking(p *Portal, name string, to audience, poll func(*visit, int64) (any, error)) *atomic.Int64 {
	polls := new(atomic.Int64)
	if p.views.templates.Lookup("test_rows") == nil {
		if _, err := p.views.templates.New("test_rows").Parse(`<p>{{.}}</p>`); err != nil {
			panic(err)
		}
	}
	p.hub.topics[name] = &topic{Name: name, For: to, Template: "test_rows", Poll: func(v *visit) (any, error) {
		return poll(v, polls.Add(1))
	}}
	return polls
}

// feeds returns how many feeds have viewers.
func (w *world) feeds() int {
	w.portal.hub.mu.Lock()
	defer w.portal.hub.mu.Unlock()
	return len(w.portal.hub.feeds)
}

// events reads the events of a live part.
type events struct {
	testing.TB
	lines *bufio.Scanner
	end   func()
}

// watch opens a live part.
func (b *browser) watch(path string) *events {
	b.Helper()
	ctx, end := context.WithCancel(b.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", b.server.URL+livePath+path, http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	a, err := b.client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { end(); a.Body.Close() })
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "text/event-stream" {
		b.Fatalf("%s: %s %v", path, a.Status, a.Header)
	}
	return &events{b.TB, bufio.NewScanner(a.Body), end}
}

// next returns the next event as its name and data, or "" at the end.
func (e *events) next() string {
	var event []string
	for e.lines.Scan() {
		text := e.lines.Text()
		switch {
		case text == "" && len(event) > 0:
			return strings.Join(event, "|")
		case strings.HasPrefix(text, "event: "), strings.HasPrefix(text, "data: "):
			_, value, _ := strings.Cut(text, ": ")
			event = append(event, value)
		}
	}
	return ""
}

func TestViewersShareOnePollOfATopic(t *testing.T) {
	w := open(t)
	polls := ticking(w.portal, "count", operators, func(_ *visit, n int64) (any, error) { return "<b>", nil })
	b, v := w.signedIn(adminSecret), w.signedIn(viewerSecret)
	for _, viewer := range []*events{b.watch("count"), b.watch("count"), v.watch("count?")} {
		if got := viewer.next(); got != "rows|<p>&lt;b&gt;</p>" {
			t.Errorf("the event is %q", got)
		}
	}
	if n := w.feeds(); n != 1 || testutil.ToFloat64(w.portal.metrics.viewers) != 3 {
		t.Errorf("%d feeds and %v viewers, want 3 of one", n, testutil.ToFloat64(w.portal.metrics.viewers))
	}
	if n := polls.Load(); n < 1 || n > 60 {
		t.Errorf("%d polls", n)
	}
}

func TestALivePartFollowsTheStateAndSendsNothingForTheSame(t *testing.T) {
	t.Parallel()
	w := open(t)
	var state atomic.Pointer[string]
	set := func(text string) { state.Store(&text) }
	set("a\nb")
	ticking(w.portal, "state", tenants, func(*visit, int64) (any, error) {
		switch text := *state.Load(); text {
		case "fails":
			return nil, errors.New("no connection: hunter2")
		case "panics":
			panic("a bug")
		default:
			return text, nil
		}
	})
	e := w.signedIn(acmeSecret).watch("state")
	for _, c := range []struct{ want, next string }{
		{"rows|<p>a|b</p>", "fails"}, {"stale|", "c"}, {"rows|<p>c</p>", "panics"}, {"stale|", ""}, {"rows|<p></p>", ""},
	} {
		if got := e.next(); got != c.want {
			t.Fatalf("the event is %q, want %q", got, c.want)
		}
		set(c.next)
	}
}

func TestALivePartEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(*Portal, *ring){
			"the token is revoked": func(_ *Portal, r *ring) { r.set(adminSecret, Caller{}) },
			"the process ends":     func(p *Portal, _ *ring) { p.Close() },
			"the idle timeout":     func(*Portal, *ring) {},
		} {
			tokens := newRing()
			p, err := New(Options{API: &scripted{}, Tokens: tokens, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			ticking(p, "count", operators, func(_ *visit, n int64) (any, error) { return n, nil })
			r, w := signedInRequest(t, p, adminSecret, livePath+"count"), newStream()
			served := make(chan struct{})
			go func() { p.ServeHTTP(w, r); close(served) }()
			time.Sleep(20 * time.Second)
			select {
			case <-served:
				t.Fatalf("%s: the live part ended before", name)
			default:
			}
			end(p, tokens)
			<-served // synctest reports a deadlock otherwise
			if n := w.events.Load(); n < 20 {
				t.Errorf("%s: %d events in 20 seconds", name, n)
			}
		}
	})
}

func TestAViewerThatNeverReadsIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{API: &scripted{}, Tokens: newRing(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ticking(p, "count", operators, func(_ *visit, n int64) (any, error) { return n, nil })
		w := newStream()
		w.full = 3
		served := make(chan any)
		go func() {
			defer func() { served <- recover() }()
			p.ServeHTTP(w, signedInRequest(t, p, adminSecret, livePath+"count"))
		}()
		start := time.Now()
		if failure := <-served; failure != http.ErrAbortHandler {
			t.Errorf("%v, want the connection closed", failure)
		}
		if took := time.Since(start); took > writeTimeout+10*pollTime {
			t.Errorf("it was dropped after %s", took)
		}
		if n := testutil.ToFloat64(p.metrics.dropped.WithLabelValues(droppedSlow)); n != 1 || p.hub.total != 0 {
			t.Errorf("%v dropped, %d viewers are left", n, p.hub.total)
		}
	})
}

func TestTheNumberOfViewersIsBounded(t *testing.T) {
	w := open(t)
	ticking(w.portal, "count", operators, func(*visit, int64) (any, error) { return "", nil })
	ann := Caller{Name: "ann", Role: RoleAdmin}
	var leave []func()
	for i := range maxViewersEach {
		f, end := w.portal.hub.join(w.portal.hub.topics["count"], ann, fmt.Sprint("q=", i%maxFeedsEach))
		if f == nil {
			t.Fatalf("viewer %d is denied", i)
		}
		leave = append(leave, end)
	}
	a := w.signedIn(adminSecret).get(livePath + "count")
	if w.want(a, http.StatusServiceUnavailable); a.Header.Get("Retry-After") == "" {
		t.Errorf("the headers are %v", a.Header)
	}
	w.signedIn(viewerSecret).watch("count")
	for _, end := range leave {
		end()
	}
	w.signedIn(adminSecret).watch("count")
	if n := w.feeds(); n != 1 {
		t.Errorf("%d feeds are left, want one", n)
	}
}

func TestOneWhoOpensManyDifferentLivePartsHasAFewPolled(t *testing.T) {
	h := open(t).portal.hub
	count := &topic{Name: "count", For: everyone}
	ann, bob := Caller{Name: "ann", Role: RoleAdmin}, Caller{Name: "bob", Role: RoleViewer}
	var leave []func()
	for i := range 2 * maxFeedsEach {
		f, end := h.join(count, ann, fmt.Sprint("q=", i))
		if (f != nil) != (i < maxFeedsEach) {
			t.Fatalf("feed %d is opened: %v", i, f != nil)
		}
		if f != nil {
			leave = append(leave, end)
		}
	}
	f, end := h.join(count, ann, "q=0")
	if f == nil {
		t.Fatal("a second viewer of a feed is denied")
	}
	leave = append(leave, end)
	if f, end = h.join(count, bob, "q=other"); f == nil || f.caller.Name != "portal:bob" {
		t.Fatalf("another operator's feed is %+v", f)
	}
	shared, stay := h.join(count, bob, "q=1")
	for _, end := range append(leave, end) {
		end()
	}
	if len(h.feeds) != 1 || shared.of.feeds != 1 || len(h.each) != 2 {
		t.Errorf("%d feeds are left, of %+v, and %d have places; want the shared one", len(h.feeds), shared.of, len(h.each))
	}
	stay()
	if len(h.feeds) != 0 || len(h.each) != 0 || h.total != 0 {
		t.Errorf("%+v is left, and %d viewers", h.each, h.total)
	}
}

func TestALivePartIsForItsRolesOnly(t *testing.T) {
	w := open(t)
	ticking(w.portal, "count", operators, func(*visit, int64) (any, error) { return "", nil })
	w.want(w.browser().get(livePath+"count"), http.StatusUnauthorized)
	w.want(w.signedIn(acmeSecret).get(livePath+"count"), http.StatusForbidden)
	w.want(w.signedIn(viewerSecret).get(livePath+"other"), http.StatusNotFound)
	w.want(w.signedIn(viewerSecret).get(livePath+"count?%zz"), http.StatusNotFound)
	w.want(w.signedIn(viewerSecret).do("HEAD", livePath+"count", ""), http.StatusOK)
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

// stream is a connection whose client reads events, or only the first writes.
type stream struct {
	header   http.Header
	full     int // writes until the client reads no more; 0: it always reads
	writes   int
	deadline time.Time
	events   atomic.Int64
}

func newStream() *stream { return &stream{header: http.Header{}} }

func (s *stream) Header() http.Header                { return s.header }
func (s *stream) WriteHeader(int)                    {}
func (s *stream) Flush()                             {}
func (s *stream) SetReadDeadline(time.Time) error    { return nil }
func (s *stream) SetWriteDeadline(t time.Time) error { s.deadline = t; return nil }

func (s *stream) Write(b []byte) (int, error) {
	if s.writes++; s.full > 0 && s.writes > s.full {
		time.Sleep(time.Until(s.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	if strings.HasPrefix(string(b), "event:") {
		s.events.Add(1)
	}
	return len(b), nil
}

func TestATopicIsPolledOnceASecondAsAViewerOrAsTheTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{API: &scripted{}, Tokens: newRing(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var callers []Caller
		ticking(p, "count", everyone, func(v *visit, _ int64) (any, error) {
			callers = append(callers, v.caller)
			return v.r.URL.Query().Get("q"), nil
		})
		f, leave := p.hub.join(p.hub.topics["count"], Caller{Name: "ann", Role: RoleAdmin}, "q=a")
		defer leave()
		for range 20 {
			if event, _ := f.latest(t.Context(), p); !strings.Contains(string(event), "<p>a</p>") {
				t.Fatalf("the event is %s", event)
			}
			time.Sleep(pollTime / 2)
		}
		if len(callers) != 10 || callers[0] != (Caller{Name: "portal:ann", Role: RoleViewer, Poll: true}) {
			t.Errorf("%d polls in ten seconds, as %+v", len(callers), callers[0])
		}
		callers = nil
		f, leave = p.hub.join(p.hub.topics["count"], Caller{Name: "acme-portal", Role: RoleTenant, Org: "acme"}, "")
		defer leave()
		f.latest(t.Context(), p)
		if len(callers) != 1 || callers[0].Role != RoleTenant || callers[0].Org != "acme" {
			t.Errorf("the poll of a tenant is as %+v", callers)
		}
	})
}

func TestATopicMayBePolledLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{API: &scripted{}, Tokens: newRing(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		polls := ticking(p, "count", tenants, func(_ *visit, n int64) (any, error) { return n, nil })
		p.hub.topics["count"].Every = 5 * time.Second
		f, leave := p.hub.join(p.hub.topics["count"], Caller{Name: "acme-portal", Role: RoleTenant, Org: "acme"}, "")
		defer leave()
		for range 20 {
			f.latest(t.Context(), p)
			time.Sleep(pollTime)
		}
		if n := polls.Load(); n != 4 {
			t.Errorf("%d polls in twenty seconds, want one each five", n)
		}
	})
}

func TestTenantsLeaveRoomForOperators(t *testing.T) {
	w := open(t)
	ticking(w.portal, "count", everyone, func(*visit, int64) (any, error) { return "", nil })
	join := func(c Caller) bool {
		f, _ := w.portal.hub.join(w.portal.hub.topics["count"], c, "")
		return f != nil
	}
	for i := range maxTenantViewers {
		if org := fmt.Sprint("org-", i%10); !join(Caller{Name: "t", Role: RoleTenant, Org: org}) {
			t.Fatalf("viewer %d is denied", i)
		}
	}
	if join(Caller{Name: "t", Role: RoleTenant, Org: "acme"}) {
		t.Error("tenants take the room of operators")
	}
	for i := range maxViewersEach {
		if !join(Caller{Name: "ann", Role: RoleAdmin}) {
			t.Fatalf("viewer %d of an operator is denied", i)
		}
	}
}

func TestAFaultOfAViewersQueryIsNotLogged(t *testing.T) {
	w := open(t)
	if got := w.signedIn(viewerSecret).watch("reach?version=x").next(); got != "stale|" {
		t.Errorf("the event is %q", got)
	}
	if log := w.log.String(); strings.Contains(log, "polling a live part") {
		t.Errorf("a viewer fills the log:\n%s", log)
	}
}
