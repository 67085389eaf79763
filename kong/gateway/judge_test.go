package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// verdict is the recorded answer of a Kong 3.9.3 to a config.
type verdict struct {
	N              int
	Schema, Case   string
	Method         string
	Before, Config json.RawMessage
	Status         int
	Body           json.RawMessage
}

func TestConfigsAreValidatedAsByARealKong(t *testing.T) {
	for _, file := range []string{"admin-schema.jsonl", "admin-plugin.jsonl"} {
		for _, line := range verdicts(t, filepath.Join("testdata", file)) {
			t.Run(fmt.Sprintf("%s/%d %s", file, line.N, line.Case), func(t *testing.T) {
				status, body := adminAnswer(t, line)
				want := decoded(t, line.Body)
				if status != line.Status || !reflect.DeepEqual(body, want) {
					t.Errorf("config %s\n got %d %s\nwant %d %s",
						line.Config, status, encoded(t, body), line.Status, encoded(t, want))
				}
			})
		}
	}
}

// verdicts reads recorded answers.
func verdicts(t *testing.T, path string) []verdict {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var all []verdict
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line verdict
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		all = append(all, line)
	}
	require.NoError(t, lines.Err())
	if len(all) < 50 {
		t.Fatalf("%s has only %d lines", path, len(all))
	}
	return all
}

// adminAnswer returns what the Admin API would: the stored config, or the body of the error.
func adminAnswer(t *testing.T, line verdict) (status int, body any) {
	t.Helper()
	info := infoOf(t, line.Schema)
	status, kept, err := request(t, info, line)
	var violation *Violation
	switch {
	case errors.As(err, &violation):
		return 400, decoded(t, []byte(encoded(t, violation)))
	case errors.Is(err, ErrRaised):
		return 500, map[string]any{"message": "An unexpected error occurred"}
	case err != nil:
		t.Fatal(err)
	}
	return status, kept["config"]
}

// request sends a recorded request.
func request(t *testing.T, info *PluginInfo, line verdict) (int, map[string]any, error) {
	t.Helper()
	entity := map[string]any{"name": info.Name}
	if line.Config != nil {
		entity["config"] = decoded(t, line.Config)
	}
	switch line.Method {
	case "PATCH":
		before, err := info.Insert(map[string]any{"name": info.Name, "config": decoded(t, line.Before)})
		if err != nil {
			t.Fatalf("before: %v", err)
		}
		delete(entity, "name")
		kept, err := info.Update(before, entity)
		return 200, kept, err
	case "PUT":
		kept, err := info.Insert(entity)
		return 200, kept, err
	}
	kept, err := info.Insert(entity)
	return 201, kept, err
}

// infoOf returns the plugin info of a recorded schema.
func infoOf(t *testing.T, schema string) *PluginInfo {
	t.Helper()
	dump, err := os.ReadFile(filepath.Join("testdata", "admin-schema", schema+".json"))
	require.NoError(t, err)
	info, err := ParsePluginInfo(dump)
	require.NoError(t, err)
	return info
}

// decoded decodes JSON.
func decoded(t *testing.T, raw []byte) any {
	t.Helper()
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return value
}

// encoded encodes JSON.
func encoded(t *testing.T, value any) string {
	t.Helper()
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(value))
	return out.String()
}
