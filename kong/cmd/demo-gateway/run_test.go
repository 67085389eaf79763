package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

func TestMain(m *testing.M) { leaktest.Main(m, func() error { return os.RemoveAll(folder) }) }

// folder has the built plugin server. TestMain removes it.
var folder string

// built builds the plugin server, once, and returns its path.
var built = sync.OnceValues(func() (string, error) {
	var err error
	if folder, err = os.MkdirTemp("", "demo-gateway"); err != nil {
		return "", err
	}
	binary := filepath.Join(folder, "tenant-rate-limiting")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "../../../plugin/cmd/tenant-rate-limiting")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the plugin: %w\n%s", err, output)
	}
	return binary, nil
})

// pluginBinary returns the path of the plugin server.
func pluginBinary(t *testing.T) string {
	t.Helper()
	binary, err := built()
	require.NoError(t, err)
	return binary
}

func TestTheScriptedSessionSucceeds(t *testing.T) {
	var stdout, stderr bytes.Buffer
	status := run(context.Background(), []string{
		"-config", "../../kong.yml", "-plugin", pluginBinary(t), "-listen", "127.0.0.1:0", "-session", "-once",
	}, &stdout, &stderr)
	if status != 0 {
		t.Fatalf("status %d\n%s\n%s", status, &stdout, &stderr)
	}
	for _, want := range []string{
		"acme (enterprise)", "gamma (unlimited)", "→ 429", "Retry-After: ", "for Retry-After",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, &stdout)
		}
	}
}

func TestTheGatewayStaysUntilInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	stdout := &cancelling{cancel: cancel}
	var stderr bytes.Buffer
	args := []string{"-config", "../../kong.yml", "-plugin", pluginBinary(t), "-listen", "127.0.0.1:0"}
	status := run(ctx, args, stdout, &stderr)
	if status != 0 || !strings.Contains(stdout.text.String(), "curl -i http://127.0.0.1:") {
		t.Errorf("status %d\n%s\n%s", status, &stdout.text, &stderr)
	}
}

func TestRequestsToTryAreThoseOfTheConfig(t *testing.T) {
	const text = `_format_version: "3.0"
services:
- name: shop
  url: http://echo.internal
  routes:
  - {name: carts, paths: [/carts]}
  - {name: orders, paths: [/orders], methods: [POST]}
  - name: open
    paths: [/open]
  plugins:
  - name: key-auth
    config: {key_names: [x-key]}
- name: free
  url: http://echo.internal
  routes:
  - {name: status, paths: [/status]}
consumers:
- {username: initech, tags: ['tier:gold'], keyauth_credentials: [{key: initech-key}]}
- {username: umbrella, keyauth_credentials: [{key: umbrella-key}]}
`
	file := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	config, err := gateway.LoadConfig(file)
	require.NoError(t, err)
	const want = `  curl -i http://gw/carts -H 'x-key: initech-key'   # initech, tier:gold
  curl -i http://gw/carts -H 'x-key: umbrella-key'   # umbrella
  curl -i -X POST http://gw/orders -H 'x-key: initech-key'   # initech, tier:gold
  curl -i http://gw/open -H 'x-key: initech-key'   # initech, tier:gold
  curl -i http://gw/status   # anonymous
`
	if got, err := curlLines(config, "http://gw"); err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// cancelling interrupts the program when it serves.
type cancelling struct {
	text   bytes.Buffer
	cancel func()
}

func (c *cancelling) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "serving until interrupted") {
		c.cancel()
	}
	return c.text.Write(p)
}

func TestAnUnexpectedSessionFails(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"never limits": func(w http.ResponseWriter, _ *http.Request) {
			for _, header := range []string{"Limit", "Remaining", "Reset"} {
				w.Header().Set("X-RateLimit-"+header, "1")
			}
		},
		"sends no headers": func(http.ResponseWriter, *http.Request) {},
		"always denies":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
		"is broken":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
	} {
		server := httptest.NewServer(handler)
		var out bytes.Buffer
		if err := playSession(context.Background(), server.URL, &out); err == nil {
			t.Errorf("a gateway that %s passes:\n%s", name, &out)
		}
		server.Close()
	}
}

func TestWrongUsageIsStatusTwo(t *testing.T) {
	for status, all := range map[int][][]string{
		0: {{"-help"}},
		1: {
			{"-plugin", "x", "-config", "none.yml"},
			{"-plugin", "./none", "-config", "../../kong.yml", "-listen", "127.0.0.1:0"},
		},
		2: {
			{},
			{"-plugin", "x", "extra"},
			{"-no-such-flag"},
			{"-plugin", "x", "-workers", "0"},
			{"-plugin", "x", "-chats", "-once"},
		},
	} {
		for _, args := range all {
			var stdout, stderr bytes.Buffer
			if got := run(context.Background(), args, &stdout, &stderr); got != status || stderr.Len() == 0 {
				t.Errorf("%q: status %d, want %d: %s", args, got, status, &stderr)
			}
		}
	}
}
