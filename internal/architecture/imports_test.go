// Package architecture tests which folder may import which; docs/architecture.md says why. It has no other code.
package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting"
)

// core lists the folders that an adapter may import.
var core = []string{
	"schema", "plugin/core/limit", "plugin/core/identity", "plugin/core/settle", "plugin/core/policy", "plugin/core/decision", "plugin/core/response",
	"plugin/core/admit", "plugin/events", "plugin/events/webhook", "plugin/internal",
	"plugin/node/routeconfig", "plugin/node/process",
	"plugin/database/leadership", "plugin/database/pgtext",
	"plugin/observe/drain", "plugin/observe/jsonline",
}

// stores lists the folders that a store of buckets may import.
var stores = []string{
	"schema", "plugin/core/limit", "plugin/core/policy", "plugin/core/decision", "plugin/bucket/store", "plugin/internal",
}

// rules maps each folder to the folders of this repository that its code may import. A folder that is not listed
// follows the rule of its parent. A folder may always import its subfolders. Tests may import anything, except across
// the socket.
var rules = map[string][]string{
	"schema":     {"internal/docpath", "internal/deckfile"},
	"migrations": {},

	// Pure: no clock, no I/O, no log.
	"plugin/core/limit":    {},
	"plugin/core/fair":     {},
	"plugin/core/identity": {},
	"plugin/core/settle":   {"plugin/core/limit", "schema", "internal/jsonwalk"},
	"plugin/events":        {},
	"plugin/leader/abuse":  {},
	"plugin/core/policy":   {"plugin/core/identity", "plugin/core/limit", "plugin/core/settle", "schema", "internal/docpath"},
	"plugin/core/decision": {"plugin/core/identity", "plugin/core/limit", "plugin/core/policy"},
	"plugin/core/response": {"plugin/core/decision", "plugin/core/identity", "plugin/core/limit", "plugin/core/policy", "schema"},
	"plugin/core/admit": {
		"plugin/core/decision", "plugin/core/identity", "plugin/core/limit", "plugin/core/policy", "plugin/core/response", "schema",
	},

	// Adapters: each declares the interfaces it needs, and imports no other adapter.
	"plugin/bucket/addresses": stores,
	"plugin/bucket/lease":     stores,
	"plugin/bucket/memory":    stores,
	"plugin/bucket/outage":    stores,
	"plugin/bucket/redis":     stores,
	"plugin/bucket/share":     append([]string{"plugin/core/fair", "plugin/core/identity"}, stores...),
	"plugin/bucket/store":     {"plugin/core/decision", "plugin/core/policy"},
	"plugin/node/candidate":   append([]string{"plugin/bucket/reservation"}, core...),
	"plugin/bucket/clock":     {"plugin/core/limit"},
	"plugin/observe/denial":   core,
	"plugin/events/kafka":     core,
	"plugin/kong/phase":       append([]string{"plugin/kong/wire", "plugin/bucket/reservation"}, core...),
	"plugin/kong/wire":        {},
	"plugin/observe/metrics":  append([]string{"plugin/bucket/reservation"}, core...),
	"plugin/events/outbox":    core,
	"plugin/database/rows":    core,
	"plugin/lab/replay":       append([]string{"plugin/bucket/memory", "internal/jsonwalk"}, core...),
	"plugin/lab/suggest":      append([]string{"plugin/lab/replay"}, core...),
	"plugin/bucket/reservation": {
		"plugin/core/decision", "plugin/core/identity", "plugin/core/limit", "plugin/core/policy", "plugin/core/settle", "schema",
	},
	"plugin/observe/usage":         append([]string{"plugin/bucket/reservation"}, core...),
	"plugin/leader/usage":          append([]string{"plugin/observe/usage"}, core...),
	"plugin/leader/quota":          core,
	"plugin/abusestore":            append([]string{"plugin/leader/abuse", "plugin/events", "plugin/events/outbox", "plugin/observe/usage"}, core...),
	"plugin/database/policysync":   append([]string{"migrations"}, core...),
	"plugin/control/api":           append([]string{"plugin/database/rows", "plugin/bucket/reservation"}, core...),
	"plugin/control/portal":        {"docs"},
	"plugin/events/webhook":        {"plugin/events"},
	"plugin/events/webhook/sender": append([]string{"plugin/events/outbox"}, core...),
	"plugin/internal": append([]string{
		"plugin/bucket", "plugin/kong/phase", "plugin/kong/wire", "plugin/observe/metrics",
	}, core...),

	// These combine adapters.
	"plugin/bucket":  stores,
	"plugin/limiter": append([]string{"plugin/bucket", "plugin/bucket/clock"}, core...),

	// Programs, and the packages that two of them share.
	"plugin/node/engine":         {"plugin", "schema", "migrations"},
	"plugin/node/process":        {"plugin", "schema", "migrations"},
	"internal/storetest":         append([]string{"internal/soak", "plugin/bucket"}, core...), // for tests
	"plugin/node/server":         {"plugin", "schema", "migrations"},
	"plugin/control/server":      {"plugin", "schema", "migrations"},
	"plugin/cli":                 {"plugin", "schema", "migrations"},
	"plugin/cmd":                 {"plugin"},
	"plugin/node/routeconfig":    core,
	"plugin/database/leadership": {},
	"plugin/database/pgtext":     {},
	"plugin/observe/drain":       {},
	"plugin/observe/jsonline":    {},
	"plugin/events/relay":        append([]string{"plugin/database/leadership"}, core...),
	"internal/bench":             {"plugin", "schema"},
	"internal/policytest":        {"plugin", "schema"},

	// The other side of the socket.
	"kong": {"internal/docpath", "internal/deckfile"},
	"spec": {"kong/gateway", "internal", "migrations"},

	"docs":     {},
	"internal": {"migrations"},
}

