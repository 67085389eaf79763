package gateway

import (
	"embed"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/fieldschema"
)

// The entities of a decK file.
type (
	// Config is everything a decK file declares; ParseConfig builds it.
	Config = deck.Config
	// Route says which requests go to a service.
	Route = deck.Route
	// Service is an upstream.
	Service = deck.Service
	// Consumer is somebody the auth plugins can recognise.
	Consumer = deck.Consumer
	// Faults is all that is wrong in a config, as an error; each has the path
	// to its place in the file.
	Faults = deck.Faults
	// Fault is one of Faults.
	Fault = deck.Fault
)

// LoadConfig reads a decK file.
func LoadConfig(path string) (*Config, error) {
	return deck.Load(path, time.Now())
}

// ParseConfig reads a decK document. The error is Faults, or one with the line
// of what is no decK at all. Plugin configs are checked by CheckConfig.
func ParseConfig(data []byte) (*Config, error) {
	return deck.Parse(data, time.Now())
}

//go:embed schemas/*.json
var bundledSchemas embed.FS

// bundled are the plugins that the gateway itself has, by name.
var bundled = func() map[string]*PluginInfo {
	plugins := map[string]*PluginInfo{}
	for name, priority := range map[string]int{"jwt": 1450, "key-auth": 1250} {
		raw, err := bundledSchemas.ReadFile("schemas/" + name + ".json")
		if err != nil {
			panic(err) // embedded above
		}
		schema, err := fieldschema.Parse(raw)
		if err != nil {
			panic(err) // a test reads them all
		}
		plugins[name] = &PluginInfo{Name: name, Priority: priority, Phases: []string{accessPhase}, schema: schema}
	}
	return plugins
}()

// CheckConfig checks every plugin's configuration against its schema, as Kong
// does when decK syncs the file: the bundled key-auth and jwt, and those given.
// The error is Faults with all paths.
func CheckConfig(config *Config, plugins ...*PluginInfo) error {
	known := map[string]*PluginInfo{}
	for _, info := range plugins {
		known[info.Name] = info
	}
	_, err := applySchemas(config, known)
	return err
}

// applied is a plugin entry with its config completed.
type applied struct {
	entry  *deck.Plugin
	info   *PluginInfo
	config map[string]any
}

func applySchemas(config *Config, external map[string]*PluginInfo) ([]applied, error) {
	var out []applied
	var faults Faults
	for _, entry := range config.Plugins {
		info := external[entry.Name]
		if info == nil {
			info = bundled[entry.Name]
		}
		if info == nil {
			faults = append(faults, Fault{Path: entry.Path, Message: fmt.Sprintf(
				"plugin '%s' not enabled; add it to the 'plugins' configuration property", entry.Name)})
			continue
		}
		completed, found := info.judgeEntry(entry)
		faults = append(faults, found...)
		out = append(out, applied{entry, info, completed})
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return out, nil
}
