package deck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Parse reads a decK document. Entities without dates get the time now. The error is Faults with the paths of all that
// is wrong, or a yaml error with a line where the document has not the shape of a decK file, or has a key that is not
// simulated.
func Parse(data []byte, now time.Time) (*Config, error) {
	var d document
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse decK file: %w", err)
	}
	r := newReader(now)
	if d.FormatVersion != "3.0" {
		r.faults.add("_format_version", "expected \"3.0\", got %q", d.FormatVersion)
	}
	for i := range d.Services {
		r.service(docpath.Item("services", i), &d.Services[i])
	}
	r.addRoutes("", d.Routes, nil)
	for i := range d.Consumers {
		r.consumer(docpath.Item("consumers", i), &d.Consumers[i])
	}
	r.addPlugins("", d.Plugins, parent{})
	for _, resolve := range r.pending {
		resolve()
	}
	if len(r.faults) > 0 {
		return nil, r.faults
	}
	return r.config, nil
}

// reader collects entities from the document. It resolves references last, when it has all names.
type reader struct {
	now       int64
	config    *Config
	faults    Faults
	walk      *deckfile.Walk
	unique    map[string]string // kind and unique value → path of the first that has it
	services  map[string]*Service
	routes    map[string]*Route
	consumers map[string]*Consumer
	pending   []func()
}

func newReader(now time.Time) *reader {
	return &reader{
		now: now.Unix(), config: &Config{}, walk: deckfile.NewWalk(), unique: map[string]string{},
		services: map[string]*Service{}, routes: map[string]*Route{}, consumers: map[string]*Consumer{},
	}
}

// requireUnique reports a fault if another entity has the value. An empty value may be repeated.
func (r *reader) requireUnique(kind, value, path string) {
	if value == "" {
		return
	}
	if first, taken := r.unique[kind+"\x00"+value]; taken {
		r.faults.add(path, "%s %q is already that of %s", kind, value, first)
		return
	}
	r.unique[kind+"\x00"+value] = path
}

// id returns a given id, or derives one from key.
func (r *reader) id(given, kind, key, path string) string {
	if given == "" {
		given = derivedID(kind, key)
	}
	r.requireUnique("id of "+kind, given, path)
	return given
}

// find resolves a reference by name or id; without one it returns the entity around.
func find[T any](r *reader, named map[string]*T, path string, ref *reference, around *T) *T {
	if ref == nil {
		return around
	}
	target, found := named[ref.key]
	switch {
	case !found:
		r.faults.add(path, "could not find %q", ref.key)
	case around != nil && target != around:
		r.faults.add(path, "%q is not the entity it is nested in", ref.key)
	}
	return target
}

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
