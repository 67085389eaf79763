package grafana

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/grafanatest"
)

// decode decodes JSON for a schema.
func decode(t *testing.T, text []byte) any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return value
}

// pagesOf returns what Page covers of a dashboard: all of it, and the options and custom fields of each panel, which
// the type of a dashboard leaves open.
func pagesOf(t *testing.T, text []byte) (pages []any) {
	t.Helper()
	page := decode(t, text)
	pages = append(pages, map[string]any{"dashboard": page})
	var typed struct {
		Panels []struct {
			Type        string
			Options     json.RawMessage
			FieldConfig struct {
				Defaults struct{ Custom json.RawMessage }
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &typed))
	for _, p := range typed.Panels {
		pages = append(pages, map[string]any{"options": map[string]any{p.Type: decode(t, p.Options)}})
		if custom := p.FieldConfig.Defaults.Custom; custom != nil {
			pages = append(pages, map[string]any{"custom": map[string]any{p.Type: decode(t, custom)}})
		}
	}
	return pages
}

func TestEveryDashboardHasTheFormThatGrafanaPublishes(t *testing.T) {
	schema := grafanatest.Schema(t)
	forEachDashboard(t, func(t *testing.T, file string, _ *dashboard) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, page := range pagesOf(t, text) {
			if err := schema.Validate(page); err != nil {
				t.Error(err)
			}
		}
		for field, faulty := range map[string]string{
			`"schemaVersion"`: `"schema_version"`, `"gridPos"`: `"grid"`, `"calcs"`: `"calc"`, `"refresh"`: `"refreshes"`,
			`"type": "timeseries"`: `"type": "graph"`, `"editable": true`: `"editable": "yes"`,
		} {
			valid := true
			for _, page := range pagesOf(t, []byte(strings.Replace(string(text), field, faulty, 1))) {
				valid = valid && schema.Validate(page) == nil
			}
			if valid {
				t.Errorf("with %s in place of %s it is valid too", faulty, field)
			}
		}
	})
}

func TestTheSchemaIsThatOfTheGrafanaInCompose(t *testing.T) {
	compose, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	image := "grafana/grafana:" + grafanatest.Version(t) + "\n"
	if !strings.Contains(string(compose), image) {
		t.Errorf("compose starts another Grafana than %s, whose types the dashboards are checked by", image)
	}
}
