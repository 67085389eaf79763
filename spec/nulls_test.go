package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// schemaField is a field of a Kong schema, as far as it says where a config may have a null.
type schemaField struct {
	Type     string
	Fields   []map[string]schemaField
	Elements *schemaField
}

// nulls calls visit with every field of a record in turn, and with a config in which this field is null and all around
// it is there. wrap puts a record into such a config.
func (f *schemaField) nulls(path string, wrap func(record any) any, visit func(path string, config any)) {
	for _, named := range f.Fields {
		for name, inner := range named {
			at := path + "." + name
			with := func(value any) any { return wrap(map[string]any{name: value}) }
			visit(at, with(nil))
			switch {
			case inner.Type == "record":
				inner.nulls(at, with, visit)
			case inner.Elements != nil && inner.Elements.Type == "record":
				inner.Elements.nulls(at+"[0]", func(record any) any { return with([]any{record}) }, visit)
			}
		}
	}
}

func TestValidateFindsTheNullsThatKongDenies(t *testing.T) {
	t.Parallel()
	info, err := gateway.QueryPlugin(t.Context(), plugin())
	require.NoError(t, err)
	var entity schemaField
	require.NoError(t, json.Unmarshal(info.Schema, &entity))
	folder := t.TempDir()
	var files, paths []string
	denied := map[string]bool{} // by path
	entity.nulls("", func(record any) any { return record }, func(path string, config any) {
		if path == ".protocols" {
			return
		}
		path = path[1:]
		given := config.(map[string]any)
		given["name"] = info.Name
		text, err := json.Marshal(map[string]any{"plugins": []any{given}})
		require.NoError(t, err)
		file := filepath.Join(folder, fmt.Sprintf("%d.yml", len(files)))
		require.NoError(t, os.WriteFile(file, text, 0o600))
		var violation *gateway.Violation
		if _, err := info.Insert(given); errors.As(err, &violation) {
			for _, fault := range violation.Faults() {
				if fault.Path == path {
					denied[path] = true
				}
			}
		}
		files, paths = append(files, file), append(paths, path)
	})
	for i, found := range validated(t, files) {
		has := slices.ContainsFunc(found.Findings, func(f finding) bool {
			return f.Severity == "error" && f.Path == "plugins[0]."+paths[i]
		})
		if has != denied[paths[i]] {
			t.Errorf("%s: null: Kong denies it: %t; validate finds a fault: %t", paths[i], denied[paths[i]], has)
		}
	}
	if len(paths) < 150 || len(denied) < 60 {
		t.Errorf("the schema has %d fields, and Kong denies a null in %d of them", len(paths), len(denied))
	}
}

// finding is a fault that validate found in a file.
type finding struct{ Path, Severity string }

// validated returns what validate says about files.
func validated(t *testing.T, files []string) (found []struct{ Findings []finding }) {
	t.Helper()
	command := exec.Command(filepath.Join(binaries, "ratelimit"), append([]string{"validate", "-o", "json"}, files...)...)
	out, err := command.Output()
	exit := new(exec.ExitError)
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("ratelimit validate: %v", err)
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return found
}
