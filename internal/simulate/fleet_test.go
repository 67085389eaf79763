package simulate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
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
	threeSeconds = "load: [{for: 3s, rate: 1200}]"
)

func TestTheSameSeedGivesTheSameReport(t *testing.T) {
	text := func(seed int) string {
		return fmt.Sprintf(`
seed: %d
nodes: 5
redis: {masters: 3}
tenants: [{count: 300, zipf: 1}]
load: [{for: 4s, rate: 500}]
faults: [{at: 1s, kind: redis_away, for: 1s, master: 2}, {at: 2s, kind: node_dies, node: 2, for: 1s}]
config: {default_tier: a, tiers: [{name: a, limits: [{name: m, scope: tenant, limit: 3000, window_size: 60}]}]}
`, seed)
	}
	var reports []string
	for _, seed := range []int{7, 7, 8} {
		report, err := json.Marshal(run(t, text(seed)))
		require.NoError(t, err)
		reports = append(reports, string(report))
	}
	if reports[0] != reports[1] || reports[0] == reports[2] {
		t.Errorf("two runs with seed 7 and one with seed 8 report\n%s", strings.Join(reports, "\n"))
	}
}

func TestWithoutFaultsNothingAboveTheBoundIsAdmitted(t *testing.T) {
	for _, lines := range [][]string{
		{"nodes: 1", threeSeconds},
		{fourNodes, threeSeconds},
		{fourNodes, threeSeconds, "lease_share: 0"},
		{fourNodes, threeSeconds, "lease_share: 5", "redis: {masters: 3, latency: {p50: 2ms, p99: 5ms}}"},
	} {
		r := run(t, scenario(lines...))
		if r.OverTokens != 0 || !r.WithinDocs || r.Offered == 0 || r.Denied == 0 || r.Admitted+r.Denied != r.Offered {
			t.Errorf("%q: %d of %d admitted, %d denied, %d tokens above the bound, want none",
				lines, r.Admitted, r.Offered, r.Denied, r.OverTokens)
		}
		if r.UnderPct > 2 {
			t.Errorf("%q: %.2f %% fewer were admitted than an ideal limiter does, want 2 %% at most", lines, r.UnderPct)
		}
	}
}

func TestLeasesSaveCommandsAndWaits(t *testing.T) {
	leased, exact := run(t, scenario(fourNodes, threeSeconds)), run(t, scenario(fourNodes, threeSeconds, "lease_share: 0"))
	if leased.RedisOps >= exact.RedisOps || leased.FromLeasePct <= exact.FromLeasePct || exact.Leases.Granted != 0 {
		t.Errorf("%.0f commands/s with leases and %.0f without, %.1f %% and %.1f %% decided without a call",
			leased.RedisOps, exact.RedisOps, leased.FromLeasePct, exact.FromLeasePct)
	}
	if e := leased.Leases; e.EfficiencyPct < 90 || e.Granted < e.Spent+e.Returned+e.Expired {
		t.Errorf("of leased tokens became %+v", e)
	}
}

func TestAnOutageIsBoundedByTheShareOfNodes(t *testing.T) {
	r := run(t, scenario(fourNodes, threeSeconds, "faults: [{at: 500ms, kind: redis_away, for: 500ms, loses_data: true}]"))
	if r.LocalPct == 0 || r.Outage.Unverified == 0 || r.Outage.Charged == 0 || !r.WithinDocs {
		t.Errorf("%.1f %% local, %+v, within the docs: %v, %+v", r.LocalPct, r.Outage, r.WithinDocs, r.Policies)
	}
	degraded := slices.MaxFunc(r.Timeline, func(a, b Point) int { return a.Degraded - b.Degraded })
	if degraded.Degraded != 4 || r.Timeline[len(r.Timeline)-1].Degraded != 0 {
		t.Errorf("%d nodes are degraded at most and %d at the end, want 4 and 0",
			degraded.Degraded, r.Timeline[len(r.Timeline)-1].Degraded)
	}
}

