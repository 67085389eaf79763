package grafana

import (
	"os"
	"testing"

	"gopkg.in/yaml.v3"
)

// provisioning is the part of Grafana's provisioning files that the tests need.
type provisioning struct {
	APIVersion  int `yaml:"apiVersion"`
	Datasources []struct {
		Name, UID, Type, URL string
		IsDefault            bool `yaml:"isDefault"`
	}
	Providers []struct {
		Name, Type string
		Options    struct{ Path string }
	}
}

func TestGrafanaOfComposeReadsTheDashboardsAndPrometheus(t *testing.T) {
	read := func(file string) (p provisioning) {
		t.Helper()
		text, err := os.ReadFile("provisioning/" + file)
		if err == nil {
			err = yaml.Unmarshal(text, &p)
		}
		if err != nil || p.APIVersion != 1 {
			t.Fatalf("%s: version %d, %v", file, p.APIVersion, err)
		}
		return p
	}
	sources := read("datasources/prometheus.yml").Datasources
	if len(sources) != 1 || sources[0].Type != "prometheus" || !sources[0].IsDefault {
		t.Errorf("data sources %+v, want one Prometheus", sources)
	}
	providers := read("dashboards/rate-limiter.yml").Providers
	if len(providers) != 1 || providers[0].Type != "file" || providers[0].Options.Path != "/etc/grafana/dashboards" {
		t.Errorf("providers %+v, want the folder that docker-compose.yml mounts", providers)
	}
	forEachDashboard(t, func(t *testing.T, _ string, page *dashboard) {
		for _, variable := range page.Templating.List {
			if variable.Type == "datasource" && variable.Query == sources[0].Type {
				return
			}
		}
		t.Error("no variable selects the data source")
	})
}
