package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// limitedByKong is a file with rate-limiting of Kong: three requests a day for each consumer.
var limitedByKong = deckOf(`
  - name: records
    paths: [/records]
    plugins:
    - name: key-auth
      config: {anonymous: anonymous}
    - name: rate-limiting # by consumer
      config: {day: 3, policy: local}`)

// rateLimiting stands for Kong's plugin: it counts the requests of each consumer, and denies those above the limit.
func rateLimiting(t *testing.T) gateway.Plugin {
	t.Helper()
	info, err := gateway.ParsePluginInfo([]byte(`{"Protocol":"ProtoBuf:1","Plugins":[{"Name":"rate-limiting",
		"Phases":["access"],"Priority":910,"Schema":{"name":"rate-limiting","fields":[{"config":{"type":"record","fields":[
		{"day":{"type":"number"}},{"policy":{"type":"string"}}]}}]}}]}`))
	require.NoError(t, err)
	admitted := map[string]float64{} // requests come one after another
	return gateway.Plugin{Info: info, Access: func(c *gateway.PluginCall) {
		consumer := c.RequestHeader("X-Consumer-ID")
		if limit, _ := c.Config["day"].(float64); admitted[consumer] >= limit {
			c.Exit(http.StatusTooManyRequests, []byte(`{"message":"denied by Kong"}`))
			return
		}
		admitted[consumer]++
	}}
}

// imported returns what ratelimit import makes of a decK file.
func imported(t *testing.T, deck string, flags ...string) string {
	t.Helper()
	from, to := filepath.Join(t.TempDir(), "kong.yml"), filepath.Join(t.TempDir(), "new.yml")
	require.NoError(t, os.WriteFile(from, []byte(deck), 0o600))
	args := append([]string{"import", from, "-o", to}, flags...)
	if out, err := exec.Command(filepath.Join(binaries, "ratelimit"), args...).CombinedOutput(); err != nil {
		t.Fatalf("ratelimit %v: %v\n%s", args, err, out)
	}
	if out, err := exec.Command(filepath.Join(binaries, "ratelimit"), "validate", to).CombinedOutput(); err != nil {
		t.Fatalf("ratelimit validate: %v\n%s", err, out)
	}
	text, err := os.ReadFile(to)
	require.NoError(t, err)
	return string(text)
}

// wantByKong sends requests, whose denials must be Kong's own and whose headers must not be of this plugin.
func (n *node) wantByKong(statuses []int, headers ...string) {
	n.t.Helper()
	for i, status := range statuses {
		a := n.get("/records", headers...)
		if a.Status != status || status == http.StatusTooManyRequests && !strings.Contains(a.Body, "denied by Kong") {
			n.t.Errorf("request %d of %v: %d %s, want %d by Kong", i+1, headers, a.Status, a.Body, status)
		}
		for name := range a.Header {
			if strings.Contains(strings.ToLower(name), "ratelimit") || name == "Retry-After" {
				n.t.Errorf("request %d of %v has the header %s: %s", i+1, headers, name, a.Header[name])
			}
		}
	}
}

func TestAnImportedConfigCountsBesideKongsPluginWhichGoesOnEnforcing(t *testing.T) {
	t.Parallel()
	address := freeport.Address(t)
	shadow := imported(t, limitedByKong, "--side-by-side")
	n := start(t, shadow, within(rateLimiting(t)), watched(address))
	n.wantByKong([]int{200, 200, 200, 429, 429}, "apikey", "alice")
	n.wantByKong([]int{200, 200, 200, 429}) // the anonymous consumer is one as any other
	n.wantByKong([]int{200}, "apikey", "beth")
	status, metrics := read(address, "/metrics")
	const sample = `rate_limiter_shadow_denials_total{policy="day",scope="tenant",tier="all"}`
	if got, ok := number(metrics, sample); status != 200 || !ok || got != 3 {
		t.Errorf("%d, %s is %g (%v), want the 3 requests that Kong denied\n%s", status, sample, got, ok, metrics)
	}
}

