// Package grafanatest has a JSON schema of Grafana's dashboards for tests. It is made of the TypeScript types that
// Grafana publishes as the npm package @grafana/schema.
package grafanatest

import (
	"bytes"
	"embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/npmtest"
)

//go:embed schema
var files embed.FS

// Schema returns the JSON schema of Page in schema/page.ts, which allows no fields that Grafana's types lack.
func Schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "schema")
	modules := filepath.Join(npmtest.Modules(t, dir), "node_modules")
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	var faults bytes.Buffer
	script := exec.Command(npmtest.Node(t), "schema.mjs")
	script.Dir, script.Stderr = dir, &faults
	text, err := script.Output()
	if err != nil {
		t.Fatalf("make the schema of dashboards: %v\n%s", err, faults.Bytes())
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("page.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("page.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// Version returns the version of Grafana whose types the schema is made of.
func Version(t testing.TB) string {
	t.Helper()
	manifest, err := files.ReadFile("schema/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var packages struct{ Dependencies map[string]string }
	if err := json.Unmarshal(manifest, &packages); err != nil {
		t.Fatal(err)
	}
	return packages.Dependencies["@grafana/schema"]
}
