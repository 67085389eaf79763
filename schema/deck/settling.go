package deck

import (
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// requireSettling warns of limits that settle without the plugin that settles them: their reservations stay charged.
func (v *validator) requireSettling(e *Plugin, config deckfile.Config, c schema.Config, settling []Place) {
	paths := c.Settling()
	if len(paths) == 0 || !e.Enabled {
		return
	}
	for _, p := range settling {
		if p.covers(e.Place) {
			return
		}
	}
	at := docpath.Member(paths[0], "settle")
	list := e.Path[:strings.LastIndex(e.Path, "[")]
	v.report(config.Line(at), docpath.Join(e.configPath(), at), Warning, fmt.Sprintf(
		"needs the plugin %s for the same requests, else each keeps its whole reservation: add %q to %s",
		schema.SettlingName, "- "+settlingEntry(e.Place, list), list))
}

// settlingEntry returns the entry of the settling plugin that belongs beside another, in a list at a path.
func settlingEntry(p Place, list string) string {
	if list != "plugins" {
		return "name: " + schema.SettlingName
	}
	entry := "name: " + schema.SettlingName
	for _, named := range [...][2]string{
		{"service", p.Service}, {"route", p.Route}, {"consumer", p.Consumer}, {"consumer_group", p.Group},
	} {
		if named[1] != "" && (named[0] != "service" || p.Route == "") {
			entry += ", " + named[0] + ": " + named[1]
		}
	}
	if !strings.Contains(entry, ",") {
		return entry
	}
	return "{" + entry + "}"
}
