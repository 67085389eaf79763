package gateway

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// LoadConfig reads a decK file.
func LoadConfig(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read decK file: %w", err)
	}
	config, err := ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

//go:embed schemas/*.json
var bundledSchemas embed.FS

// bundled holds the plugins that the gateway itself has.
var bundled = []Plugin{
	{Info: loadBundled("jwt", 1450), Access: jwtAuth},
	{Info: loadBundled("key-auth", 1250), Access: keyAuth},
	{Info: loadBundled("acl", 950), Access: acl},
}

func loadBundled(name string, priority int) *PluginInfo {
	raw, err := bundledSchemas.ReadFile("schemas/" + name + ".json")
	if err != nil {
		panic(err) // the file is embedded
	}
	_, config, err := parseSchema(raw)
	if err != nil {
		panic(err) // every test of this package parses it
	}
	return &PluginInfo{Name: name, Priority: priority, Phases: []string{accessPhase}, config: config}
}

// CheckConfig checks the types and names of every plugin's settings against its schema: the bundled ones, and those
// given. The error is Faults with all paths.
func CheckConfig(config *Config, plugins ...*PluginInfo) error {
	_, err := applySchemas(config, plugins)
	return err
}

// checkedPlugin is a plugin entry, and its config with defaults.
type checkedPlugin struct {
	*PluginConfig
	info   *PluginInfo
	config map[string]any
}

func applySchemas(config *Config, external []*PluginInfo) ([]checkedPlugin, error) {
	byName := map[string]*PluginInfo{}
	for _, plugin := range bundled {
		byName[plugin.Info.Name] = plugin.Info
	}
	for _, info := range external {
		byName[info.Name] = info
	}
	var checked []checkedPlugin
	var faults Faults
	for _, entry := range config.Plugins {
		info := byName[entry.Name]
		if info == nil {
			faults = append(faults, Fault{Path: entry.Path, Message: fmt.Sprintf(
				"plugin '%s' not enabled; add it to the 'plugins' configuration property", entry.Name)})
			continue
		}
		completed, found := info.complete(entry)
		faults = append(faults, found...)
		checked = append(checked, checkedPlugin{entry, info, completed})
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return checked, nil
}

// PluginInfo describes a plugin as its server prints it for -dump, as far as Kong reads it.
type PluginInfo struct {
	Name     string
	Priority int
	Phases   []string
	Schema   json.RawMessage

	config *schemaField
}

// QueryPlugin runs a query command of Kong's, such as "<binary> -dump", in an empty environment and parses its output.
// A command that fails and invalid output are errors, as at Kong's start.
func QueryPlugin(ctx context.Context, query ...string) (*PluginInfo, error) {
	command := exec.CommandContext(ctx, query[0], query[1:]...)
	command.Env = []string{}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("error loading plugins info from %v: %w: %s",
			query, err, strings.TrimSpace(stderr.String()))
	}
	info, err := ParsePluginInfo(stdout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(query, " "), err)
	}
	return info, nil
}

// ParsePluginInfo reads the JSON that -dump prints. Only the first plugin counts, as in Kong.
func ParsePluginInfo(dump []byte) (*PluginInfo, error) {
	var server struct {
		Protocol string
		Plugins  []*PluginInfo
	}
	if err := json.Unmarshal(dump, &server); err != nil {
		return nil, fmt.Errorf("failed decoding plugin info: %w", err)
	}
	if server.Protocol != "ProtoBuf:1" {
		return nil, fmt.Errorf("protocol %q: must be ProtoBuf:1", server.Protocol)
	}
	if len(server.Plugins) == 0 || server.Plugins[0] == nil {
		return nil, errors.New("no plugin in the plugin info")
	}
	info := server.Plugins[0]
	name, config, err := parseSchema(info.Schema)
	if err != nil {
		return nil, err
	}
	if name != info.Name || name == "" {
		return nil, fmt.Errorf("plugin %q has the schema of %q", info.Name, name)
	}
	info.config = config
	return info, nil
}
