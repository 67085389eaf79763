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
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/npmtest"
)

//go:embed schema
var files embed.FS

// Schema returns the JSON schema of Page in schema/page.ts, which allows no fields that Grafana's types lack.
func Schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, files))
	dir = filepath.Join(dir, "schema")
	modules := filepath.Join(npmtest.Modules(t, dir), "node_modules")
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	var faults bytes.Buffer
	script := exec.Command(npmtest.Node(t), "schema.mjs")
	script.Dir, script.Stderr = dir, &faults
	text, err := script.Output()
	if err != nil {
		t.Fatalf("make the schema of dashboards: %v\n%s", err, faults.Bytes())
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("page.json", document))
	schema, err := compiler.Compile("page.json")
	require.NoError(t, err)
	return schema
}

// Version returns the version of Grafana whose types the schema is made of.
func Version(t testing.TB) string {
	t.Helper()
	manifest, err := files.ReadFile("schema/package.json")
	require.NoError(t, err)
	var packages struct{ Dependencies map[string]string }
	require.NoError(t, json.Unmarshal(manifest, &packages))
	return packages.Dependencies["@grafana/schema"]
}