// foreign maps a module to the folders that may import it.
var foreign = map[string][]string{
	"github.com/Kong/go-pdk": {
		"plugin/kong/wire", "internal/bench/onpdk", "kong/gateway", "spec",
	},
	"github.com/redis": {"plugin/bucket/redis", "internal", "plugin/internal", "spec"},
	"github.com/jackc": {
		"plugin/database/policysync", "plugin/database/rows", "plugin/leader/usage", "plugin/events", "plugin/leader/quota", "plugin/abusestore",
		"plugin/events/webhook/sender", "plugin/database/leadership",
		"plugin/node/server", "plugin/control/server", "plugin/cli", "migrations",
		"internal", "spec",
	},
	"github.com/twmb":       {"plugin/events/kafka"},
	"github.com/go-analyze": {"plugin/internal/chart"},
	"github.com/coreos":     {"plugin/control/portal/oidc"},
	"golang.org/x/oauth2":   {"plugin/control/portal/oidc"},
	"github.com/yuin":       {},
	"database/sql":          {"migrations"},
	"math/rand":             {},
	"log":                   {},
}

// impure lists the packages that a pure package must not import.
var impure = []string{"context", "log", "log/slog", "net", "net/http", "os", "io/fs", "database/sql", "sync/atomic"}

var pure = []string{
	"plugin/core/limit", "plugin/core/fair", "plugin/core/identity", "plugin/core/settle", "plugin/core/policy", "plugin/core/decision",
	"plugin/core/response", "plugin/leader/abuse", "schema",
}

// file is a Go file with its imports.
type file struct {
	folder, name string
	test         bool
	imports      []string
}

// files returns the Go files of the repository.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "testdata" || name != ".." && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		all = append(all, file{folder, entry.Name(), strings.HasSuffix(path, "_test.go"), importsOf(parsed)})
		return nil
	})
	if err != nil || len(all) < 100 {
		t.Fatalf("%d files, %v", len(all), err)
	}
	return all
}

func importsOf(f *ast.File) []string {
	var paths []string
	for _, spec := range f.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// within reports whether a folder or import path is another, or below it.
func within(path, parent string) bool { return path == parent || strings.HasPrefix(path, parent+"/") }

func withinAny(path string, parents []string) bool {
	return slices.ContainsFunc(parents, func(parent string) bool { return within(path, parent) })
}

// ruleFor returns the folder whose rule applies to a folder, or false.
func ruleFor(folder string) (string, bool) {
	for ; folder != "."; folder = filepath.Dir(folder) {
		if _, listed := rules[folder]; listed {
			return folder, true
		}
	}
	return "", false
}

func TestEveryFolderImportsOnlyWhatItsRuleAllows(t *testing.T) {
	for _, f := range files(t) {
		home, listed := ruleFor(f.folder)
		if !listed {
			t.Errorf("%s has no rule: add it to rules, with the folders that it may import", f.folder)
			continue
		}
		for _, path := range f.imports {
			ours, isOurs := strings.CutPrefix(path, module+"/")
			if isOurs && !f.test && !within(ours, home) && !withinAny(ours, rules[home]) {
				t.Errorf("%s/%s imports %s, which %s may not", f.folder, f.name, ours, home)
			}
		}
	}
}

func TestKongAndThePluginShareNoCode(t *testing.T) {
	for _, f := range files(t) {
		for _, path := range f.imports {
			ours, _ := strings.CutPrefix(path, module+"/")
			pluginSide := within(f.folder, "plugin") || within(f.folder, "schema") || within(f.folder, "migrations")
			switch {
			case pluginSide && within(ours, "kong"),
				within(f.folder, "kong") && withinAny(ours, []string{"plugin", "schema"}),
				within(f.folder, "spec") && withinAny(ours, []string{"plugin", "schema"}):
				t.Errorf("%s/%s imports %s: only the socket connects them", f.folder, f.name, ours)
			}
		}
	}
}

func TestAForeignModuleIsImportedOnlyWhereItMayBe(t *testing.T) {
	for _, f := range files(t) {
		for _, path := range f.imports {
			for prefix, places := range foreign {
				exact := !strings.Contains(prefix, "/") || prefix == "math/rand"
				if within(path, prefix) && (!exact || path == prefix) && !f.test && !withinAny(f.folder, places) {
					t.Errorf("%s/%s imports %s: only %q may", f.folder, f.name, path, places)
				}
			}
		}
	}
}

func TestPurePackagesDoNoIO(t *testing.T) {
	for _, f := range files(t) {
		home, _ := ruleFor(f.folder)
		generators := within(f.folder, "schema/internal") || within(f.folder, "schema/deck")
		if f.test || !slices.Contains(pure, home) || generators {
			continue
		}
		for _, path := range f.imports {
			if slices.Contains(impure, path) && !(path == "sync/atomic" && f.folder == "plugin/core/policy") {
				t.Errorf("%s/%s imports %s: a pure package has no I/O", f.folder, f.name, path)
			}
		}
	}
}
