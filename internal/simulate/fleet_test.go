// Package simulate runs a fleet of nodes by a virtual clock: what a set of limits costs, admits and denies before any
// of it exists. It is a discrete-event simulation in one goroutine at a time, and repeats by its seed.
//
// Nothing that decides is written twice. Each node has the path of a request (package admit), with the leases (package
// lease), circuit breakers, fail modes and charges (package outage), and the clock (package clock) of a real one. What
// is simulated is what they stand on: a [network] with latencies and queues in front of masters, each of which is a
// store of package memory; and a load of tenants by Zipf's law. There are no faults.
//
// A call of a master waits, and the code that calls is written to wait. So each request, and each loop of a node, is a
// coroutine: while it waits, the others of its node go on.
//
// What is counted is compared with two references. The bound of each limit over any interval shows what was admitted
// too much: see [ledger]. A single store without nodes and latencies, which gets the same requests at the same
// instants, shows what was denied too much.
//
// The package has only tests, of the table of docs/sizing.md and of what it rests on. The costs of a command are
// measured by benchmarks (docs/benchmarks.md).
package simulate

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// run simulates a scenario.
func run(t *testing.T, text string) *Report {
	t.Helper()
	s, err := Parse([]byte(text))
	require.NoError(t, err)
	return s.Run()
}

// scenario returns a scenario of 20 tenants, with more lines.
func scenario(lines ...string) string {
	return "config: {default_tier: a, tiers: [{name: a, limits: [" +
		"{name: burst, scope: tenant, limit: 3000, window_size: 60, burst: 500}," +
		"{name: hourly, scope: tenant, limit: 2000, window_size: 3600, algorithm: fixed_window}]}]}\n" +
		"tenants: [{count: 20, zipf: 1}]\n" + strings.Join(lines, "\n")
}

const (
	fourNodes    = "nodes: 4"
	threeSeconds = "load: {for: 3s, rate: 1200}"
)

func TestTheSameSeedGivesTheSameReport(t *testing.T) {
	var reports []*Report
	for _, seed := range []string{"seed: 7", "seed: 7", "seed: 8"} {
		reports = append(reports, run(t, scenario(fourNodes, threeSeconds, seed, "redis: {masters: 3}")))
	}
	if *reports[0] != *reports[1] || *reports[0] == *reports[2] {
		t.Errorf("two runs with seed 7 and one with seed 8 report\n%+v\n%+v\n%+v", *reports[0], *reports[1], *reports[2])
	}
}

func TestNothingAboveTheBoundIsAdmitted(t *testing.T) {
	for _, lines := range [][]string{
		{"nodes: 1", threeSeconds},
		{fourNodes, threeSeconds},
		{fourNodes, threeSeconds, "lease_share: 0"},
		{fourNodes, threeSeconds, "lease_share: 5", "redis: {masters: 3, latency: {p50: 2ms, p99: 5ms}}"},
	} {
		r := run(t, scenario(lines...))
		if r.OverTokens != 0 || r.Offered == 0 || r.Denied == 0 {
			t.Errorf("%q: %d of %d admitted, %d tokens above the bound, want none", lines, r.Admitted, r.Offered, r.OverTokens)
		}
		if r.UnderPct > 2 {
			t.Errorf("%q: %.2f %% fewer were admitted than an ideal limiter does, want 2 %% at most", lines, r.UnderPct)
		}
	}
}

func TestLeasesSaveCommandsAndWaits(t *testing.T) {
	leased, exact := run(t, scenario(fourNodes, threeSeconds)), run(t, scenario(fourNodes, threeSeconds, "lease_share: 0"))
	if leased.RedisOps >= exact.RedisOps || leased.FromLeasePct <= exact.FromLeasePct || exact.Granted != 0 {
		t.Errorf("%.0f commands/s with leases and %.0f without, %.1f %% and %.1f %% decided without a call",
			leased.RedisOps, exact.RedisOps, leased.FromLeasePct, exact.FromLeasePct)
	}
	if leased.Spent < leased.Granted*9/10 || leased.Granted < leased.Spent {
		t.Errorf("%d of %d leased tokens were spent", leased.Spent, leased.Granted)
	}
}

func TestCommandsQueueAtAMasterThatIsBusy(t *testing.T) {
	busy := strings.Replace(scenario(fourNodes), "count: 20, zipf: 1", "count: 20", 1)
	r := run(t, busy+"\nlease_share: 0\nload: {for: 50ms, rate: 130000}")
	if r.BusiestPct < 80 || r.Queue < 1 || r.WaitP99 < 1 {
		t.Errorf("busy for %.0f %%, the longest queue %.2f ms, 99th percentile %.2f ms", r.BusiestPct, r.Queue, r.WaitP99)
	}
}

func TestFailModesDecideWhenRoundTripsLastAsLongAsTheTimeout(t *testing.T) {
	if r := run(t, scenario(fourNodes, threeSeconds, "redis: {latency: {p50: 20ms, p99: 80ms}}")); r.LocalPct == 0 {
		t.Errorf("%+v", *r)
	}
}

// generous is a store with a fault: it charges a part of what it admits.
type generous struct {
	outage.Central
	admits func(cost int64) (charged int64)
}

// Take implements store.Store.
func (g generous) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	changed := append([]policy.Bound{}, bounds...)
	for i := range changed {
		changed[i].Cost = g.admits(changed[i].Cost)
	}
	return g.Central.Take(ctx, changed, statuses)
}

func TestAStoreOrALeaseThatAdmitsTwiceIsReported(t *testing.T) {
	const text = `
nodes: 4
tenants: [{count: 1}]
load: {for: 2s, rate: 900}
config: {default_tier: a, tiers: [{name: a, limits: [{name: minute, scope: tenant, limit: 1000, window_size: 60}]}]}
`
	for name, admits := range map[string]func(int64) int64{
		"sound":  func(cost int64) int64 { return cost },
		"leases": func(cost int64) int64 { return max(cost/2, 1) },
	} {
		s, err := Parse([]byte(text))
		require.NoError(t, err)
		s.shared = func(shared outage.Central) outage.Central { return generous{shared, admits} }
		r := s.Run()
		if (r.OverTokens == 0) != (name == "sound") || r.Granted == 0 {
			t.Errorf("%s: %d tokens above the bound, %d leased", name, r.OverTokens, r.Granted)
		}
	}
}
