package session

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is a process with sessions, and its clock.
type world struct {
	*testing.T
	now time.Time
	*Sessions
}

func newWorld(t *testing.T, key byte) *world {
	t.Helper()
	w := &world{T: t, now: time.Unix(1_900_000_000, 0)}
	jar, err := NewJar(bytes.Repeat([]byte{key}, KeySize), func() time.Time { return w.now })
	require.NoError(t, err)
	w.Sessions = New(jar, 0)
	return w
}

// request returns a request over TLS with cookies.
func request(cookies ...*http.Cookie) *http.Request {
	r := httptest.NewRequest("GET", "https://portal.example/", http.NoBody)
	r.TLS = &tls.ConnectionState{}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	return r
}

// start returns the cookie of a new session.
func (w *world) start(r *http.Request, who Session) *http.Cookie {
	w.Helper()
	a := httptest.NewRecorder()
	require.NoError(w, w.Start(a, r, who))
	return a.Result().Cookies()[0]
}

// find returns the session of cookies, and the cookie that was issued again.
func (w *world) find(cookies ...*http.Cookie) (Session, *http.Cookie, bool) {
	w.Helper()
	a := httptest.NewRecorder()
	who, ok := w.Resume(a, request(cookies...))
	if again := a.Result().Cookies(); len(again) > 0 {
		return who, again[0], ok
	}
	return who, nil, ok
}

// changed returns a cookie with another value.
func changed(c *http.Cookie, value string) *http.Cookie {
	other := *c
	other.Value = value
	return &other
}

func TestOnlyACookieThatTheProcessSealedIsASession(t *testing.T) {
	w := newWorld(t, 1)
	good := w.start(request(), Session{Secret: "the secret"})
	if who, _, ok := w.find(good); !ok || who.Secret != "the secret" {
		t.Fatalf("%+v, %v", who, ok)
	}
	if strings.Contains(good.Value, "secret") {
		t.Errorf("the cookie shows its content: %s", good.Value)
	}
	notice := httptest.NewRecorder()
	other := Session{Secret: "forged", Start: w.now.Unix()}
	require.NoError(t, w.jar.Put(notice, request(), "ratelimit_notice", other, time.Hour))
	forged := map[string][]*http.Cookie{
		"none":                      nil,
		"empty":                     {changed(good, "")},
		"a name":                    {changed(good, "ann")},
		"JSON":                      {changed(good, `{"e":99999999999,"v":{"s":"the secret"}}`)},
		"truncated":                 {changed(good, good.Value[:len(good.Value)-1])},
		"half":                      {changed(good, good.Value[:len(good.Value)/2])},
		"too short for a nonce":     {changed(good, good.Value[:4])},
		"longer":                    {changed(good, good.Value+"AAAA")},
		"oversized":                 {changed(good, good.Value+strings.Repeat("A", 12<<10))},
		"of another key":            {newWorld(t, 2).start(request(), Session{Secret: "the secret"})},
		"of another name":           {changed(good, notice.Result().Cookies()[0].Value)},
		"two":                       {good, good},
		"two, of which one is good": {changed(good, "x"), good},
		"without the prefix":        {{Name: sessionCookie, Value: good.Value}},
	}
	for i := range len(good.Value) {
		flipped := []byte(good.Value)
		flipped[i] = map[bool]byte{true: 'B', false: 'A'}[flipped[i] == 'A']
		if i < len(good.Value)-1 { // the last letter has bits that base64 does not decode
			forged[fmt.Sprint("letter ", i, " changed")] = []*http.Cookie{changed(good, string(flipped))}
		}
	}
	for name, cookies := range forged {
		if who, _, ok := w.find(cookies...); ok {
			t.Errorf("%s: the session is %+v", name, who)
		}
	}
}

