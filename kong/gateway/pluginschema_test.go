package gateway

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// withoutNulls drops the nulls of objects at every depth.
func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, item := range v {
			if item != nil {
				out[name] = withoutNulls(item)
			}
		}
		return out
	case []any:
		for i, item := range v {
			v[i] = withoutNulls(item)
		}
	}
	return value
}

// completedOtherwise has recorded cases by name, and what a real Kong does with their configs that this one does not.
var completedOtherwise = map[string]string{
	"integer 10^14+1":                          "stores numbers with 14 digits",
	"integer 999999999999999":                  "stores numbers with 14 digits",
	"number of many digits":                    "stores numbers with 14 digits",
	"duplicate trusted_headers":                "drops the duplicates of a set",
	"vault reference in a referenceable field": "stores the reference, and resolves it later",
	"broken vault reference":                   "stores the reference, and resolves it later",
}

func TestConfigsAreCompletedAsByARealKong(t *testing.T) {
	const folder = "../../schema/testdata/kong/"
	completed := 0
	for _, file := range []string{"admin-schema.jsonl", "admin-plugin.jsonl"} {
		recorded, err := os.ReadFile(folder + file)
		require.NoError(t, err)
		for line := range bytes.Lines(recorded) {
			var verdict struct {
				Schema, Case, Method string
				Config, Body         map[string]any
				Status               int
			}
			if json.Unmarshal(line, &verdict) != nil || verdict.Status >= 300 || verdict.Method == "PATCH" ||
				completedOtherwise[verdict.Case] != "" {
				continue
			}
			dump, err := os.ReadFile(folder + "admin-schema/" + verdict.Schema + ".json")
			require.NoError(t, err)
			info, err := ParsePluginInfo(dump)
			require.NoError(t, err)
			got, faults := info.complete(&PluginConfig{Config: verdict.Config})
			if want := withoutNulls(verdict.Body); faults != nil || !reflect.DeepEqual(any(got), want) {
				t.Errorf("%s: %s: %v\n got %v\nwant %v", verdict.Schema, verdict.Case, faults, got, want)
			}
			completed++
		}
	}
	require.Greater(t, completed, 70)
}
