package oidc

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

func TestOnlyATokenOfTheProviderForThisSignInIsAccepted(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	s.use(t, Settings{Issuer: f.URL})
	now := s.now()
	at := func(ahead time.Duration) int64 { return now.Add(ahead).Unix() }
	for name, c := range map[string]struct {
		changes map[string]any
		valid   bool
	}{
		"valid":                {nil, true},
		"other issuer":         {map[string]any{"iss": "https://evil.example"}, false},
		"other audience":       {map[string]any{"aud": "other"}, false},
		"more audiences":       {map[string]any{"aud": []string{clientID, "other"}, "azp": clientID}, true},
		"no party":             {map[string]any{"aud": []string{clientID, "other"}}, false},
		"other party":          {map[string]any{"azp": "other"}, false},
		"party of no text":     {map[string]any{"azp": 7}, false},
		"other nonce":          {map[string]any{"nonce": "other"}, false},
		"no nonce":             {map[string]any{"nonce": nil}, false},
		"no subject":           {map[string]any{"sub": nil}, false},
		"no expiry":            {map[string]any{"exp": nil}, false},
		"expired":              {map[string]any{"exp": at(-2 * time.Minute)}, false},
		"clock ahead":          {map[string]any{"exp": at(-30 * time.Second)}, true},
		"clock behind":         {map[string]any{"iat": at(30 * time.Second)}, true},
		"issued in the future": {map[string]any{"iat": at(5 * time.Minute)}, false},
		"not valid yet":        {map[string]any{"nbf": at(time.Hour)}, false},
	} {
		b := newBrowser(t)
		back, nonce := f.begin(t, s, b)
		f.token = f.sign(t, f.claims(nonce, now, c.changes), "1")
		t.Log(name)
		if c.valid {
			get(t, b, back, http.StatusOK, "oidc:ann@example.org is admin")
		} else {
			get(t, b, back, http.StatusBadGateway, "The answer of the identity provider is not valid")
		}
	}
}

func TestATokenWithoutAValidSignatureIsNotAccepted(t *testing.T) {
	t.Parallel()
	f, other, s := newForger(t), newForger(t), newSite(t)
	s.use(t, Settings{Issuer: f.URL})
	now := s.now()
	for name, sign := range map[string]func(claims jwt.MapClaims) string{
		"other key": func(claims jwt.MapClaims) string { return other.sign(t, claims, "1") },
		"unsigned": func(claims jwt.MapClaims) string {
			text, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
			require.NoError(t, err)
			return text
		},
		"secret": func(claims jwt.MapClaims) string {
			text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("secret"))
			require.NoError(t, err)
			return text
		},
		"no token": func(jwt.MapClaims) string { return "" },
	} {
		b := newBrowser(t)
		back, nonce := f.begin(t, s, b)
		f.token = sign(f.claims(nonce, now, nil))
		t.Log(name)
		get(t, b, back, http.StatusBadGateway, "The answer of the identity provider is not valid")
	}
}

func TestUserInfoHasWhatTheTokenLacks(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	f.config = map[string]any{"userinfo_endpoint": f.URL + "/userinfo"}
	s.use(t, Settings{Issuer: f.URL})
	for name, c := range map[string]struct {
		changes, userinfo map[string]any
		status            int
		text              string
	}{
		"roles": {map[string]any{"roles": nil}, map[string]any{"sub": "1", "roles": "ratelimit:viewer"}, 200, "is viewer"},
		"name": {
			map[string]any{"email": nil},
			map[string]any{"sub": "1", "preferred_username": "ann", "roles": "ratelimit:viewer"},
			200, "oidc:ann is admin", // the token's own claims come first
		},
		"other person": {
			map[string]any{"roles": nil}, map[string]any{"sub": "2", "roles": "ratelimit:admin"}, 502, "not valid",
		},
		"no name, and none to get": {map[string]any{"email": nil}, nil, 200, "oidc:1 is admin"},
	} {
		b := newBrowser(t)
		back, nonce := f.begin(t, s, b)
		f.userinfo = c.userinfo
		f.token = f.sign(t, f.claims(nonce, s.now(), c.changes), "1")
		t.Log(name)
		get(t, b, back, c.status, c.text)
	}
}

func TestACallbackOfAnotherIssuerOrWithoutACodeIsDenied(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	s.use(t, Settings{Issuer: f.URL})
	for _, change := range []func(back string) string{
		func(back string) string { return back + "&iss=https://evil.example" },
		func(back string) string { return strings.Replace(back, "code=c&", "", 1) },
	} {
		b := newBrowser(t)
		back, _ := f.begin(t, s, b)
		get(t, b, change(back), http.StatusBadGateway, "not valid")
	}
}

func TestLinksThatBeginSignInsDoNotLockABrowserOut(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	s.use(t, Settings{Issuer: f.URL})
	for name, next := range map[string]string{
		"a long page": strings.Repeat("x", 1000), "many parameters": strings.Repeat("&", 400),
		"too many": strings.Repeat("<", 5000), "quotes": strings.Repeat(`"`, 600),
		"line separators": strings.Repeat("\u2028", 300),
	} {
		b := newBrowser(t)
		b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for range 2 * maxAttempts {
			get(t, b, s.URL+StartPath+"?next=/portal/"+url.QueryEscape(next), http.StatusSeeOther, "")
		}
		last, nonce := f.begin(t, s, b)
		at, err := url.Parse(s.URL)
		require.NoError(t, err)
		size, cookies := 0, b.Jar.Cookies(at)
		for _, c := range cookies {
			size += len("__Host-") + len(c.String()) + len("; ")
		}
		if len(cookies) > maxAttempts {
			t.Errorf("%s: %d cookies, want at most %d", name, len(cookies), maxAttempts)
		}
		if size > 12<<10 { // a session and the other headers have room beside
			t.Errorf("%s: the cookies have %d bytes of the 16 KiB that the server reads", name, size)
		}
		f.token = f.sign(t, f.claims(nonce, s.now(), nil), "1")
		get(t, b, last, http.StatusOK, "is admin")
	}
}

func TestASignInTakesTenMinutesAtMost(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	s.use(t, Settings{Issuer: f.URL})
	b := newBrowser(t)
	back, _ := f.begin(t, s, b)
	s.ahead.Store(int64(attemptLife))
	get(t, b, back, http.StatusBadRequest, "took longer than 10 minutes")
}
