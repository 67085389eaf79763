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
	"path/filepath"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/fieldschema"
)

// The entities of a decK file.
type (
	// Config holds everything that a decK file declares; ParseConfig builds it.
	Config = deck.Config
	// Route selects the requests that go to a service.
	Route = deck.Route
	// Service is an upstream.
	Service = deck.Service
	// Consumer is a caller that the auth plugins can identify.
	Consumer = deck.Consumer
	// Faults lists all that is wrong in a config, as an error; each has the path to its place in the file.
	Faults = deck.Faults
	// Fault is one of Faults.
	Fault = deck.Fault
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

// ParseConfig reads a decK document. The error is Faults, or one that names the line where the document has not the
// shape of a decK file. CheckConfig checks the plugin configs.
func ParseConfig(data []byte) (*Config, error) {
	return deck.Parse(data, time.Now())
}

//go:embed schemas/*.json
var bundledSchemas embed.FS

// bundled holds the plugins that the gateway itself has.
var bundled = []*PluginInfo{loadBundled("jwt", 1450), loadBundled("key-auth", 1250)}

func loadBundled(name string, priority int) *PluginInfo {
	raw, err := bundledSchemas.ReadFile("schemas/" + name + ".json")
	if err != nil {
		panic(err) // the file is embedded
	}
	schema, err := fieldschema.Parse(raw)
	if err != nil {
		panic(err) // every test of this package parses it
	}
	return &PluginInfo{Name: name, Priority: priority, Phases: []string{accessPhase}, schema: schema}
}

// CheckConfig checks every plugin's configuration against its schema, as Kong does when decK syncs the file: the
// bundled key-auth and jwt, and those given. The error is Faults with all paths.
func CheckConfig(config *Config, plugins ...*PluginInfo) error {
	_, err := applySchemas(config, plugins)
	return err
}

// checkedPlugin is a plugin entry whose config is valid and has its defaults.
type checkedPlugin struct {
	*deck.Plugin
	info   *PluginInfo
	config map[string]any
}

func applySchemas(config *Config, external []*PluginInfo) ([]checkedPlugin, error) {
	byName := map[string]*PluginInfo{}
	for _, infos := range [][]*PluginInfo{bundled, external} {
		for _, info := range infos {
			byName[info.Name] = info
		}
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
		completed, found := info.validateEntry(entry)
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
	Version  string
	Priority int
	Phases   []string
	Schema   json.RawMessage

	schema *fieldschema.Schema
}

// QueryPlugin runs "<binary> -dump", Kong's query command, in an empty environment and parses its output. A command
// that fails, invalid output and a schema that Kong does not load are errors, as at Kong's start.
func QueryPlugin(ctx context.Context, binary string) (*PluginInfo, error) {
	return queryPlugin(ctx, []string{binary, "-dump"})
}

func queryPlugin(ctx context.Context, query []string) (*PluginInfo, error) {
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
	schema, err := fieldschema.Parse(info.Schema)
	if err != nil {
		return nil, err
	}
	if schema.Name() != info.Name || info.Name == "" {
		return nil, fmt.Errorf("plugin %q has the schema of %q", info.Name, schema.Name())
	}
	info.schema = schema
	return info, nil
}

// socketPath returns the path of a plugin server's socket: <prefix>/<executable>.socket.
func socketPath(prefix, binary string) string {
	return filepath.Join(prefix, filepath.Base(binary)+".socket")
}

// lookupEnvVault resolves a reference to Kong's env vault: {vault://env/some-name} is the variable SOME_NAME of the
// gateway's own environment, "" when it is not set.
func lookupEnvVault(reference string) string {
	name, ok := strings.CutPrefix(reference, "vault://env/")
	if !ok {
		return ""
	}
	return os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}

// Violation is Kong's error for an invalid plugin config. Its JSON is the body that the Admin API answers with 400.
type Violation = fieldschema.Violation

// ErrRaised is the error for a config that makes Kong's own code fail; the Admin API answers 500.
var ErrRaised = fieldschema.ErrRaised

// Insert validates a plugin entity as POST and PUT of the Admin API and a declarative file do, and returns it as Kong
// stores it. entity is decoded JSON: name, config, protocols and so on. The error is a *[Violation] or [ErrRaised].
func (p *PluginInfo) Insert(entity map[string]any) (map[string]any, error) {
	return p.schema.Insert(entity)
}

// Update validates a partial entity over a stored one, as PATCH of the Admin API does.
func (p *PluginInfo) Update(kept, patch map[string]any) (map[string]any, error) {
	return p.schema.Update(kept, patch)
}

// validateEntry validates a plugin entry of a decK file, and returns its config as Kong stores it.
func (p *PluginInfo) validateEntry(entry *deck.Plugin) (map[string]any, Faults) {
	kept, err := p.Insert(entityOf(entry))
	var violation *Violation
	switch {
	case errors.As(err, &violation):
		var faults Faults
		for _, fault := range violation.Faults() {
			faults = append(faults, Fault{Path: docpath.Join(entry.Path, fault.Path), Message: fault.Message})
		}
		return nil, faults
	case err != nil:
		return nil, Faults{{Path: entry.Path, Message: err.Error()}}
	}
	config, _ := kept["config"].(map[string]any)
	return config, nil
}

// entityOf returns an entry as the entity that is sent to Kong for it.
func entityOf(entry *deck.Plugin) map[string]any {
	entity := map[string]any{"name": entry.Name, "enabled": entry.Enabled}
	if entry.Config != nil || entry.ConfigNull {
		entity["config"] = entry.Config
	}
	if entry.InstanceName != "" {
		entity["instance_name"] = entry.InstanceName
	}
	if entry.Protocols != nil {
		entity["protocols"] = luaList(entry.Protocols)
	}
	if entry.Tags != nil {
		entity["tags"] = luaList(entry.Tags)
	}
	route, service, consumer := entry.ScopeIDs()
	for name, id := range map[string]string{"route": route, "service": service, "consumer": consumer} {
		if id != "" {
			entity[name] = map[string]any{"id": id}
		}
	}
	return entity
}
