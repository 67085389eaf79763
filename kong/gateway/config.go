package gateway

import (
	"embed"
	"fmt"
	"os"
	"time"

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
