package spec

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/daemon"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// recipe returns the first block of a language in docs/doors.md that has a text.
func recipe(t testing.TB, language, having string) string {
	t.Helper()
	for _, b := range codeBlocks(file(t, "docs/doors.md")) {
		if b.language == language && strings.Contains(b.text, having) {
			return b.text
		}
	}
	t.Fatalf("docs/doors.md has no block of %s with %s", language, having)
	return ""
}

// with returns a recipe with other addresses: of what is behind the proxy, of the control server, of the proxy itself.
func with(recipe, backend, control, address string) string {
	replacer := strings.NewReplacer("127.0.0.1:9000", backend, "127.0.0.1:8090", control, "127.0.0.1:8080", address)
	return replacer.Replace(recipe)
}

// forwardFlags are the flags for the door of forward auth, as the docs configure it, for some proxies.
func forwardFlags(t *testing.T, proxies string) []string {
	t.Helper()
	mapping := filepath.Join(t.TempDir(), "forward-auth.yml")
	text := recipe(t, "yaml", "header.X-Tenant") + "tier_from: [static.enterprise]\n"
	require.NoError(t, os.WriteFile(mapping, []byte(text), 0o600))
	return []string{"--forward-auth", mapping, "--forward-auth-proxies", proxies}
}

// backend returns the address of a server behind a proxy, which answers what it got.
func backend(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/forbidden" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = io.WriteString(w, r.Method+" "+r.URL.Path+" "+string(body))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// nginx starts Debian's nginx with the recipe of the docs, and returns where it listens.
func nginx(t *testing.T, backend, control string) *api {
	t.Helper()
	program, err := debian.Find("nginx-light", func() (string, error) { return exec.LookPath("/usr/sbin/nginx") })
	require.NoError(t, err)
	dir, address := t.TempDir(), freeport.Address(t)
	text := `daemon off; master_process off; pid ` + dir + `/pid; error_log stderr;
events {}
http {
access_log off; client_body_temp_path ` + dir + `; proxy_temp_path ` + dir + `; fastcgi_temp_path ` + dir + `;
uwsgi_temp_path ` + dir + `; scgi_temp_path ` + dir + `;
` + with(recipe(t, "nginx", "auth_request"), backend, control, address) + "}"
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	listen(t, exec.Command(program, "-c", file, "-e", "stderr"), address)
	return &api{t: t, url: "http://" + address}
}

// caddy starts Debian's Caddy with the recipe of the docs.
func caddy(t *testing.T, backend, control string) *api {
	t.Helper()
	program, err := debian.Program("caddy", "caddy")
	require.NoError(t, err)
	dir, address := t.TempDir(), freeport.Address(t)
	text := "{\nadmin off\nauto_https off\n}\n" + with(recipe(t, "caddyfile", "forward_auth"), backend, control, address)
	file := filepath.Join(dir, "Caddyfile")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.Command(program, "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	listen(t, cmd, address)
	return &api{t: t, url: "http://" + address}
}

// listen runs a server until the end of the test.
func listen(t testing.TB, cmd *exec.Cmd, address string) {
	t.Helper()
	server, err := daemon.Start(cmd, daemon.Listens(address))
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.End(syscall.SIGKILL) })
}

func TestKongAndNginxShareOneBudgetAndTheRecipeAnswersAsThePlugin(t *testing.T) {
	t.Parallel()
	p := planeOf(t, "on_missing_tenant: deny, "+shared)
	kong, control := p.node("kong", p.dsn), p.serve(forwardFlags(t, "127.0.0.1")...)
	proxy := nginx(t, backend(t), strings.TrimPrefix(control.url, "http://"))

	// A client cannot name a tenant, or hide the endpoint: the proxy replaces these headers.
	got, err := proxy.send(http.MethodPost, "/records?x=1", "a body", "apikey", "alices-key", "X-Tenant", "other",
		"X-Forwarded-Uri", "/free", "X-Forwarded-For", "192.0.2.9", "X-User", "u", "Cookie", strings.Repeat("c", 7<<10))
	require.NoError(t, err)
	require.Equal(t, "POST /records a body", got.Body)
	require.Equal(t, "60 59", got.Header.Get("X-RateLimit-Limit")+" "+got.Header.Get("X-RateLimit-Remaining"))
	got, err = proxy.send(http.MethodGet, "/forbidden", "", "apikey", "alices-key")
	require.NoError(t, err)
	require.Equal(t, "403 GET /forbidden ", fmt.Sprint(got.Status, " ", got.Body), "a 403 of the upstream is passed on")

	got, err = proxy.send(http.MethodGet, "/records", "")
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(got.Status, " ", got.Body), "403 {", "without a tenant")

	admitted := race(t, map[string]door{
		"Kong":  byHTTP(func() (answer, error) { return kong.send(http.MethodGet, "/records", "apikey", "alice") }),
		"nginx": byHTTP(func() (answer, error) { return proxy.send(http.MethodGet, "/records", "", "apikey", "alices-key") }),
	}, 3, 20)
	require.EqualValues(t, 58, sum(t, admitted), "of 120 beside the two before")
	got, err = proxy.send(http.MethodGet, "/records", "", "apikey", "alices-key")
	require.NoError(t, err)
	if got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" ||
		got.Header.Get("X-RateLimit-Remaining") != "0" || got.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("a denial is %d %v %s", got.Status, got.Header, got.Body)
	}

	require.NoError(t, control.terminate())
	got, err = proxy.send(http.MethodGet, "/records", "", "apikey", "alices-key")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.Status, "without the service requests pass, as the recipe says")
}

func TestTheRecipeForCaddyPassesDenialsOnAsThePluginAnswersThem(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	control := p.serve(forwardFlags(t, "127.0.0.1")...)
	proxy := caddy(t, backend(t), strings.TrimPrefix(control.url, "http://"))
	send := func() answer {
		got, err := proxy.send(http.MethodPost, "/records?deny=403&x=1", "a body", "apikey", "alices-key",
			"X-Tenant", "other", "X-User", "u_1", "X-Forwarded-Uri", "/free", "X-Forwarded-Method", "GET")
		require.NoError(t, err)
		return got
	}
	for i := range 60 {
		got := send()
		require.Equal(t, fmt.Sprint("POST /records a body, 60 ", 59-i), fmt.Sprint(got.Body, ", ",
			got.Header.Get("X-RateLimit-Limit"), " ", got.Header.Get("X-RateLimit-Remaining")))
	}
	got := send()
	if got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" ||
		got.Header.Get("X-RateLimit-Remaining") != "0" || got.Header.Get("X-RateLimit-Status") != "" ||
		got.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.Body, "quota-exceeded") {
		t.Errorf("a denial is %d %v %s", got.Status, got.Header, got.Body)
	}
	untrusted := p.serve(forwardFlags(t, "192.0.2.1")...)
	got, err := untrusted.send(http.MethodGet, "/v1/ratelimit/forward-auth", "", "X-Tenant", "free",
		"X-Forwarded-For", "192.0.2.1")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, got.Status, got.Body)
	require.Contains(t, got.Body, "--forward-auth-proxies")
}
