package oidc

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAConfigurationThatIsNotSafeIsNotUsed(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]map[string]any{
		"other issuer":        {"issuer": "https://evil.example"},
		"plain form":          {"authorization_endpoint": "http://login.example.org/auth"},
		"plain token":         {"token_endpoint": "http://login.example.org/token"},
		"plain keys":          {"jwks_uri": "http://login.example.org/keys"},
		"no token":            {"token_endpoint": ""},
		"script for the form": {"authorization_endpoint": "javascript:alert(1)"},
	} {
		f, s := newForger(t), newSite(t)
		f.config = config
		s.use(t, Settings{Issuer: f.URL})
		t.Log(name)
		get(t, newBrowser(t), s.URL+startPath, http.StatusServiceUnavailable, "not set up correctly")
	}
}

func TestAnAnswerThatIsNoConfigurationMeansThatTheProviderIsAway(t *testing.T) {
	t.Parallel()
	for name, discover := range map[string]http.HandlerFunc{
		"not found": http.NotFound,
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://evil.example", http.StatusFound)
		},
		"text": func(w http.ResponseWriter, _ *http.Request) { answer(w, "hello") },
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			answer(w, map[string]string{"issuer": strings.Repeat("x", 2*maxAnswer)})
		},
	} {
		f, s := newForger(t), newSite(t)
		f.discover = discover
		s.use(t, Settings{Issuer: f.URL})
		t.Log(name)
		get(t, newBrowser(t), s.URL+startPath, http.StatusServiceUnavailable, "not available at the moment")
	}
}

func TestASignInBeginsOnlyWhileTheProviderIsAvailableAndEndsWithWhatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	fetches, isAway, discover := 0, false, f.discover
	f.discover = func(w http.ResponseWriter, r *http.Request) {
		if fetches++; isAway {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		discover(w, r)
	}
	s.use(t, Settings{Issuer: f.URL})
	b := newBrowser(t)
	back, nonce := f.begin(t, s, b)
	f.begin(t, s, newBrowser(t))
	if fetches != 1 {
		t.Errorf("two sign-ins at once: %d fetches, want 1", fetches)
	}
	isAway = true
	s.ahead.Store(int64(keepAvailable))
	get(t, newBrowser(t), s.URL+startPath, http.StatusServiceUnavailable, "not available at the moment")
	if fetches != 2 {
		t.Errorf("after %v: %d fetches, want 2", keepAvailable, fetches)
	}
	f.token = f.sign(t, f.claims(nonce, s.now(), nil), "1")
	get(t, b, back, http.StatusOK, "oidc:ann@example.org is admin")
	s.ahead.Store(int64(keepConfiguration))
	if _, err := s.flow.discovery.get(t.Context()); err != nil || fetches != 3 {
		t.Errorf("after %v, to end a sign-in: %v after %d fetches, want the former configuration", keepConfiguration, err,
			fetches)
	}
	isAway = false
	s.ahead.Add(int64(retryAfter))
	f.begin(t, s, newBrowser(t))
}

func TestAFailureIsRememberedForASecond(t *testing.T) {
	t.Parallel()
	f, s := newForger(t), newSite(t)
	fetches, fixed := 0, s.now()
	f.discover = func(w http.ResponseWriter, _ *http.Request) {
		fetches++
		http.Error(w, "away", http.StatusBadGateway)
	}
	s.use(t, Settings{Issuer: f.URL})
	s.flow.discovery.now = func() time.Time { return fixed }
	for range 3 {
		get(t, newBrowser(t), s.URL+startPath, http.StatusServiceUnavailable, "not available")
	}
	if fetches != 1 {
		t.Errorf("%d fetches", fetches)
	}
}