func TestACookieOfPlainHTTPIsNotOneOfTLS(t *testing.T) {
	w := newWorld(t, 1)
	local := httptest.NewRequest("GET", "http://localhost:8090/", http.NoBody)
	local.RemoteAddr = "127.0.0.1:4711"
	plain := w.start(local, Session{Secret: "x"})
	if plain.Secure || plain.Name != sessionCookie || !plain.HttpOnly || plain.SameSite != http.SameSiteLaxMode {
		t.Errorf("the cookie of plain HTTP is %+v", plain)
	}
	encrypted := w.start(request(), Session{Secret: "x"})
	if !encrypted.Secure || encrypted.Name != "__Host-"+sessionCookie ||
		encrypted.Path != "/" || encrypted.Domain != "" {
		t.Errorf("the cookie of TLS is %+v", encrypted)
	}
	if _, _, ok := w.find(&http.Cookie{Name: encrypted.Name, Value: plain.Value}); ok {
		t.Error("a cookie of plain HTTP is a session over TLS")
	}
	for _, c := range []struct{ host, remote, header string }{
		{"portal.example", "127.0.0.1:1", ""},
		{"localhost", "192.0.2.1:1", ""},
		{"localhost", "127.0.0.1:1", "X-Forwarded-For"},
		{"localhost.evil.example", "127.0.0.1:1", ""},
		{"192.0.2.1", "127.0.0.1:1", ""},
		{"localhost", "", ""},
	} {
		r := httptest.NewRequest("GET", "/", http.NoBody)
		r.Host, r.RemoteAddr = c.host, c.remote
		if c.header != "" {
			r.Header.Set(c.header, "192.0.2.1")
		}
		if err := w.Start(httptest.NewRecorder(), r, Session{}); !errors.Is(err, ErrPlain) {
			t.Errorf("%+v: %v, want a session denied", c, err)
		}
	}
	for _, host := range []string{"127.0.0.1:8090", "[::1]:8090", "[::1]", "LOCALHOST"} {
		r := httptest.NewRequest("GET", "/", http.NoBody)
		r.Host, r.RemoteAddr = host, "[::1]:4711"
		if err := w.jar.Check(r); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestSigningInStartsAnotherSessionAndEndsTheOneBefore(t *testing.T) {
	w := newWorld(t, 1)
	before := w.start(request(), Session{Secret: "attacker", ID: "chosen"})
	after := w.start(request(before), Session{Secret: "victim", ID: "chosen"})
	first, _, ok := w.find(before)
	if ok {
		t.Errorf("the session before is still %+v", first)
	}
	if who, _, ok := w.find(after); !ok || who.Secret != "victim" || who.ID == "chosen" {
		t.Errorf("the session is %+v, %v", who, ok)
	}
}

func TestACookieIsIssuedAgainAtMostOnceAMinute(t *testing.T) {
	w := newWorld(t, 1)
	c := w.start(request(), Session{Secret: "x"})
	w.now = w.now.Add(59 * time.Second)
	if _, again, ok := w.find(c); !ok || again != nil {
		t.Errorf("after 59 s: %v, %v", again, ok)
	}
	w.now = w.now.Add(time.Second)
	_, again, ok := w.find(c)
	if !ok || again == nil {
		t.Fatalf("after 60 s: %v, %v", again, ok)
	}
	w.now = w.now.Add(DefaultIdle - time.Second)
	if _, _, ok := w.find(c); ok {
		t.Error("the first cookie is valid beyond the idle timeout")
	}
	if _, _, ok := w.find(again); !ok {
		t.Error("the second cookie is not valid within its idle timeout")
	}
}

func TestSigningOutEndsAllCopiesOfTheCookie(t *testing.T) {
	w := newWorld(t, 1)
	c := w.start(request(), Session{Secret: "x"})
	w.now = w.now.Add(2 * time.Minute)
	_, again, _ := w.find(c)
	a := httptest.NewRecorder()
	w.End(a, request(again))
	if gone := a.Result().Cookies(); len(gone) != 1 || gone[0].MaxAge >= 0 || gone[0].Value != "" {
		t.Errorf("the answer sets %v, want the cookie deleted", gone)
	}
	for name, copied := range map[string]*http.Cookie{"the first": c, "the second": again} {
		if _, _, ok := w.find(copied); ok {
			t.Errorf("%s cookie is valid after signing out", name)
		}
	}
}

func TestEndedSessionsAreRememberedAsLongAsTheirCopiesCouldBeUsed(t *testing.T) {
	w := newWorld(t, 1)
	for _, want := range []int{1, 2, 2} {
		w.End(httptest.NewRecorder(), request(w.start(request(), Session{Secret: "x"})))
		require.Len(t, w.ended, want)
		w.now = w.now.Add(DefaultIdle)
	}
}

func TestAValueThatBrowsersWouldNotKeepIsAnError(t *testing.T) {
	w := newWorld(t, 1)
	a := httptest.NewRecorder()
	if err := w.jar.Put(a, request(), "long", strings.Repeat("x", maxCookie), time.Minute); err == nil {
		t.Error("a cookie beyond the limit of browsers is set")
	}
	if _, err := NewJar([]byte("short"), time.Now); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a short key: %v", err)
	}
}
