package spec

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

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
