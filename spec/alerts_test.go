package spec

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// scraped is the scrape interval of Prometheus, and rated the range of rates, which tolerates missed scrapes.
const (
	scraped = time.Second
	rated   = "10s"
)

// everyKind has routes with limits of every mode and fail mode. For a busy tenant some warn, some deny, and a shadow
// would deny. Another tenant is exempt. One limit settles.
const everyKind = `
  - {name: records, paths: [/records], plugins: [{name: key-auth},
      {name: tenant-rate-limiting, config: {strategy: redis, redis: {host: %[1]s, port: %[2]d, %[3]s},
      exempt: [{tenant: gamma}], tiers: [{name: enterprise, limits: [
        {name: daily, scope: tenant, limit: 1000000, window_size: 86400, algorithm: fixed_window, fail_mode: open},
        {name: burst, scope: tenant, limit: 6, window_size: 6, soft_threshold_pct: 50, fail_mode: local},
        {name: trial, scope: tenant, limit: 1, window_size: 60, mode: shadow}]}, {name: essentials}]}}]}
  - {name: search, paths: [/search], plugins: [{name: key-auth}, {name: tenant-rate-settling},
      {name: tenant-rate-limiting, config: {strategy: redis, redis: {host: %[1]s, port: %[2]d, %[3]s},
      tiers: [{name: enterprise,
          limits: [{name: strict, scope: tenant+endpoint, limit: 1000, window_size: 1, fail_mode: closed},
            {name: egress, scope: tenant, limit: 1000000000, window_size: 86400, algorithm: fixed_window,
              settle: {sources: [{from: log.response.size}], reserve: 500}}]}],
      global: {limits: [{name: platform, scope: global, limit: 10, window_size: 1, mode: shadow, fair: {}}]}}}]}`

// panelQuery is one expression of a dashboard with values for its variables.
type panelQuery struct {
	panel, expression string
	legend            []string // the labels that name its series
}

// ofServe matches the metrics that only ratelimit serve publishes, or nodes with an open candidate.
var ofServe = regexp.MustCompile(
	`rate_limiter_(abuse_|candidate_|envoy_|forward_|portal_|quota_|topic_|webhook_|usage_leader|usage_unpacked_)`)

// panelQueries returns all expressions of all dashboards, with the default values of their variables. It leaves out
// those about ratelimit serve, which is not there.
func panelQueries(t *testing.T) []panelQuery {
	t.Helper()
	files, err := filepath.Glob("../kong/grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	var all []panelQuery
	chosen := strings.NewReplacer("$__rate_interval", rated, "$__range", "1m", "$top", "10",
		"$org", ".*", "$endpoint", ".*", "$instance", ".*")
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		type panel struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
			Panels  []panel // of a collapsed row
		}
		var page panel
		if err := json.Unmarshal(text, &page); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		panels := page.Panels
		for _, row := range page.Panels {
			panels = append(panels, row.Panels...)
		}
		for _, p := range panels {
			for _, target := range p.Targets {
				if ofServe.MatchString(target.Expr) {
					continue
				}
				q := panelQuery{panel: filepath.Base(file) + ": " + p.Title, expression: chosen.Replace(target.Expr)}
				for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
					q.legend = append(q.legend, label[1])
				}
				all = append(all, q)
			}
		}
	}
	return all
}

// watchtower is a node under load with a Prometheus that scrapes it.
type watchtower struct {
	*governed
	redis      *redistest.Server
	prometheus *promtest.Server
	alerts     int          // in the file of rules
	pending    []panelQuery // without data so far
}

// startWatchtower starts Redis, Postgres with an override and a ban, the node, Prometheus and the load. The alerts fire
// without delay; the tests of the rules cover the delays.
func startWatchtower(t *testing.T) *watchtower {
	t.Helper()
	server := pgtest.Start(t)
	dsn := server.Database(t)
	g := &governed{
		t: t, server: server, dsn: dsn, rows: pgtest.Pool(t, dsn), saved: t.TempDir(),
		metrics: freeport.Address(t),
	}
	redis := redistest.Single(t)
	g.override("kind, tenant, policy, \"limit\", permanent", "'custom_limit', 'acme', 'daily', 2000000, true")
	g.override("kind, tenant, expires_at", "'ban', 'beta', clock_timestamp() + interval '1 h'")
	g.node = start(t, deckOf(fmt.Sprintf(everyKind, redis.Host, redis.Port, patience)),
		atDatabase(dsn, g.saved, g.metrics),
		recorded(filepath.Join(t.TempDir(), "denials")), withCompanion)
	rules, err := os.ReadFile("../kong/prometheus/rules.yml")
	require.NoError(t, err)
	prompt := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(prompt, regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAll(rules, nil), 0o600))
	w := &watchtower{
		governed: g, redis: redis, alerts: strings.Count(string(rules), "- alert: "),
		pending: panelQueries(t),
	}
	w.prometheus = promtest.Start(t, promtest.Config{
		Job: "tenant-rate-limiting", Targets: []string{g.metrics}, Rules: []string{prompt}, Interval: scraped,
	})
	w.load(t)
	return w
}

