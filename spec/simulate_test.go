package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

// simulated is what the specs read of a report of ratelimit simulate.
type simulated struct {
	Offered  float64 `json:"offered"`
	Admitted float64 `json:"admitted"`
	Over     int64   `json:"over_tokens"`
	RedisOps float64 `json:"redis_ops_per_second"`
}

// simulateFleet simulates four nodes under a load of one tenant.
func simulateFleet(t *testing.T, limited bound, lasts time.Duration, perSecond float64) (report simulated) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	text := fmt.Sprintf("nodes: 4\nredis: {latency: {p50: 100µs}}\ntenants: [{count: 1}]\nload: [{for: %v, rate: %f}]\n"+
		"config: {default_tier: a, tiers: [{name: a, limits: [%s]}]}\n", lasts, perSecond, limited.config())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(binaries, "ratelimit"), "simulate", file, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	if err != nil {
		t.Fatalf("simulate: %v\n%s\n%s", err, text, out)
	}
	return report
}

// TestSoakASimulatedFleetKeepsTheBoundAndCostsWhatARealOneDoes compares four processes on a Redis with a simulation of
// them. The long form takes a minute, and compares the commands and admissions too: a few seconds are too short for
// that.
func TestSoakASimulatedFleetKeepsTheBoundAndCostsWhatARealOneDoes(t *testing.T) {
	const short, long = 3 * time.Second, time.Minute
	lasts := min(soak.For(t, short), long)
	if lasts < long { // else the processes have the machine to themselves
		t.Parallel()
	}
	limited := bound{algorithm: "token_bucket", limit: 300, window: time.Second, burst: 1000}
	server := redistest.Single(t)
	f, client := onSocket(t, server), server.Client(t)
	members := f.joinAll(4)
	f.awaitLeases(members...)

	before, tr := scripts(t, client), f.offer(by("acme"), poisson(400))
	for _, m := range members {
		tr.to(m, m.open("", limited.config()), 4)
	}
	samples := tr.lastFor(lasts)
	calls := float64(scripts(t, client)-before) / lasts.Seconds()
	report := simulateFleet(t, limited, lasts, float64(len(samples))/lasts.Seconds())

	admits := float64(counted(samples, http.StatusOK))
	t.Logf("a real fleet admits %.0f of %d requests with %.0f calls/s, a simulated one %.0f of %.0f with %.0f calls/s",
		admits, len(samples), calls, report.Admitted, report.Offered, report.RedisOps)
	if over := limited.over(samples); over > 1e-6 || report.Over != 0 {
		t.Errorf("the real fleet admits %.1f requests above the bound, the simulated one %d", over, report.Over)
	}
	if lasts < long {
		return
	}
	compareWithin(t, "requests admitted", report.Admitted/report.Offered, admits/float64(len(samples)))
	compareWithin(t, "calls/s", report.RedisOps, calls)
}

// compareWithin fails the test unless a simulated number differs from the real one by a tenth at most.
func compareWithin(t *testing.T, what string, got, measured float64) {
	t.Helper()
	if math.Abs(got-measured) > measured/10 {
		t.Errorf("%s: simulated %.3g, real %.3g, want a difference of 10 %% at most", what, got, measured)
	}
}
