package gateway

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// kongConf returns the text of kong.conf.
func kongConf(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../kong.conf")
	require.NoError(t, err)
	return string(data)
}

// kongSettings reads a kong.conf as Kong does: "#" begins a comment, names and values are trimmed.
func kongSettings(t *testing.T, conf string) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for _, line := range strings.Split(conf, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !found || settings[name] != "" {
			t.Errorf("line %q", line)
		}
		settings[name] = value
	}
	return settings
}

// serverProperty returns the name of a plugin server's property (kong/conf_loader/init.lua).
func serverProperty(server, property string) string {
	return "pluginserver_" + strings.ReplaceAll(strings.ToLower(server), "-", "_") + "_" + property
}

func TestKongConfStartsThePluginServer(t *testing.T) {
	settings := kongSettings(t, kongConf(t))
	const name = "tenant-rate-limiting"
	start := strings.Fields(settings[serverProperty(name, "start_cmd")])
	query := strings.Fields(settings[serverProperty(name, "query_cmd")])
	socket := settings[serverProperty(name, "socket")]
	if settings["plugins"] != "bundled,"+name || settings["pluginserver_names"] != name || len(settings) != 6 {
		t.Errorf("settings %v", settings)
	}
	if settings["log_level"] != "info" {
		t.Errorf("log_level %q: Kong drops the plugin's stderr", settings["log_level"])
	}
	if len(query) != 2 || query[1] != "-dump" || filepath.Base(query[0]) != name {
		t.Errorf("query command %q", query)
	}
	if len(start) != 3 || start[0] != query[0] || start[1] != "-kong-prefix" {
		t.Fatalf("start command %q", start)
	}
	if want := socketPath(start[2], start[0]); socket != want {
		t.Errorf("socket %q, the plugin listens at %q", socket, want)
	}
}

// commented matches a setting in a comment.
var commented = regexp.MustCompile(`(?m)^#\s+(\w+) = (.*)$`)

func TestKongConfHasTheLinesOfTheCompanionPlugin(t *testing.T) {
	conf := kongConf(t)
	for _, line := range commented.FindAllStringSubmatch(conf, -1) {
		given := regexp.MustCompile(`(?m)^` + line[1] + ` = .*$`)
		conf = given.ReplaceAllLiteralString(conf, "") + "\n" + line[1] + " = " + line[2]
	}
	settings := kongSettings(t, conf)
	const name, companion = "tenant-rate-limiting", "tenant-rate-settling"
	if both := name + "," + companion; settings["plugins"] != "bundled,"+both || settings["pluginserver_names"] != both {
		t.Errorf("settings %v", settings)
	}
	if command := settings[serverProperty(companion, "start_cmd")]; command != "" {
		t.Errorf("start command %q: the process of the other plugin serves this one", command)
	}
	server := PluginServer{
		Query:  strings.Fields(settings[serverProperty(companion, "query_cmd")]),
		Socket: settings[serverProperty(companion, "socket")],
	}
	start := strings.Fields(settings[serverProperty(name, "start_cmd")])
	if !server.isComplete() || server.Query[0] != start[0] || server.Socket != socketPath(start[2], companion) {
		t.Errorf("%+v, for the process %q", server, start)
	}
}

func TestTheConfigOfTheDemoIsADeckFile(t *testing.T) {
	config, err := LoadConfig("../kong.yml")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, c := range config.Consumers {
		names[c.Username] = true
	}
	for _, r := range config.Routes {
		names[r.Paths[0]] = true
	}
	for _, want := range []string{
		"acme", "beta", "gamma", "ops", "anonymous", "/records", "/search", "/heavy-compute", "/account",
	} {
		if !names[want] {
			t.Errorf("no %s", want)
		}
	}
}