func TestAnImportedConfigEnforcesInPlaceOfKongsPlugin(t *testing.T) {
	t.Parallel()
	n := start(t, imported(t, limitedByKong))
	n.want([]int{200, 200, 200, 429, 429}, "/records", "apikey", "alice")
	n.want([]int{200, 200, 200, 429}, "/records")
	a := n.get("/records", "apikey", "beth")
	if a.Status != 200 || a.Header.Get("RateLimit-Limit") != "3" || a.Header.Get("RateLimit-Remaining") != "2" {
		t.Errorf("%d with the headers %v, want Kong's names with 2 of 3 left", a.Status, a.Header)
	}
}

func TestAnImportedResponseLimitSpendsWhatTheHeaderOfTheResponseLists(t *testing.T) {
	t.Parallel()
	b := budget{node: start(t, imported(t, `_format_version: "3.0"
services:
- name: answer
  url: "http://answer.internal"
  routes:
  - name: answer
    paths: [/answer]
    plugins:
    - name: key-auth
    - name: response-ratelimiting
      config: {limits: {video: {day: 10}}}
`+consumers), settling)}
	for i, c := range []struct {
		header string
		status int
		left   string // after the reservation of 1
	}{
		{"X-Kong-Limit:video=4,image=9", 200, "9"},
		{"X-Other:1", 200, "5"},
		{"X-Kong-Limit:image=9", 200, "5"},
		{"X-Kong-Limit:video=7", 200, "5"},
		{"X-Kong-Limit:video=1", 429, "0"},
	} {
		a := b.get("/answer?header=" + c.header)
		if a.Status != c.status || a.Header.Get("X-RateLimit-Remaining") != c.left {
			t.Errorf("request %d: %d with the headers %v, want %d and %s left", i+1, a.Status, a.Header, c.status, c.left)
		}
	}
}

func TestAReplayDeniesTheRequestsThatThePluginHasDenied(t *testing.T) {
	t.Parallel()
	config := deck(`{tiers: [{name: essentials, limits: [
		{name: hour, scope: tenant, limit: 4, window_size: 3600},
		{name: day, scope: tenant, limit: 5, window_size: 86400, algorithm: fixed_window}]}]}`)
	n := start(t, config)
	log, denied := "started_at,consumer.custom_id,route,method,path,status\n", 0
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for i := range 24 {
		tenant := []string{"alice", "beth", "gus"}[i%3]
		status := n.get("/records", "apikey", tenant).Status
		if status == 429 {
			denied++
		}
		log += fmt.Sprintf("%s,%s,records,GET,/records,%d\n", noon.Add(time.Duration(i)*time.Second).Format(time.RFC3339),
			tenant, status)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"kong.yml": config, "access.csv": log} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	replay := exec.Command(filepath.Join(binaries, "ratelimit"), "replay", "--config", "kong.yml", "--log", "access.csv",
		"--tenant-from", "consumer.custom_id", "-o", "json", "--html", "report.html", "--fail-if-denied-above", "1%")
	replay.Dir = dir
	out, err := replay.Output()
	if replay.ProcessState.ExitCode() != 5 {
		t.Fatalf("%v, want exit code 5\n%s", err, out)
	}
	var report struct {
		Requests, Denied int
		Log              struct {
			Both       int `json:"denied_both"`
			OnlyLog    int `json:"denied_only_in_log"`
			OnlyReplay int `json:"denied_only_in_replay"`
		}
	}
	require.NoError(t, json.Unmarshal(out, &report))
	l := report.Log
	if denied == 0 || report.Requests != 24 || l.Both != denied || l.OnlyLog != 0 || l.OnlyReplay != 0 {
		t.Errorf("the plugin has denied %d requests; report %+v", denied, report)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "report.html")); err != nil || len(page) < 1000 {
		t.Errorf("report of %d bytes, %v", len(page), err)
	}
}
