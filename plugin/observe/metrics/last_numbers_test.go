package metrics

import (
	"bytes"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	buckets "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestTheLastNumbersAreOneLineOfAllCountersOfOursThatMoved(t *testing.T) {
	m := withNumbers(of([]buckets.Stats{{
		Name:   "redis:6379",
		Outage: outage.Stats{Waiting: 5, Policies: map[string]outage.Tally{"minute": {Charged: 1 << 50}}},
	}}))
	m.Observe(decided(t, "gold", answered{policy.Policy{Name: "minute", Scope: policy.Tenant}, denies}))
	s := start(t, ServerOptions{Metrics: m})
	s.SetState(Draining)
	s.stop()
	want := map[string]float64{
		`rate_limiter_denials_total{policy="minute",scope="tenant",tier="gold"}`:          1,
		`rate_limiter_requests_total{mode="enforce",result="hard_throttled",tier="gold"}`: 1,
		`rate_limiter_reconciled_tokens_total{outcome="charged",store="redis:6379"}`:      1 << 50,
	}
	got := s.log.lines
	if len(got) != 1 || got[0].Level != "INFO" || got[0].Part != 1 || got[0].Parts != 1 ||
		!maps.Equal(got[0].Counters, want) {
		t.Errorf("logged %+v, want one line with %v", got, want)
	}
}

func TestAProcessThatNeverServedHasNoLastNumbers(t *testing.T) {
	s := start(t, ServerOptions{})
	s.stop()
	assert.Empty(t, s.log.lines, "logged %+v, want nothing", s.log.lines)
}

func TestTheLastNumbersAddUpTenantsAndEndpoints(t *testing.T) {
	m := New("1", Sources{})
	d := decided(t, "gold")
	for i, id := range []string{"a", "b", "a", "c"} {
		d.Identity.Tenant.ID, d.Resolution.Endpoint = id, strconv.Itoa(i)
		m.Observe(d)
	}
	assert.Equal(t, `requests_total{mode="enforce",result="allowed",tier="gold"} 4`+"\n", counted(t, m), "last numbers")
}

func TestLastNumbersThatKongWouldCutOffAreSeveralLines(t *testing.T) {
	const policies = 100
	m := New("1", Sources{})
	for i := range policies {
		m.unavailable.with(strings.Repeat("p", 60) + strconv.Itoa(i)).Inc()
	}
	var lines bytes.Buffer
	s, err := NewServer(ServerOptions{Metrics: m, Log: slog.New(slog.NewJSONHandler(&lines, nil))})
	require.NoError(t, err)
	s.logLast()
	all := strings.SplitAfter(strings.TrimSuffix(lines.String(), "\n"), "\n")
	if numbers := strings.Count(lines.String(), "unavailable_total{"); len(all) < 2 || numbers != policies {
		t.Errorf("%d numbers on %d lines, want all %d on several", numbers, len(all), policies)
	}
	for _, line := range all {
		assert.True(t, len(line) <= 3500, "a line has %d bytes", len(line))
	}
}
