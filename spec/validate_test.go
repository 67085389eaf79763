package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

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
	info, err := gateway.QueryPlugin(t.Context(), plugin(), "-dump")
	require.NoError(t, err)
	var entity schemaField
	require.NoError(t, json.Unmarshal(info.Schema, &entity))
	folder := t.TempDir()
	var files, paths []string
	denied, denials := map[string]bool{}, 0 // by path
	entity.nulls("", func(record any) any { return record }, func(path string, config any) {
		// Kong denies a limit without a window by a check of the whole limit, which the stand-in does not make.
		if path == ".protocols" || strings.HasSuffix(path, ".window_size") {
			return
		}
		path = path[1:]
		given := config.(map[string]any)
		given["name"] = info.Name
		text, err := json.Marshal(map[string]any{"_format_version": "3.0", "plugins": []any{given}})
		require.NoError(t, err)
		file := filepath.Join(folder, fmt.Sprintf("%d.yml", len(files)))
		require.NoError(t, os.WriteFile(file, text, 0o600))
		deck, err := gateway.ParseConfig(text)
		require.NoError(t, err)
		var faults gateway.Faults
		errors.As(gateway.CheckConfig(deck, info), &faults)
		denied[path] = slices.ContainsFunc(faults, func(f gateway.Fault) bool { return f.Path == "plugins[0]."+path })
		files, paths = append(files, file), append(paths, path)
	})
	for i, found := range validated(t, files) {
		has := slices.ContainsFunc(found.Findings, func(f finding) bool {
			return f.Severity == "error" && f.Path == "plugins[0]."+paths[i]
		})
		if denied[paths[i]] {
			denials++
		}
		if has != denied[paths[i]] {
			t.Errorf("%s: null: Kong denies it: %t; validate finds a fault: %t", paths[i], denied[paths[i]], has)
		}
	}
	if len(paths) < 150 || denials < 60 {
		t.Errorf("the schema has %d fields, and Kong denies a null in %d of them", len(paths), denials)
	}
}

// finding is a fault that validate found in a file.
type finding struct{ Path, Severity, Message string }

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

// snippet is a fenced YAML block of a document. Its lines or the comment before it determine its kind:
//
//	(none)                         a decK file, or its plugins; routes that it names are added
//	<!-- decK: config -->          lines of the plugin's config, as they stand below config:
//	<!-- not decK: what it is -->  something else
type snippet struct {
	document string
	line     int
	mark     string
	text     string
}

var (
	fence = regexp.MustCompile("^\\s*```ya?ml\\s*$")
	mark  = regexp.MustCompile(`^\s*<!-- (decK: config|not decK: .+) -->\s*$`)
)

// snippets returns the YAML blocks of a document.
func snippets(t *testing.T, document string) []snippet {
	t.Helper()
	var all []snippet
	var before string
	var open *snippet
	number := 0
	for line := range strings.Lines(file(t, document)) {
		number++
		switch {
		case open != nil && strings.HasPrefix(strings.TrimSpace(line), "```"):
			all, open, before = append(all, *open), nil, ""
		case open != nil:
			open.text += line
		case fence.MatchString(line):
			open = &snippet{document: document, line: number}
			if found := mark.FindStringSubmatch(before); found != nil {
				open.mark = found[1]
			}
		case strings.TrimSpace(line) != "":
			before = line
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: a block does not end", document, open.line)
	}
	return all
}

// deck returns the decK file that the snippet is or is part of; "" if it is marked as not decK.
func (s snippet) deck(t *testing.T) string {
	t.Helper()
	text := unindented(s.text)
	switch {
	case strings.HasPrefix(s.mark, "not decK"):
		return ""
	case s.mark != "":
		config := "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
		text = "plugins:\n- name: tenant-rate-limiting\n  config:\n    tiers: [{name: t}]\n" + config + "\n"
	case !strings.Contains(text, "plugins:"):
		t.Fatalf("%s:%d: a YAML block without plugins: needs a comment before it that says what it is", s.document, s.line)
	}
	if !strings.Contains(text, "_format_version") {
		text = "_format_version: \"3.0\"\n" + text
	}
	return text + namedRoutes(t, text)
}

// unindented returns text without the indentation of its first line.
func unindented(text string) string {
	lines := strings.Split(text, "\n")
	indent := len(lines[0]) - len(strings.TrimLeft(lines[0], " "))
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, strings.Repeat(" ", min(indent, len(line)-len(strings.TrimLeft(line, " ")))))
	}
	return strings.Join(lines, "\n")
}

