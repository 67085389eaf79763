package deck

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// place holds for which requests a plugin entry is enabled: those of what it names. "" stands for all.
type place struct {
	service, route, consumer, group string

	enabled bool
}

// covers reports whether p is at least as wide as other.
func (p place) covers(other place) bool {
	within := func(wide, narrow string) bool { return wide == "" || wide == narrow }
	return within(p.service, other.service) && within(p.route, other.route) && within(p.consumer, other.consumer) &&
		within(p.group, other.group)
}

// enter notes what an item of a list is: a service, a route, a consumer or a consumer group. One without a name has its
// path as one.
func (f *finder) enter(item *yaml.Node, list, path string) {
	name := path
	if own := reference(item); own != "" {
		name = own
	}
	switch list[strings.LastIndexByte(list, '.')+1:] {
	case "services":
		f.within.service = name
	case "routes":
		f.within.route = name
		if f.within.service == "" {
			f.within.service = reference(deckfile.Get(item, "service"))
		}
		f.serviceOf[name] = f.within.service
	case "consumers":
		f.within.consumer = name
	case "consumer_groups":
		f.within.group = name
	}
}

// placeOf returns where a plugin entry is enabled: within what it is nested in, and what it names itself.
func (f *finder) placeOf(entry *yaml.Node) place {
	p := f.within
	for key, to := range map[string]*string{
		"service": &p.service, "route": &p.route, "consumer": &p.consumer, "consumer_group": &p.group,
	} {
		if named := reference(deckfile.Get(entry, key)); named != "" {
			*to = named
		}
	}
	enabled := deckfile.Get(entry, "enabled")
	p.enabled = enabled == nil || enabled.Value != "false"
	return p
}

// reference returns the name by which a node refers to an entity: itself, or its name, username or id.
func reference(n *yaml.Node) string {
	if n == nil || n.Kind == yaml.ScalarNode {
		if n == nil || n.Tag == "!!null" {
			return ""
		}
		return n.Value
	}
	for _, key := range []string{"name", "username", "id"} {
		if value := deckfile.Get(n, key); value != nil && value.Kind == yaml.ScalarNode {
			return value.Value
		}
	}
	return ""
}

// requireSettling warns of limits that settle without the plugin that settles them: their reservations stay charged.
func (v *validator) requireSettling(e pluginEntry, config deckfile.Config, c schema.Config, settling []place) {
	paths := c.Settling()
	if len(paths) == 0 || !e.enabled {
		return
	}
	for _, p := range settling {
		if p.covers(e.place) {
			return
		}
	}
	at := docpath.Member(paths[0], "settle")
	list := e.path[:strings.LastIndex(e.path, "[")]
	v.report(config.Line(at), docpath.Join(e.path, at), Warning, fmt.Sprintf(
		"needs the plugin %s for the same requests, else each keeps its whole reservation: add %q to %s",
		schema.SettlingName, "- "+settlingEntry(e, list), list))
}

// settlingEntry returns the entry of the settling plugin that belongs beside another, in a list at a path.
func settlingEntry(e pluginEntry, list string) string {
	if list != "plugins" {
		return "name: " + schema.SettlingName
	}
	entry := "name: " + schema.SettlingName
	for _, named := range [...][2]string{
		{"service", e.service}, {"route", e.route}, {"consumer", e.consumer}, {"consumer_group", e.group},
	} {
		if named[1] != "" && (named[0] != "service" || e.route == "") {
			entry += ", " + named[0] + ": " + named[1]
		}
	}
	if !strings.Contains(entry, ",") {
		return entry
	}
	return "{" + entry + "}"
}
