package gateway

import (
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/fieldschema"
)

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