// namedRoutes returns definitions of the routes that the file's plugins name and that it does not define.
func namedRoutes(t *testing.T, text string) string {
	t.Helper()
	var document struct {
		Routes  []any
		Plugins []struct{ Route string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &document))
	if document.Routes != nil {
		return ""
	}
	var names []string
	for _, plugin := range document.Plugins {
		if plugin.Route != "" && !slices.Contains(names, plugin.Route) {
			names = append(names, plugin.Route)
		}
	}
	if names == nil {
		return ""
	}
	routes := "\nroutes:\n"
	for _, name := range names {
		routes += fmt.Sprintf("- {name: %s, paths: [/%[1]s]}\n", name)
	}
	return routes
}

func TestEveryDeckSnippetIsAcceptedByKongAndByValidate(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	folder := t.TempDir()
	var files, from, texts []string
	add := func(source, deck string) {
		path := filepath.Join(folder, fmt.Sprintf("%d.yml", len(files)))
		require.NoError(t, os.WriteFile(path, []byte(deck), 0o600))
		files, from, texts = append(files, path), append(from, source), append(texts, deck)
	}
	for _, document := range append(documents, "../README.md", "../migrations/README.md") {
		for _, s := range snippets(t, strings.TrimPrefix(document, "../")) {
			if deck := s.deck(t); deck != "" {
				add(fmt.Sprintf("%s line %d", s.document, s.line), deck)
			}
		}
	}
	if len(files) < 2 {
		t.Errorf("only %d snippets were checked", len(files))
	}
	for _, example := range []string{"kong/kong.yml", "kong/kong-llm.yml"} {
		add(example, file(t, example))
	}
	info, err := gateway.QueryPlugin(t.Context(), plugin(), "-dump")
	require.NoError(t, err)
	plugins := []*gateway.PluginInfo{
		info, settlingPlugin(t), kongPlugin(t, "response-transformer"), kongPlugin(t, "post-function"), kongPlugin(t, "cors"),
	}
	for i, found := range validated(t, files) {
		config, err := gateway.ParseConfig([]byte(texts[i]))
		if err == nil {
			err = gateway.CheckConfig(config, plugins...)
		}
		if err != nil {
			t.Errorf("%s: Kong denies\n%s\n%v", from[i], texts[i], err)
		}
		for _, f := range found.Findings {
			if f.Severity == "error" {
				t.Errorf("%s: ratelimit validate: %s: %s\n%s", from[i], f.Path, f.Message, texts[i])
			}
		}
	}
}

// settlingPlugin returns the info of the companion plugin, as its query_cmd prints it.
func settlingPlugin(t *testing.T) *gateway.PluginInfo {
	t.Helper()
	dump, err := exec.Command(plugin(), "-dump-settling").Output()
	require.NoError(t, err)
	info, err := gateway.ParsePluginInfo(dump)
	require.NoError(t, err)
	return info
}

// kongPlugin returns a plugin of Kong's that documents recommend, with the fields of its schema.
func kongPlugin(t *testing.T, name string) *gateway.PluginInfo {
	t.Helper()
	info, err := gateway.ParsePluginInfo([]byte(file(t, "spec/testdata/kong-plugins/"+name+".json")))
	require.NoError(t, err)
	return info
}
