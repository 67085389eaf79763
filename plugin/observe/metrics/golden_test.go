package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	buckets "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// full is metrics that have something in every family.
func full(t *testing.T) *Metrics {
	t.Helper()
	m := New("0.1.0", everySource())
	daily := policy.Policy{Name: "daily", Scope: policy.Tenant, FailMode: policy.FailClosed}
	m.Observe(busy(t))
	banned := decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, admits})
	banned.Resolution.Banned = true
	m.Observe(banned)
	m.Observe(decided(t, "gold", answered{daily, denies}))
	m.Observe(decided(t, "gold", answered{daily, unanswered}))
	m.Observe(decided(t, "gold", answered{daily, decision.Status{Source: decision.FairShare, Wait: limit.Second}}))
	exempt := decided(t, "gold")
	exempt.Resolution.Exemption.By = "tenant"
	exempt.RecordExemption()
	m.Observe(exempt)
	m.CountUsageAnswer(200)
	m.Settlements().Reserved(&policy.Bound{Policy: &daily, Cost: 100})
	m.Settlements().Settled(&policy.Bound{Policy: &daily, Cost: 100}, reservation.Settlement{Actual: 30, Change: -70})
	m.Settlements().Settled(&policy.Bound{Policy: &daily, Cost: 100}, reservation.Settlement{
		Actual: 100, Call: &settle.Call{Model: "gpt-4o", Prompt: 70, Completion: 30, MicroUSD: 475},
	})
	return m
}

// published describes all families of ours: name, type and labels on one line, help on the next.
func published(t *testing.T, m *Metrics) string {
	t.Helper()
	families, err := m.Gather()
	require.NoError(t, err)
	var text strings.Builder
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		var labels []string
		for _, label := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		fmt.Fprintf(&text, "%s %s {%s}\n    %s\n",
			f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ","), f.GetHelp())
	}
	return text.String()
}

func TestEveryPublishedMetricIsAsDocumented(t *testing.T) {
	m := full(t)
	got := published(t, m)
	golden.Check(t, filepath.Join("testdata", "metrics.golden"), got)
	for _, name := range described(m) {
		assert.True(t, strings.Contains(got, name+" "), "%s is registered, and not in the golden list", name)
	}
	others, err := filepath.Glob("../../leader/*/testdata/metrics.golden")
	require.NoError(t, err)
	for _, file := range append(others, "../../events/relay/testdata/metrics.golden",
		"../../events/webhook/sender/testdata/metrics.golden") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		got += string(text)
	}
	for name := range help {
		assert.Contains(t, got, prefix+name+" ", "only help has it")
	}
}

// described are the names of all families of ours that are registered, whether they have series or not.
func described(m *Metrics) []string {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descriptions)
		close(descriptions)
	}()
	name := regexp.MustCompile(`fqName: "(` + prefix + `\w+)"`)
	var names []string
	for d := range descriptions {
		if match := name.FindStringSubmatch(d.String()); match != nil {
			names = append(names, match[1])
		}
	}
	return names
}

func TestNamesAndHelpFollowPrometheusConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(full(t))
	require.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestNumbersThatOthersKeepAreReadAtEveryScrape(t *testing.T) {
	const want = `abandoned_settlements_total 88
answered_limits_total{by="lease",store="redis:6379"} 61
answered_limits_total{by="memory",store="redis:6379"} 62
answered_limits_total{by="redis",store="redis:6379"} 63
candidate_dropped_total{reason="queue"} 113
candidate_enforced_total{result="admitted"} 109
candidate_enforced_total{result="denied"} 110
candidate_report_failures_total 114
candidate_requests_total{result="admitted",set="active"} 105
candidate_requests_total{result="admitted",set="candidate"} 107
candidate_requests_total{result="denied",set="active"} 106
candidate_requests_total{result="denied",set="candidate"} 108
config_faults_total 7
degraded_seconds_total{store="redis:6379"} 21.5
denial_events_dropped_total{reason="queue",sink="file"} 52
denial_events_total{sink="file"} 51
events_total 1000
fair_share_failed_exchanges_total 104
foreign_values_total{store="redis:6379"} 25
lease_failures_total{store="redis:6379"} 71
lease_refunds_total{store="redis:6379"} 65
lease_renewals_total{store="redis:6379"} 64
leased_tokens_total{outcome="expired",store="redis:6379"} 70
leased_tokens_total{outcome="granted",store="redis:6379"} 67
leased_tokens_total{outcome="returned",store="redis:6379"} 69
leased_tokens_total{outcome="spent",store="redis:6379"} 68
local_buckets_evicted_total 13
local_buckets_expired_total 12
log_lines_total{level="error"} 55
log_lines_total{level="warn"} 54
lost_refunds_total{store="redis:6379"} 27
lost_settlements_total{store="redis:6379"} 84
meta_limit_denials_total 8
new_addresses_total{by="local",store="redis:6379"} 75
new_addresses_total{by="own",store="redis:6379"} 73
new_addresses_total{by="prefix",store="redis:6379"} 74
panics_total 4
questions_total 2001
reconciled_tokens_total{outcome="charged",store="redis:6379"} 23
reconciled_tokens_total{outcome="written_off",store="redis:6379"} 24
redis_round_trips_total{store="redis:6379"} 28
settled_elsewhere_total 87
snapshot_catch_ups_total 35
snapshot_loads_total 34
snapshot_saves_total 36
taken_keys_total{store="redis:6379"} 26
undecided_total 5
unknown_instances_total 6
unknown_reservations_total 82
unrecorded_reservations_total 86
unreserved_requests_total 83
usage_batches_dropped_total{reason="room"} 92
usage_batches_total 91
usage_counts_dropped_total 97
usage_report_failures_total 93
writes_total 1002
`
	m := New("0.1.0", everySource())
	got := counted(t, m)
	assert.True(t, got == want, "counters are\n%s\nwant\n%s", got, want)
	const gauges = `
# HELP rate_limiter_active_overrides Overrides in force, by what they do: ban, exempt, limit (a commercial override changes a limit), penalty (a detector's lowers one).
# TYPE rate_limiter_active_overrides gauge
rate_limiter_active_overrides{override_type="ban"} 41
rate_limiter_active_overrides{override_type="exempt"} 42
rate_limiter_active_overrides{override_type="limit"} 43
rate_limiter_active_overrides{override_type="penalty"} 44
# HELP rate_limiter_candidate_age_seconds Age of the open candidate; 0: none is open, or it was read from a file.
# TYPE rate_limiter_candidate_age_seconds gauge
rate_limiter_candidate_age_seconds 116.5
# HELP rate_limiter_degraded 1 while the shared store, or a part of it, does not answer and fail modes decide; else 0.
# TYPE rate_limiter_degraded gauge
rate_limiter_degraded{store="redis:6379"} 1
# HELP rate_limiter_denial_queue_depth Events about denials that wait to be written, by sink.
# TYPE rate_limiter_denial_queue_depth gauge
rate_limiter_denial_queue_depth{sink="file"} 53
# HELP rate_limiter_denial_sink_failing 1 if the last write of a sink of denials failed, else 0.
# TYPE rate_limiter_denial_sink_failing gauge
rate_limiter_denial_sink_failing{sink="file"} 1
# HELP rate_limiter_instances Plugin configs served now.
# TYPE rate_limiter_instances gauge
rate_limiter_instances 3
# HELP rate_limiter_lease_tokens_out Tokens that this node has on lease.
# TYPE rate_limiter_lease_tokens_out gauge
rate_limiter_lease_tokens_out{store="redis:6379"} 66
# HELP rate_limiter_leases Limits of which this node has a lease.
# TYPE rate_limiter_leases gauge
rate_limiter_leases{store="redis:6379"} 72
# HELP rate_limiter_limit Tokens per window that a policy allows in a tier, before overrides; the fewest if configs differ.
# TYPE rate_limiter_limit gauge
rate_limiter_limit{policy="minute",tier="gold"} 600
rate_limiter_limit{policy="shared",tier="(none)"} 9000
# HELP rate_limiter_live_nodes Nodes that share the namespace's buckets, this one included, as last counted.
# TYPE rate_limiter_live_nodes gauge
rate_limiter_live_nodes{namespace="default",store="redis:6379"} 3
rate_limiter_live_nodes{namespace="eu",store="redis:6379"} 2
# HELP rate_limiter_local_buckets Buckets kept in this process now.
# TYPE rate_limiter_local_buckets gauge
rate_limiter_local_buckets 11
# HELP rate_limiter_waiting_requests Requests that wait for the shared store.
# TYPE rate_limiter_waiting_requests gauge
rate_limiter_waiting_requests{store="redis:6379"} 22
`
	names := []string{
		"active_overrides", "candidate_age_seconds", "degraded", "denial_queue_depth", "denial_sink_failing", "instances",
		"lease_tokens_out", "leases", "limit", "live_nodes", "local_buckets", "waiting_requests",
	}
	for i := range names {
		names[i] = prefix + names[i]
	}
	assert.NoError(t, testutil.GatherAndCompare(m, strings.NewReader(gauges), names...))
}

func TestStoresOfOneNameCountAsOne(t *testing.T) {
	m := withNumbers(of([]buckets.Stats{
		{
			Name: "redis:6379", DegradedFor: 3 * time.Second, Redis: redis.Stats{Foreign: 1},
			Outage: outage.Stats{
				Live: map[string]int{"default": 2}, Policies: map[string]outage.Tally{"minute": {Charged: 10}},
			},
			Lease: lease.Stats{FromLease: 5, Tokens: lease.Tokens{Granted: 6}}, Addresses: addresses.Stats{Prefix: 9},
		},
		{Name: "other:6379", Redis: redis.Stats{Taken: 5}},
		{
			Name: "redis:6379", DegradedFor: 4 * time.Second, Degraded: true, Redis: redis.Stats{Foreign: 2},
			Outage: outage.Stats{
				Live: map[string]int{"default": 3, "eu": 1}, Policies: map[string]outage.Tally{"minute": {WrittenOff: 20}},
			},
			Lease: lease.Stats{FromLease: 7, Tokens: lease.Tokens{Spent: 4}}, Addresses: addresses.Stats{Prefix: 8},
		},
	}))
	const want = `answered_limits_total{by="lease",store="redis:6379"} 12
degraded_seconds_total{store="redis:6379"} 4
foreign_values_total{store="redis:6379"} 3
leased_tokens_total{outcome="granted",store="redis:6379"} 6
leased_tokens_total{outcome="spent",store="redis:6379"} 4
new_addresses_total{by="prefix",store="redis:6379"} 17
reconciled_tokens_total{outcome="charged",store="redis:6379"} 10
reconciled_tokens_total{outcome="written_off",store="redis:6379"} 20
taken_keys_total{store="other:6379"} 5
`
	got := counted(t, m)
	assert.True(t, got == want, "counters are\n%s\nwant\n%s", got, want)
	const nodes = `namespace="default" store="redis:6379" 3
namespace="eu" store="redis:6379" 1`
	assert.Equal(t, nodes, samples(t, m, "live_nodes"))
	assert.Equal(t, `store="other:6379" 0`+"\n"+`store="redis:6379" 1`, samples(t, m, "degraded"))
}
