package fromkong

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// window is one limit of Kong's plugins.
type window struct {
	name   string
	unit   string
	limit  int64
	over   schema.Window
	match  *match
	settle *settle
}

// counting says what requests are counted by, in this plugin's words.
type counting struct {
	scope    string   // of the limits of tenants, or of the global ones
	tenant   []string // sources; empty: no tenant is needed, and the limits are global
	trusted  string   // a header among the sources
	endpoint string   // of path: the requests that share one counter; the others are counted by address
	words    string
}

var (
	byAddress = counting{scope: schema.ScopeIP, words: "per address"}
	inTotal   = counting{scope: schema.ScopeGlobal, words: "in total"}
)

// identify returns how an identifier of Kong's plugins counts, and adds a problem where that cannot be expressed.
func (e *entry) identify(field, identifier, header, path string) counting {
	switch identifier {
	case "credential":
		e.differs("credential-without-consumer")
		return counting{
			scope: schema.ScopeCredential, tenant: []string{"consumer.id"}, words: "per credential, else per address",
		}
	case "ip":
		return byAddress
	case "header":
		if header == "" {
			e.fault("header_name", "is missing")
		}
		e.differs("header-values")
		return counting{
			scope: schema.ScopeTenant, tenant: []string{"header." + header}, trusted: header,
			words: "per value of " + header + ", else per address",
		}
	case "path":
		return e.byPath(path)
	case "service":
		return e.byService(field)
	case "route":
		if e.Place[deck.OfRoute] != "" {
			return inTotal
		}
		return counting{scope: schema.ScopeEndpoint, words: "per route"}
	case "consumer-group":
		if e.Place[deck.OfGroup] == "" {
			e.fault(field, "is consumer-group, which this plugin cannot count by: give each group an entry of its own")
		}
		return inTotal
	case "consumer":
		e.differs("tenant-ids", "credential-without-consumer")
	}
	return counting{scope: schema.ScopeTenant, tenant: []string{"consumer.id"}, words: "per consumer, else per address"}
}

// byPath counts the requests of one path together, and all others by address, as Kong does.
func (e *entry) byPath(path string) counting {
	if path == "" {
		e.fault("path", "is missing")
	}
	if strings.ContainsAny(path, "{}*") {
		e.fault("path", "has {, } or *, which are wildcards in this plugin")
	}
	e.differs("path-slash")
	return counting{
		scope: schema.ScopeEndpoint, endpoint: "* " + path, words: "in total for " + path + ", else per address",
	}
}

// byService counts the requests of a service together. Kong counts requests without a service by address.
func (e *entry) byService(field string) counting {
	service, listed := e.services[e.Place[deck.OfRoute]]
	switch {
	case e.Place[deck.OfService] != "" || service != "":
		return inTotal
	case listed:
		return byAddress
	case e.Place[deck.OfRoute] != "":
		e.fault(field, "is service, but route %s is not in this file, and may have no service", e.Place[deck.OfRoute])
	default:
		e.fault(field, "is service, which this plugin counts by only on a service or route: give each service an entry "+
			"of its own")
	}
	return inTotal
}

// count sets the limits, what identifies those who spend them, and what clients see.
func (e *entry) count(c counting, windows []window, algorithm string, v visibility) {
	e.visible(c, v)
	e.identity(c)
	limitsOf := func(scope, endpoint string) *limits {
		l := &limits{}
		for _, w := range windows {
			l.Limits = append(l.Limits, limit{
				w.name, scope, endpoint, w.unit, w.limit, w.over.WindowSize, w.over.Period, algorithm, w.match, w.settle,
			})
		}
		return l
	}
	for _, w := range windows {
		amount := schema.Amount(w.limit, w.unit)
		e.limits = append(e.limits, fmt.Sprintf("%s: %s %s, %s, %s", w.name, amount, w.over.Per(), algorithm, c.words))
	}
	if len(c.tenant) > 0 {
		e.config.Tiers = []tier{{"all", *limitsOf(c.scope, "")}}
		e.config.Anonymous = limitsOf(schema.ScopeIP, "")
		return
	}
	e.config.Global = limitsOf(c.scope, c.endpoint)
	if c.endpoint != "" {
		e.config.Global.Limits = append(e.config.Global.Limits, limitsOf(schema.ScopeIP, "").Limits...)
	}
}

// identity sets the fields that say who spends.
func (e *entry) identity(c counting) {
	if len(c.tenant) > 0 {
		e.config.TenantFrom = c.tenant
		if c.trusted != "" {
			e.config.TrustedHeaders = []string{c.trusted}
		}
		e.config.AnonymousConsumers = &[]string{} // Kong counts key-auth's anonymous consumer as any other
	}
	if c.scope != schema.ScopeGlobal && c.scope != schema.ScopeEndpoint || c.endpoint != "" {
		e.config.IPv6PrefixLength = 128 // Kong counts each address
	}
}

func (e *entry) visible(c counting, v visibility) {
	if e.options.SideBySide {
		e.config.Mode, v.HideClientHeaders = schema.ModeShadow, true
	}
	e.config.visibility = v
	if !v.HideClientHeaders {
		if e.config.KongHeaders = e.Name != "ai-rate-limiting-advanced"; e.config.KongHeaders {
			e.differs("headers")
		} else {
			e.differs("ai-headers") // it has names of its own
		}
		e.config.ShowSharedLimits = c.scope == schema.ScopeGlobal || c.scope == schema.ScopeEndpoint
	}
	e.differs("body")
}

// place returns the name of the plugin and of the entry's place, as a namespace.
func (e *entry) place() string {
	name := e.Name
	for _, entity := range e.Place.Entities() {
		name += "." + strings.TrimPrefix(entity[0], "consumer_") + "." + entity[1]
	}
	return namespaceName(name)
}

const maxNamespace = 64

// namespaceName returns a text as the name of a namespace. A text that had to be changed ends in a part of its hash, so
// that different texts stay different.
func namespaceName(text string) string {
	clean := strings.Map(func(r rune) rune {
		if strings.ContainsRune(".-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", r) {
			return r
		}
		return '-'
	}, text)
	if clean == text && len(text) <= maxNamespace {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	end := "-" + hex.EncodeToString(sum[:4])
	return clean[:min(len(clean), maxNamespace-len(end))] + end
}
