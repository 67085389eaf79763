package helm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	_ "k8s.io/kubernetes/pkg/util/env" // the smallest package of the module whose api/openapi-spec is read
)

// schemaOf returns the schema of a kind. Unknown fields are faults.
func schemaOf(apiVersion, kind string) (*jsonschema.Schema, error) {
	compiled, err := kubernetes()
	if err != nil {
		return nil, err
	}
	name, found := compiled.names[apiVersion+" "+kind]
	if !found {
		return nil, fmt.Errorf("Kubernetes has no %s %s", apiVersion, kind)
	}
	return compiled.compiler.Compile("kubernetes.json#/definitions/" + name)
}

type definitions struct {
	compiler *jsonschema.Compiler
	names    map[string]string // of definitions, by apiVersion and kind
}

// kubernetes returns the definitions of Kubernetes' OpenAPI, from the module that go.mod pins.
var kubernetes = sync.OnceValues(func() (*definitions, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return nil, fmt.Errorf("find k8s.io/kubernetes: %w", err)
	}
	file, err := os.Open(filepath.Join(strings.TrimSpace(string(dir)), "api/openapi-spec/swagger.json"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	document, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		return nil, err
	}
	all := document.(map[string]any)["definitions"].(map[string]any)
	names := map[string]string{}
	for name, definition := range all {
		definition := definition.(map[string]any)
		makeStrict(name, definition)
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		for _, kind := range kinds {
			kind := kind.(map[string]any)
			version := strings.TrimPrefix(fmt.Sprintf("%v/%v", kind["group"], kind["version"]), "/")
			names[fmt.Sprintf("%v %v", version, kind["kind"])] = name
		}
	}
	compiler := jsonschema.NewCompiler()
	return &definitions{compiler, names}, compiler.AddResource("kubernetes.json", map[string]any{"definitions": all})
})

// makeStrict denies unknown fields, and admits the numbers that a string of OpenAPI may be written as.
func makeStrict(name string, definition map[string]any) {
	switch {
	case definition["properties"] != nil:
		definition["additionalProperties"] = false
	case strings.HasSuffix(name, ".IntOrString"):
		definition["type"] = []any{"string", "integer"}
	case strings.HasSuffix(name, ".Quantity"):
		definition["type"] = []any{"string", "number"}
	}
}
