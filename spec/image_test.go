package spec

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// instruction is one of kong/Dockerfile, on one line.
type instruction struct{ stage, name, text string }

// dockerfile reads kong/Dockerfile.
func dockerfile(t testing.TB) (all []instruction) {
	t.Helper()
	var line, stage string
	for part := range strings.Lines(file(t, "kong/Dockerfile")) {
		part = strings.TrimSpace(part)
		if strings.HasPrefix(part, "#") {
			continue
		}
		text, continues := strings.CutSuffix(part, `\`)
		if line += text; continues || line == "" {
			continue
		}
		name, text, _ := strings.Cut(line, " ")
		if name == "FROM" {
			_, stage, _ = strings.Cut(text, " AS ")
		}
		all = append(all, instruction{stage, name, strings.TrimSpace(text)})
		line = ""
	}
	return all
}

// file returns a file of the project, by its path from the top.
func file(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	require.NoError(t, err)
	return string(text)
}

// texts returns the instructions of one name in these stages.
func texts(all []instruction, name string, stages ...string) (found []string) {
	for _, i := range all {
		if i.name == name && slices.Contains(stages, i.stage) {
			found = append(found, i.text)
		}
	}
	return found
}

// one returns the only text of a list.
func one(t testing.TB, what string, list []string) string {
	t.Helper()
	if len(list) != 1 {
		t.Fatalf("%s: %d, want 1: %q", what, len(list), list)
	}
	return list[0]
}

var pair = regexp.MustCompile(`(\w+)=("[^"]*"|\S+)`)

// imageEnvironment returns the variables of the image of the target demo.
func imageEnvironment(t testing.TB) map[string]string {
	t.Helper()
	environment := map[string]string{}
	for _, text := range texts(dockerfile(t), "ENV", "gateway", "demo") {
		for _, found := range pair.FindAllStringSubmatch(text, -1) {
			environment[found[1]] = strings.Trim(found[2], `"`)
		}
	}
	return environment
}

// startCommand is the variable of the command that starts the plugin server.
const startCommand = "KONG_PLUGINSERVER_TENANT_RATE_LIMITING_START_CMD"

// unknownToKong returns the variables for Kong that are not settings.
func unknownToKong(t testing.TB, environment map[string]string) (unknown []string) {
	t.Helper()
	settings := map[string]bool{}
	for line := range strings.Lines(file(t, "spec/testdata/kong-3.9-settings.txt")) {
		name := strings.ToUpper(strings.TrimSpace(line))
		for _, plugin := range []string{"_TENANT_RATE_LIMITING_", "_TENANT_RATE_SETTLING_"} {
			settings["KONG_"+strings.Replace(name, "_XXX_", plugin, 1)] = true
		}
	}
	for name := range environment {
		if strings.HasPrefix(name, "KONG_") && !settings[name] {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

func TestEveryVariableOfTheImageIsASettingOfKong(t *testing.T) {
	t.Parallel()
	environment := imageEnvironment(t)
	if unknown := unknownToKong(t, environment); len(unknown) > 0 {
		t.Errorf("not settings of Kong: %v", unknown)
	}
	if typed := unknownToKong(t, map[string]string{"KONG_PLUGINSERVERS": "", "KONG_PROXY_LISTENS": ""}); len(typed) != 2 {
		t.Errorf("of two unknown names it finds %v", typed)
	}
	if environment["KONG_DATABASE"] != "off" || environment["KONG_DECLARATIVE_CONFIG"] == "" {
		t.Errorf("the demo must run without a database: %v", environment)
	}
}

// companionLine matches a line of kong.conf for the companion plugin, which is a comment.
var companionLine = regexp.MustCompile(`^#\s+(plugins|pluginserver_\w+) = `)

// kongConf returns the settings of kong/kong.conf with the companion plugin, as Kong's environment has them.
func kongConf(t testing.TB) map[string]string {
	t.Helper()
	settings, companions := map[string]string{}, 0
	for line := range strings.Lines(file(t, "kong/kong.conf")) {
		if companionLine.MatchString(line) {
			line = strings.TrimLeft(line, "# ")
			companions++
		}
		name, value, found := strings.Cut(line, " = ")
		if found && !strings.HasPrefix(line, "#") {
			settings["KONG_"+strings.ToUpper(name)] = strings.TrimSpace(value)
		}
	}
	if companions != 4 {
		t.Errorf("kong.conf has %d lines for the companion plugin, want 4", companions)
	}
	return settings
}

func TestTheImageHasTheSettingsOfKongConf(t *testing.T) {
	t.Parallel()
	environment, settings := imageEnvironment(t), kongConf(t)
	if level := settings["KONG_LOG_LEVEL"]; level != "info" {
		t.Errorf("log_level %q: Kong drops the plugin's stderr", level)
	}
	for name, value := range settings {
		got := environment[name]
		if name == startCommand && strings.HasPrefix(got, value+" ") {
			continue // and more settings
		}
		if got != value {
			t.Errorf("%s is %q, kong.conf has %q", name, got, value)
		}
	}
}

func TestTheImageServesTheCompanionPlugin(t *testing.T) {
	t.Parallel()
	environment := imageEnvironment(t)
	const prefix = "KONG_PLUGINSERVER_TENANT_RATE_SETTLING_"
	if command, found := environment[prefix+"START_CMD"]; found {
		t.Errorf("Kong would start a second process: %s", command)
	}
	query := strings.Fields(environment[prefix+"QUERY_CMD"])
	if len(query) < 2 {
		t.Fatalf("the query command is %q", query)
	}
	out, err := exec.Command(plugin(), query[1:]...).Output()
	var dump struct {
		SocketPath string
		Plugins    []struct{ Name string }
	}
	if err != nil || json.Unmarshal(out, &dump) != nil || len(dump.Plugins) != 1 {
		t.Fatalf("%v: the plugin server answers %s", err, out)
	}
	if dump.SocketPath != environment[prefix+"SOCKET"] || dump.Plugins[0].Name != "tenant-rate-settling" {
		t.Errorf("%s listens at %q, Kong asks at %q", dump.Plugins[0].Name, dump.SocketPath, environment[prefix+"SOCKET"])
	}
	for _, list := range []string{"KONG_PLUGINS", "KONG_PLUGINSERVER_NAMES"} {
		if !slices.Contains(strings.Split(environment[list], ","), dump.Plugins[0].Name) {
			t.Errorf("%s is %s, without %s", list, environment[list], dump.Plugins[0].Name)
		}
	}
	for _, target := range texts(dockerfile(t), "COPY", "gateway") {
		if strings.Contains(target, "/usr/local/bin/tenant-rate-settling") {
			t.Errorf("Kong would start what %s copies", target)
		}
	}
}

// version matches a tag of one release: golang 1.26.0, postgres 15.14.
var version = regexp.MustCompile(`^[a-z/]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?$`)

func TestTheImageHasPinnedReleases(t *testing.T) {
	t.Parallel()
	from := texts(dockerfile(t), "FROM", "build", "gateway", "demo")
	if len(from) != 3 {
		t.Fatalf("stages %q", from)
	}
	for _, text := range from[:2] {
		if image, _, _ := strings.Cut(text, " "); !version.MatchString(image) {
			t.Errorf("%s is not pinned", image)
		}
	}
	release := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(file(t, "go.mod"))
	if release == nil || !strings.HasPrefix(from[0], "golang:"+release[1]+"-") {
		t.Errorf("built by %s, go.mod wants %v", from[0], release)
	}
	if !strings.HasPrefix(from[1], "kong:3.9.") || from[2] != "gateway AS demo" {
		t.Errorf("the images are %q, want Kong 3.9 and a demo of it", from[1:])
	}
}

func TestTheImageIsBuiltFromAllImportedFolders(t *testing.T) {
	t.Parallel()
	all := dockerfile(t)
	var copied []string
	for _, text := range texts(all, "COPY", "build") {
		sources := strings.Fields(text)
		for _, source := range sources[:len(sources)-1] {
			if _, err := os.Stat(filepath.Join("..", source)); err != nil {
				t.Error(err)
			}
			copied = append(copied, source)
		}
	}
	build := one(t, "go build", slices.DeleteFunc(texts(all, "RUN", "build"),
		func(s string) bool { return !strings.Contains(s, "go build") }))
	packages := regexp.MustCompile(`\./\S+`).FindAllString(build, -1)
	list := exec.Command("go",
		append([]string{"list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}} {{.Path}}{{end}}{{end}}"},
			packages...)...)
	list.Dir = ".."
	out, err := list.CombinedOutput()
	if err != nil || len(packages) != 2 {
		t.Fatalf("list what %q import: %v\n%s", packages, err, out)
	}
	for line := range strings.Lines(string(out)) {
		path, module, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			continue
		}
		folder, _, _ := strings.Cut(strings.TrimPrefix(path, module+"/"), "/")
		if !slices.Contains(copied, folder) {
			t.Errorf("%s is not copied: %q", path, copied)
		}
	}
}

func TestTheImageHasItsProgramsAndDoesNotRunAsRoot(t *testing.T) {
	t.Parallel()
	all := dockerfile(t)
	users := texts(all, "USER", "gateway", "demo")
	if len(users) == 0 || users[len(users)-1] != "kong" {
		t.Errorf("it runs as the last of %q, want kong", users)
	}
	environment := imageEnvironment(t)
	programs := texts(all, "COPY", "gateway")
	for _, command := range []string{startCommand, "KONG_PLUGINSERVER_TENANT_RATE_LIMITING_QUERY_CMD"} {
		program, _, _ := strings.Cut(environment[command], " ")
		if filepath.Dir(program) != "/usr/local/bin" ||
			!strings.Contains(strings.Join(programs, "\n"), "/out/"+filepath.Base(program)+" ") {
			t.Errorf("%s runs %q; copied are %q", command, program, programs)
		}
	}
	out, err := exec.Command(plugin(),
		strings.Fields(environment["KONG_PLUGINSERVER_TENANT_RATE_LIMITING_QUERY_CMD"])[1:]...).Output()
	var dump struct{ SocketPath string }
	if err != nil || json.Unmarshal(out, &dump) != nil ||
		dump.SocketPath != environment["KONG_PLUGINSERVER_TENANT_RATE_LIMITING_SOCKET"] {
		t.Errorf("the plugin server listens at %q (%v), Kong asks at %q",
			dump.SocketPath, err, environment["KONG_PLUGINSERVER_TENANT_RATE_LIMITING_SOCKET"])
	}
}

// demoConfig returns the configuration of the target demo, which a command of the Dockerfile derives from
// kong/kong.yml.
func demoConfig(t testing.TB) string {
	t.Helper()
	run := one(t, "sed", slices.DeleteFunc(texts(dockerfile(t), "RUN", "build"),
		func(s string) bool { return !strings.HasPrefix(s, "sed ") }))
	out := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(binaries, "ratelimit"), filepath.Join(out, "ratelimit")))
	command := exec.Command("sh", "-ec", strings.ReplaceAll(run, "/out/", out+"/"))
	command.Dir = ".."
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", run, err, text)
	}
	text, err := os.ReadFile(filepath.Join(out, "kong.yml"))
	require.NoError(t, err)
	return string(text)
}

// pluginConfig returns the config of the plugin in a decK file.
func pluginConfig(t testing.TB, deck string) map[string]any {
	t.Helper()
	config, err := gateway.ParseConfig([]byte(deck))
	require.NoError(t, err)
	for _, p := range config.Plugins {
		if p.Name == "tenant-rate-limiting" {
			config, _ := p.Config.(map[string]any)
			return config
		}
	}
	t.Fatal("the plugin is not in the file")
	return nil
}

func TestTheConfigOfTheImageIsThatOfTheDemoWithRedis(t *testing.T) {
	t.Parallel()
	want, got := pluginConfig(t, file(t, "kong/kong.yml")), pluginConfig(t, demoConfig(t))
	redis, _ := got["redis"].(map[string]any)
	if got["strategy"] != "redis" || redis["host"] == "" || redis["password"] == "" {
		t.Fatalf("strategy %v, redis %v", got["strategy"], redis)
	}
	delete(got, "redis")
	got["strategy"] = want["strategy"]
	before, err1 := yaml.Marshal(want)
	after, err2 := yaml.Marshal(got)
	if err1 != nil || err2 != nil || string(before) != string(after) {
		t.Errorf("%v %v: otherwise it differs from kong.yml:\n%s", err1, err2, after)
	}
}

func TestTheHealthCheckOfTheImageIsTheReadinessOfKong(t *testing.T) {
	t.Parallel()
	text := one(t, "HEALTHCHECK", texts(dockerfile(t), "HEALTHCHECK", "gateway"))
	_, text, _ = strings.Cut(text, "CMD ")
	var command []string
	if err := json.Unmarshal([]byte(text), &command); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	environment := imageEnvironment(t)
	host, port, err := net.SplitHostPort(environment["KONG_STATUS_LISTEN"])
	require.NoError(t, err)
	var status atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status/ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	kong := httptest.NewServer(mux)
	defer kong.Close()
	socket := filepath.Join(t.TempDir(), "s")
	script := strings.NewReplacer(
		"/"+host+"/"+port, "/"+strings.ReplaceAll(kong.Listener.Addr().String(), ":", "/"),
		environment["KONG_PLUGINSERVER_TENANT_RATE_LIMITING_SOCKET"], socket,
	).Replace(command[2])
	healthy := func() bool { return exec.Command(command[0], command[1], script).Run() == nil }

	if healthy() {
		t.Error("healthy without the plugin server's socket")
	}
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	if status.Store(http.StatusOK); !healthy() {
		t.Errorf("not healthy although Kong is ready: %s", script)
	}
	if status.Store(http.StatusServiceUnavailable); healthy() {
		t.Error("healthy although Kong is not ready")
	}
}
