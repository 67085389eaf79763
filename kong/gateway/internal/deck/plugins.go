package deck

import (
	"encoding/json"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// parent is the entity that a plugin is nested in.
type parent struct {
	route    *Route
	service  *Service
	consumer *Consumer
}

// addPlugins reads the plugins of the entity at path, "" for the document.
func (r *reader) addPlugins(path string, entries []pluginEntry, in parent) {
	for i := range entries {
		e := &entries[i]
		p := &e.Plugin
		p.Enabled, p.Path = e.Enabled == nil || *e.Enabled, docpath.Item(docpath.Join(path, "plugins"), i)
		if p.Name == "" {
			r.faults.add(p.Path+".name", "required field missing")
		}
		if err := r.readConfig(p, &e.Config); err != nil {
			r.faults.add(p.Path+".config", "%v", err)
		}
		r.config.Plugins = append(r.config.Plugins, p)
		r.pending = append(r.pending, func() { r.resolvePlugin(e, in) })
	}
}

// readConfig decodes an entry's config through JSON, as decK sends it: Lua has one kind of number and string keys only.
func (r *reader) readConfig(p *Plugin, node *yaml.Node) error {
	if node.IsZero() {
		return nil
	}
	if err := node.Decode(new(any)); err != nil { // a key that is given twice, an alias within itself
		return err
	}
	config, err := deckfile.Encode(node, r.walk)
	if err != nil {
		return err
	}
	err = json.Unmarshal(config.JSON, &p.Config)
	p.ConfigNull = p.Config == nil
	return err
}

// resolvePlugin resolves the plugin's references and sets its id. In the id an entity around the plugin counts by its
// id and a reference by its text, as in Kong.
func (r *reader) resolvePlugin(e *pluginEntry, in parent) {
	p := &e.Plugin
	p.Route = find(r, r.routes, p.Path+".route", e.Route, in.route)
	p.Service = find(r, r.services, p.Path+".service", e.Service, in.service)
	p.Consumer = find(r, r.consumers, p.Path+".consumer", e.Consumer, in.consumer)
	route, service, consumer := p.ScopeIDs()
	r.requireUnique("plugin and scope", p.Name+":"+route+":"+service+":"+consumer, p.Path)
	r.requireUnique("instance_name", p.InstanceName, p.Path)
	key := pluginKey(p.Name, e.Route.textOr(route), e.Service.textOr(service), e.Consumer.textOr(consumer))
	p.ID = r.id(p.ID, "plugins", key, p.Path)
}

// textOr returns the reference as the file has it, and id without a reference.
func (r *reference) textOr(id string) string {
	if r != nil {
		return r.key
	}
	return id
}
