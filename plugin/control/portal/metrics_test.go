package portal

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestTheMetricsAreThoseOfTheDocs(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	if _, err := newMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := newMetrics(registry); err == nil {
		t.Error("metrics that are registered already are no error")
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		text += fmt.Sprintf("%s %s {%s}\n    %s\n", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(labels, ","), f.GetHelp())
	}
	const file = "testdata/metrics.golden"
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || text != string(want) {
		t.Errorf("%s differs (%v): run the tests with -update\n%s", file, err, text)
	}
}
