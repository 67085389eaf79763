package promtest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
)

// startExporter serves one metric and returns its address.
func startExporter(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `lamps{room="hall"} 3`)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestAPrometheusScrapesItsTargetsAndEvaluatesItsRules(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yml")
	text := "groups: [{name: house, rules: [{alert: Bright, expr: lamps > 2}, {alert: Dark, expr: lamps == 0}]}]"
	require.NoError(t, os.WriteFile(rules, []byte(text), 0o600))
	target := startExporter(t)
	s := promtest.Start(t, promtest.Config{
		Job: "house", Targets: []string{target}, Rules: []string{rules}, Interval: 100 * time.Millisecond,
	})
	await.NoError(t, "Prometheus", func() error {
		samples, err := s.Query(`lamps * 2`)
		if err != nil || len(samples) != 1 {
			return fmt.Errorf("samples %v (%w), want one", samples, err)
		}
		labels := samples[0].Metric
		if samples[0].Value != 6 || labels["instance"] != model.LabelValue(target) || labels["job"] != "house" {
			return fmt.Errorf("samples %v", samples)
		}
		return nil
	})
	await.NoError(t, "Prometheus", func() error {
		rules, err := s.Rules()
		if err != nil || len(rules) != 2 {
			return fmt.Errorf("rules %+v (%w), want two", rules, err)
		}
		if rules[0].State != "firing" || rules[1].State != "inactive" || rules[1].Health != "ok" {
			return fmt.Errorf("rules %+v", rules)
		}
		return nil
	})
	if samples, err := s.Query(`1 + 1`); err != nil || len(samples) != 1 || samples[0].Value != 2 {
		t.Errorf("1 + 1 is %v (%v)", samples, err)
	}
	if _, err := s.Query(`rate(lamps)`); err == nil || !strings.Contains(err.Error(), "range vector") {
		t.Errorf("a faulty expression has the error %v", err)
	}
}