func TestALatencyAboveTheTimeoutCountsAsAnOutage(t *testing.T) {
	r := run(t, scenario(fourNodes, threeSeconds, "redis: {latency: {p50: 20ms, p99: 80ms}}"))
	if r.LocalPct == 0 || !r.WithinDocs || r.Policies[0].Documented == 0 {
		t.Errorf("%.2f %% local, %+v", r.LocalPct, r.Policies)
	}
}

func TestNoCallLastsLongerThanTheTimeout(t *testing.T) {
	r := run(t, scenario(fourNodes, "load: [{for: 2s, rate: 600}]", "lease_share: 0",
		"faults: [{at: 500ms, kind: redis_slow, for: 1s, by: 3s}]"))
	const timeout = 50 // ms, the default of redis.read_timeout
	if r.LocalPct == 0 || r.WaitP999 < timeout/2 || r.WaitP999 > timeout*1.1 || !r.WithinDocs {
		t.Errorf("%.1f %% local, 99.9 %% wait for %.0f ms at most, within the docs: %v", r.LocalPct, r.WaitP999, r.WithinDocs)
	}
}

func TestNodesThatFailClosedDenyWhileRedisHangs(t *testing.T) {
	closed := strings.Replace(scenario(fourNodes, threeSeconds), "default_tier", "fail_mode: closed, default_tier", 1)
	r := run(t, closed+"\nfaults: [{at: 1s, kind: redis_hangs, for: 1s}]")
	if r.OverTokens != 0 || r.Outage.Unverified != 0 || r.UnderPct < 10 {
		t.Errorf("%d tokens above the bound, %d unverified, %.1f %% fewer than ideal", r.OverTokens, r.Outage.Unverified,
			r.UnderPct)
	}
}

func TestAStepOfTheMastersClockGivesBackWhatItSkips(t *testing.T) {
	r := run(t, scenario(fourNodes, threeSeconds, "faults: [{at: 2s, kind: clock_step, master: 1, by: 10s}]"))
	if r.OverTokens == 0 || !r.WithinDocs {
		t.Errorf("%d tokens above the bound, within the docs: %v", r.OverTokens, r.WithinDocs)
	}
	r = run(t, scenario(fourNodes, threeSeconds, "faults: [{at: 2s, kind: clock_step, node: 1, by: 10s}]"))
	if r.OverTokens != 0 {
		t.Errorf("a step of a node's clock admits %d tokens above the bound, want none", r.OverTokens)
	}
}

func TestANodeThatDiesLosesItsLeasesAndItsRequests(t *testing.T) {
	r := run(t, scenario(fourNodes, threeSeconds, "redis: {latency: {p50: 20ms, p99: 25ms}}",
		"faults: [{at: 1s, kind: node_dies, node: 2, for: 1s}, {at: 2s, kind: node_dies, node: 1, for: 1h}]"))
	if r.OverTokens != 0 || r.Lost == 0 || r.Admitted+r.Denied+r.Lost != r.Offered {
		t.Errorf("%d tokens above the bound, %d requests lost, %d + %d decided of %d",
			r.OverTokens, r.Lost, r.Admitted, r.Denied, r.Offered)
	}
}

func TestCommandsQueueAtAMasterThatIsBusy(t *testing.T) {
	busy := strings.Replace(scenario(fourNodes), "count: 20, zipf: 1", "count: 20", 1)
	r := run(t, busy+"\nlease_share: 0\nload: [{for: 50ms, rate: 130000}]")
	if m := r.Busiest(); m.CPUPct < 80 || m.Queue < 1 || r.WaitP99 < 1 {
		t.Errorf("busy for %.0f %%, the longest queue %.2f ms, 99th percentile %.2f ms", m.CPUPct, m.Queue, r.WaitP99)
	}
}
