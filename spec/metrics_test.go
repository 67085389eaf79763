package spec

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// watched is an option of start: the plugin server with its metrics at an address.
func watched(address string) func(*gateway.Options) {
	return serverWith("-metrics-listen", address)
}

// read returns the answer at a path of the plugin process, or 0 and "" without an answer.
func read(address, path string) (status int, body string) {
	response, err := (&http.Client{
		Transport: &http.Transport{DisableKeepAlives: true},
		Timeout:   longest,
	}).Get("http://" + address + path)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(text)
}

// number returns the value of a sample, or false.
func number(metrics, sample string) (value float64, ok bool) {
	for line := range strings.Lines(metrics) {
		if text, found := strings.CutPrefix(line, sample+" "); found {
			_, err := fmt.Sscan(text, &value)
			return value, err == nil
		}
	}
	return 0, false
}

func TestMetricsCountDecisions(t *testing.T) {
	t.Parallel()
	address := freeport.Address(t)
	n := start(t, deck(`{tiers: [{name: enterprise,
		limits: [{name: hour, scope: tenant, limit: 2, window_size: 3600}]}]}`), watched(address))
	n.want([]int{200, 200, 429}, "/records", "apikey", "alice")
	status, metrics := read(address, "/metrics")
	const labels = `endpoint="records",mode="enforce",org_id="acme"`
	for sample, want := range map[string]float64{
		`rate_limiter_requests_total{` + labels + `,result="allowed",tier="enterprise"}`:        2,
		`rate_limiter_requests_total{` + labels + `,result="hard_throttled",tier="enterprise"}`: 1,
		`rate_limiter_denials_total{policy="hour",scope="tenant",tier="enterprise"}`:            1,
	} {
		if got, ok := number(metrics, sample); status != 200 || !ok || got != want {
			t.Errorf("%d, %s is %g (%v), want %g", status, sample, got, ok, want)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := read(address, path); status != 200 || !json.Valid([]byte(body)) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestAProcessThatTakesOverTheSocketGetsTheMetricsPortToo(t *testing.T) {
	t.Parallel()
	prefix, address := shortDir(t), freeport.Address(t)
	startOf := func() float64 {
		_, metrics := read(address, "/metrics")
		instant, _ := number(metrics, "process_start_time_seconds")
		return instant
	}
	old := startPlugin(t, prefix, "-metrics-listen", address)
	var first float64
	await.That(t, "the first process shows its metrics", func() bool { first = startOf(); return first > 0 })
	next := startPlugin(t, prefix, "-metrics-listen", address)
	await.That(t, "the second process has the port", func() bool { second := startOf(); return second > first })
	old.terminate()
	if second := startOf(); second <= first {
		t.Errorf("after the end of the first process the port has metrics of a process started at %f", second)
	}
	next.terminate()
}

// checkWait checks that a number of seconds, rounded up, is what is left of a wait that began after an instant.
func checkWait(t *testing.T, seconds any, wait time.Duration, after time.Time) {
	t.Helper()
	least := (wait - time.Since(after)).Seconds()
	if got, ok := seconds.(float64); !ok || got < least || got > wait.Seconds() {
		t.Errorf("retry_after is %v, want %v to %v", seconds, least, wait.Seconds())
	}
}

func TestKongLogsTheDecisionIfTheConfigHasLogDecisions(t *testing.T) {
	t.Parallel()
	m := (&fleet{t: t}).join()
	const limits = `"tiers":[{"name":"a","limits":[{"name":"hour","scope":"tenant","limit":1,"window_size":3600}]}]}`
	config := func(n int, others string) int32 {
		return startInstance(t, m.socket, fmt.Sprintf(`{"__seq__":%d,"__plugin_id":"p%[1]d","namespace":"n%[1]d",%s%s`, n, others,
			limits))
	}
	on, off := config(1, `"log_decisions":true,`), config(2, "")
	exempting := config(3, `"log_decisions":true,"exempt":[{"tag":"x"},{"tenant":"acme"}],`)
	begun := time.Now()
	for _, want := range []map[string]any{
		{
			"result": "allowed", "mode": "enforce", "tier": "a", "policy": "hour", "limit": 1.0, "remaining": 0.0,
			"source": "memory",
		},
		{
			"result": "hard_throttled", "mode": "enforce", "tier": "a", "policy": "hour", "limit": 1.0, "remaining": 0.0,
			"source": "memory", "retry_after": nil,
		},
	} {
		outcome := m.ask(t, on, by("acme"))
		entry, ok := outcome.Serialized["rate_limit"].(map[string]any)
		if !ok || len(entry) != len(want) {
			t.Fatalf("the log has %v, want %v", outcome.Serialized, want)
		}
		for name, value := range want {
			if name == "retry_after" {
				checkWait(t, entry[name], time.Hour, begun)
			} else if entry[name] != value {
				t.Errorf("%s is %v, want %v", name, entry[name], value)
			}
		}
		if denied := want["result"] == "hard_throttled"; (outcome.Exit != nil) != denied {
			t.Errorf("%v: exit %v", want["result"], outcome.Exit)
		}
		if outcome := m.ask(t, off, by("acme")); outcome.Serialized != nil {
			t.Errorf("without log_decisions the log has %v", outcome.Serialized)
		}
	}
	entry, _ := m.ask(t, exempting, by("acme")).Serialized["rate_limit"].(map[string]any)
	if entry["result"] != "exempt" || entry["exempt_by"] != "exempt[1]" {
		t.Errorf("the log has %v, want the result exempt by exempt[1]", entry)
	}
}
