package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// servePortal serves what the settings assemble on this machine, and returns its URL with a token of an admin.
func servePortal(t *testing.T, on bool) (address, secret string) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	secret, _, err := rows.New(pool).CreateToken(t.Context(), rows.Change{Actor: "test", Reason: "test"},
		rows.NewToken{Name: "ann", Role: "admin"})
	require.NoError(t, err)
	s := &Settings{Portal: Portal{On: on}}
	s.MetricsListen = ""
	log := slog.New(slog.DiscardHandler)
	d, err := newDecider(t.Context(), s, log)
	require.NoError(t, err)
	assembled, err := s.assemble(d, pool, log)
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	var background sync.WaitGroup
	for _, run := range assembled.background {
		background.Go(func() {
			if err := run(running); err != nil {
				t.Error(err)
			}
		})
	}
	server := httptest.NewServer(assembled.http.Handler)
	t.Cleanup(func() { server.Close(); stop(); background.Wait() })
	return server.URL, secret
}

// answerOf returns the status of a request, and where it leads.
func answerOf(t *testing.T, client *http.Client, method, url, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := client.Do(r)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	return a.StatusCode, a.Header.Get("Location")
}

func TestTheTokenOfAnOperatorSignsInToThePortal(t *testing.T) {
	address, secret := servePortal(t, true)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{
		Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin"}
	for _, c := range []struct {
		method, path, body string
		header             []string
		status             int
		location           string
	}{
		{"GET", "/", "", []string{"Accept", "text/html,*/*"}, http.StatusSeeOther, "/portal/"},
		{"GET", "/", "", nil, http.StatusNotFound, ""},
		{"GET", "/portal", "", nil, http.StatusSeeOther, "/portal/"},
		{"GET", "/portal/", "", nil, http.StatusSeeOther, "/portal/sign-in"},
		{"POST", "/portal/sign-in", "token=unknown", form, http.StatusForbidden, ""},
		{"POST", "/portal/sign-in", url.Values{"token": {secret}}.Encode(), form, http.StatusSeeOther, "/portal/"},
		{"GET", "/portal/", "", nil, http.StatusOK, ""},
		{"GET", "/v1/ratelimit/fleet", "", nil, http.StatusUnauthorized, ""}, // the API takes no cookie
	} {
		status, location := answerOf(t, client, c.method, address+c.path, c.body, c.header...)
		if status != c.status || location != c.location {
			t.Errorf("%s %s: %d to %q, want %d to %q", c.method, c.path, status, location, c.status, c.location)
		}
	}
}

func TestThePortalCanBeOff(t *testing.T) {
	address, _ := servePortal(t, false)
	for _, path := range []string{"/portal/", "/portal/sign-in", "/"} {
		if status, _ := answerOf(t, http.DefaultClient, "GET", address+path, ""); status != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", path, status)
		}
	}
}

func TestAKeyFileHas32BytesOrTheirBase64(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for text, ok := range map[string]bool{
		strings.Repeat("k", 32): true, "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n": true,
		"": false, "short": false, strings.Repeat("k", 33): false,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		key, err := (&Portal{KeyFile: file}).readKey()
		if (err == nil) != ok || ok && len(key) != 32 || !ok && !strings.Contains(err.Error(), "openssl rand") {
			t.Errorf("%q: %d bytes, %v", text, len(key), err)
		}
	}
	if _, err := (&Portal{KeyFile: file + ".away"}).readKey(); err == nil {
		t.Error("a file that does not exist is accepted")
	}
}