// withCompanion is an option of start: the companion plugin runs in the plugin server's process.
func withCompanion(o *gateway.Options) {
	o.Servers = append(o.Servers, gateway.PluginServer{
		Query: []string{plugin(), "-dump-settling"}, Socket: "tenant-rate-settling.socket",
	})
}

// load sends requests until the end of the test.
func (w *watchtower) load(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	var drivers sync.WaitGroup
	t.Cleanup(func() { stop(); drivers.Wait() })
	calls := [][2]string{{"/records", "alice"}, {"/records", "beth"}, {"/records", "gus"}, {"/search", "beth"}}
	for range 10 { // shares need more than 8 requests a second, also on a busy machine
		calls = append(calls, [2]string{"/search", "alice"})
	}
	for _, call := range calls {
		drivers.Go(func() {
			pace := time.NewTicker(100 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				<-pace.C
				if _, err := w.send("GET", call[0], "apikey", call[1]); err != nil {
					t.Errorf("a request got no answer: %v", err)
					return
				}
			}
		})
	}
}

// query repeats the pending queries, and keeps those without data.
func (w *watchtower) query() {
	w.t.Helper()
	w.pending = slices.DeleteFunc(w.pending, func(q panelQuery) bool {
		samples, err := w.prometheus.Query(q.expression)
		if err != nil {
			w.t.Errorf("%s: %v", q.panel, err)
			return true
		}
		samples = slices.DeleteFunc(samples, func(s *model.Sample) bool { return math.IsNaN(float64(s.Value)) })
		for _, s := range samples {
			for _, label := range q.legend {
				if s.Metric[model.LabelName(label)] == "" {
					w.t.Errorf("%s: the legend needs the label %s, the result has %v", q.panel, label, s.Metric)
					return true
				}
			}
		}
		return len(samples) > 0
	})
}

// isOutage reports whether a query has data only while Redis is unavailable.
func (q panelQuery) isOutage() bool {
	return strings.Contains(q.expression, "rate_limiter_unverified_total") ||
		strings.Contains(q.expression, "rate_limiter_unavailable_total")
}

// awaitData waits until all wanted queries have had data.
func (w *watchtower) awaitData(wanted func(panelQuery) bool) {
	w.t.Helper()
	deadline, tick := time.After(longest), time.NewTicker(scraped)
	defer tick.Stop()
	for slices.ContainsFunc(w.pending, wanted) {
		select {
		case <-deadline:
			for _, q := range w.pending {
				if wanted(q) {
					w.t.Errorf("%s has no data: %s", q.panel, q.expression)
				}
			}
			return
		case <-tick.C:
			w.query()
		}
	}
}

// states returns the states of all alerts by name. It fails the test if a rule has failed.
func (w *watchtower) states() map[string]string {
	w.t.Helper()
	rules, err := w.prometheus.Rules()
	require.NoError(w.t, err)
	states := map[string]string{}
	for _, r := range rules {
		if r.Health == "err" {
			w.t.Fatalf("the rule %s fails: %s", r.Name, r.Error)
		}
		if r.Health == "ok" {
			states[r.Name] = r.State
		}
	}
	return states
}

func TestEveryPanelShowsDataOfANodeAndAlertsFireWhenRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	w := startWatchtower(t)
	w.awaitData(func(q panelQuery) bool { return !q.isOutage() })
	away := []string{"RateLimiterDegraded", "RateLimiterUnverifiedAdmissions"}
	for _, alert := range away {
		if state := w.states()[alert]; state != "inactive" {
			t.Errorf("%s is %q while Redis answers", alert, state)
		}
	}
	w.redis.Kill()
	w.awaitData(panelQuery.isOutage)
	await.That(t, "the alerts about a Redis that is unavailable", func() bool {
		states := w.states()
		return !slices.ContainsFunc(away, func(alert string) bool { return states[alert] != "firing" })
	})
	if got := len(w.states()); got != w.alerts || got == 0 {
		t.Errorf("%d alerts are evaluated, want %d", got, w.alerts)
	}
}
