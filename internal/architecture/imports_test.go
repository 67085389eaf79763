// Package architecture tests which folder may import which; docs/architecture.md says why. It has no other code.
package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting"
)

// page has the table of rooms: the first column names a room's folder, the last one what its code may import besides
// itself. Tests may import anything, except across the socket.
const page = root + "/docs/architecture.md"

// apart lists what packages may import that are more apart than their room is: each package of a room that is named
// here, but the package of the room's own folder, which puts the others together; and single packages.
var apart = map[string][]string{
	"plugin/bucket":       {"schema", "plugin/core", "plugin/bucket/store", "plugin/bucket/reservation"},
	"plugin/bucket/store": {"plugin/core"},
	"plugin/kong/wire":    {},
	"plugin/database":     {"schema", "migrations", "plugin/core", "plugin/events"},
	"plugin/observe": {
		"plugin/core", "plugin/bucket/reservation", "plugin/database/pgtext", "plugin/observe/drain",
		"plugin/observe/jsonline",
	},
	"plugin/leader": {"plugin/core", "plugin/database/leadership", "plugin/events", "plugin/observe/usage"},
	"plugin/control/portal": {
		"docs", "plugin/core/calendar", "plugin/core/limit", "plugin/control/answers", "plugin/control/api",
		"plugin/control/portal",
	},
}

// foreign maps a module to the folders that may import it.
var foreign = map[string][]string{
	"github.com/Kong/go-pdk": {"plugin/kong/wire", "kong/gateway"},
	"github.com/redis":       {"plugin/bucket/redis", "internal", "spec"},
	"github.com/jackc": {
		"plugin/database", "plugin/events", "plugin/leader", "plugin/node/server", "plugin/control/server", "plugin/cli",
		"migrations", "internal", "spec",
	},
	"github.com/twmb":        {"plugin/events/kafka"},
	"github.com/go-analyze":  {"plugin/lab/replay/replayhtml"},
	"github.com/envoyproxy":  {"plugin/control/envoy"},
	"google.golang.org/grpc": {"plugin/control/envoy", "plugin/limiter/grpclimit", "internal/grpctest"},
	"github.com/coreos":      {"plugin/control/portal/oidc"},
	"golang.org/x/oauth2":    {"plugin/control/portal/oidc"},
	"github.com/yuin":        {},
	"database/sql":           {"migrations"},
	"math/rand":              {},
	"log":                    {},
}

// pluginSupport lists what tests and benchmarks of the plugin share; it imports the plugin.
var pluginSupport = []string{"internal/storetest", "internal/policytest", "internal/bench"}

// pure lists the folders whose code has no I/O, and impure what it therefore does not import.
var (
	pure   = []string{"plugin/core", "schema"}
	impure = []string{"context", "log", "log/slog", "net", "net/http", "os", "io/fs", "database/sql"}
)

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

var (
	roomRow = regexp.MustCompile("(?m)^\\| `([a-z/]+)/` \\|.*\\| ([^|]*)\\|$")
	quoted  = regexp.MustCompile("`([a-z/]+?)/?`")
)

// rooms returns what each room may import, as the page says.
func rooms(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	all := map[string][]string{}
	for _, row := range roomRow.FindAllStringSubmatch(string(text), -1) {
		all[row[1]] = []string{row[1]}
		for _, name := range quoted.FindAllStringSubmatch(row[2], -1) {
			all[row[1]] = append(all[row[1]], name[1])
		}
	}
	return all
}

// ruleFor returns the nearest folder, from a folder up, that has a rule.
func ruleFor(folder string, rules map[string][]string) (home string, may []string, listed bool) {
	for home = folder; home != "."; home = filepath.Dir(home) {
		if may, listed = rules[home]; listed {
			return home, may, true
		}
	}
	return "", nil, false
}

func TestARoomImportsOnlyWhatItsRowAllows(t *testing.T) {
	rooms := rooms(t)
	for _, f := range files(t) {
		home, may, listed := ruleFor(f.folder, rooms)
		if !listed {
			t.Errorf("%s is in no room: add a row to %s", f.folder, page)
			continue
		}
		own, besides := apartFrom(f.folder, rooms)
		for _, path := range f.imports {
			ours, isOurs := strings.CutPrefix(path, module+"/")
			switch {
			case !isOurs || f.test:
			case !withinAny(ours, may):
				t.Errorf("%s/%s imports %s, which %s may not", f.folder, f.name, ours, home)
			case own != "" && !within(ours, own) && !withinAny(ours, besides):
				t.Errorf("%s/%s imports %s: %s is apart from it", f.folder, f.name, ours, own)
			}
		}
	}
}

// apartFrom returns the part of a room that a folder belongs to, and what that part may import besides itself; ""
// if the folder may import what its room may.
func apartFrom(folder string, rooms map[string][]string) (own string, besides []string) {
	wall, besides, isApart := ruleFor(folder, apart)
	_, isRoom := rooms[wall]
	switch {
	case !isApart || isRoom && wall == folder:
		return "", nil
	case isRoom:
		part, _, _ := strings.Cut(strings.TrimPrefix(folder, wall+"/"), "/")
		return wall + "/" + part, besides
	default:
		return wall, besides
	}
}

func TestKongAndThePluginShareNoCode(t *testing.T) {
	for _, f := range files(t) {
		for _, path := range f.imports {
			ours, _ := strings.CutPrefix(path, module+"/")
			pluginSide := within(f.folder, "plugin") || within(f.folder, "schema") || within(f.folder, "migrations")
			switch {
			case pluginSide && within(ours, "kong"),
				(within(f.folder, "kong") || within(f.folder, "spec")) && withinAny(ours, pluginSupport),
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
		generators := within(f.folder, "schema/internal") || within(f.folder, "schema/deck")
		if f.test || !withinAny(f.folder, pure) || generators {
			continue
		}
		for _, path := range f.imports {
			if slices.Contains(impure, path) && !(path == "context" && f.folder == "plugin/core/admit") {
				t.Errorf("%s/%s imports %s: a pure package has no I/O", f.folder, f.name, path)
			}
		}
	}
}
