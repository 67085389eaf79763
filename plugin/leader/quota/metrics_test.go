package quota_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/quota"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestNoticesAreCountedByThreshold(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.spend("globex", "a", 90, 0)
	w.spend("initech", "a", 50, 0)
	if _, err := w.lead(true); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.watcher)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text, counts := "", map[string]float64{}
	for _, f := range families {
		label := ""
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				label = l.GetName()
				counts[l.GetValue()] = m.GetCounter().GetValue()
			}
			if at := m.GetGauge().GetValue(); m.GetGauge() != nil && (at < float64(time.Now().Add(-time.Hour).Unix())) {
				t.Errorf("%s is %v, want the time of the check", f.GetName(), at)
			}
		}
		text += fmt.Sprintf("%s %s {%s}\n    %s\n", f.GetName(), strings.ToLower(f.GetType().String()), label, f.GetHelp())
	}
	if fmt.Sprint(counts) != "map[100:0 50:1 80:2]" {
		t.Errorf("the counts are %v", counts)
	}
	golden.Check(t, "testdata/metrics.golden", text)
}

func TestNoticesHaveThePublishedForm(t *testing.T) {
	published, err := jsonschema.NewCompiler().Compile("../../../schema/quota_threshold.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	at := noon.Add(time.Hour)
	full := quota.Notice{
		Version: 1, Tenant: "=cmd,\"b\"\n", Policy: "daily", Endpoint: "POST /a/{id}", Threshold: 80, Limit: 100, Used: 85,
		WindowStart: noon, WindowEnd: noon.AddDate(0, 0, 1), ExhaustedAt: &at, Late: true,
	}
	w := newWorld(t, daily(100), schema.Limit{Name: "each", Scope: "tenant+endpoint", Limit: 100, WindowSize: 3600})
	w.spend("acme", "a", 80, 0)
	if _, err := w.lead(true); err != nil {
		t.Fatal(err)
	}
	for _, n := range append(w.events, full) {
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
		if err == nil {
			err = published.Validate(value)
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if len(w.events) != 2 {
		t.Errorf("%d events, want 2", len(w.events))
	}
}

func TestTheIDOfANoticeNamesItsTenantPolicyEndpointWindowAndThreshold(t *testing.T) {
	n := quota.Notice{Tenant: "acme", Policy: "daily", Threshold: 80, Limit: 100, Used: 85, WindowStart: noon}
	ids := map[string]bool{n.ID(): true}
	for _, change := range []func(*quota.Notice){
		func(n *quota.Notice) { n.Tenant = "globex" },
		func(n *quota.Notice) { n.Policy = "hourly" },
		func(n *quota.Notice) { n.Endpoint = "a" },
		func(n *quota.Notice) { n.WindowStart = noon.Add(time.Hour) },
		func(n *quota.Notice) { n.WindowEnd = noon.Add(time.Hour) },
		func(n *quota.Notice) { n.Threshold = 100 },
	} {
		other := n
		change(&other)
		ids[other.ID()] = true
	}
	same := n
	same.Used, same.Limit, same.Late = 99, 110, true
	if len(ids) != 7 || same.ID() != n.ID() {
		t.Errorf("the ids are %v and %s", ids, same.ID())
	}
}
