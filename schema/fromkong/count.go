package fromkong

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// window is one limit of Kong's plugins.
type window struct {
	name    string
	limit   int64
	seconds int64
	extra   record // fields that only this limit has
}

// counting says what requests are counted by, in this plugin's words.
type counting struct {
	scope    string   // of the limits of tenants, or of the global ones
	tenant   []string // sources; empty: no tenant is needed, and the limits are global
	trusted  string   // a header among the sources
	endpoint string   // of path: the requests that share one counter; the others are counted by address
	words    string
}

// The ways to count that several plugins have.
var (
	byConsumer = counting{
		scope: schema.ScopeTenant, tenant: []string{"consumer.id"}, words: "per consumer, else per address",
	}
	byCredential = counting{
		scope: schema.ScopeCredential, tenant: []string{"consumer.id"}, words: "per credential, else per address",
	}
	byAddress = counting{scope: schema.ScopeIP, words: "per address"}
	byRoute   = counting{scope: schema.ScopeEndpoint, words: "per route"}
	inTotal   = counting{scope: schema.ScopeGlobal, words: "in total"}
)

// identify returns how an identifier of Kong's plugins counts, and adds a problem where that cannot be expressed.
func (e *entry) identify(s *settings, field, identifier string) counting {
	switch identifier {
	case "consumer":
		e.differs(TenantIDs)
		e.differs(CredentialNoConsumer)
		return byConsumer
	case "credential":
		e.differs(CredentialNoConsumer)
		return byCredential
	case "ip":
		return byAddress
	case "header":
		return e.byHeader(s)
	case "path":
		return e.byPath(s)
	case "service":
		return e.byService(s, field)
	case "route":
		if e.Place.Route != "" {
			return inTotal
		}
		return byRoute
	case "consumer-group":
		if e.Place.Group == "" {
			s.problem(field, "is consumer-group, which this plugin cannot count by: give each group an entry of its own")
		}
		return inTotal
	}
	return byConsumer
}

func (e *entry) byHeader(s *settings) counting {
	name := s.text("header_name", "")
	if name == "" {
		s.problem("header_name", "is missing")
	}
	e.differs(HeaderValues)
	return counting{
		scope: schema.ScopeTenant, tenant: []string{"header." + name}, trusted: name,
		words: "per value of " + name + ", else per address",
	}
}

// byPath counts the requests of one path together, and all others by address, as Kong does.
func (e *entry) byPath(s *settings) counting {
	path := s.text("path", "")
	if path == "" {
		s.problem("path", "is missing")
	}
	if strings.ContainsAny(path, "{}*") {
		s.problem("path", "has {, } or *, which are wildcards in this plugin")
	}
	e.differs(PathSlash)
	return counting{
		scope: schema.ScopeEndpoint, endpoint: "* " + path, words: "in total for " + path + ", else per address",
	}
}

// byService counts the requests of a service together. Kong counts requests without a service by address.
func (e *entry) byService(s *settings, field string) counting {
	service, listed := e.services[e.Place.Route]
	switch {
	case e.Place.Service != "" || listed && service != "":
		return inTotal
	case listed:
		return byAddress
	case e.Place.Route != "":
		s.problem(field, "is service, but route %s is not in this file, and may have no service", e.Place.Route)
	default:
		s.problem(field, "is service, which this plugin counts by only on a service or route: give each service an entry "+
			"of its own")
	}
	return inTotal
}

// count adds the limits to the config, and what identifies those who spend them.
func (e *entry) count(c counting, windows []window, algorithm string) {
	limits := func(scope, endpoint string) []record {
		var list []record
		for _, w := range windows {
			r := record{{"name", w.name}, {"scope", scope}}
			addUnless(&r, "endpoint", endpoint, "")
			r.add("limit", w.limit)
			r.add("window_size", w.seconds)
			r.add("algorithm", algorithm)
			list = append(list, append(r, w.extra...))
		}
		return list
	}
	for _, w := range windows {
		e.limits = append(e.limits, fmt.Sprintf("%s: %d per %d s, %s, %s", w.name, w.limit, w.seconds, algorithm, c.words))
	}
	if len(c.tenant) == 0 {
		all := limits(c.scope, c.endpoint)
		if c.endpoint != "" {
			all = append(all, limits(schema.ScopeIP, "")...)
		}
		e.config.add("global", record{{"limits", all}})
		return
	}
	e.config.add("tiers", []record{{{"name", "all"}, {"limits", limits(c.scope, "")}}})
	e.config.add("anonymous", record{{"limits", limits(schema.ScopeIP, "")}})
}

// identity adds the fields that say who spends.
func (e *entry) identity(c counting) {
	if len(c.tenant) > 0 {
		e.config.add("tenant_from", c.tenant)
		if c.trusted != "" {
			e.config.add("trusted_headers", []string{c.trusted})
		}
		e.config.add("anonymous_consumers", []string{}) // Kong counts key-auth's anonymous consumer as any other
	}
	if c.scope != schema.ScopeGlobal && c.scope != schema.ScopeEndpoint || c.endpoint != "" {
		e.config.add("ipv6_prefix_length", int64(128)) // Kong counts each address
	}
}

// visible adds what clients see.
func (e *entry) visible(c counting, hidden bool) {
	switch {
	case e.options.SideBySide:
		e.config.add("hide_client_headers", true)
	case hidden:
		e.config.add("hide_client_headers", true)
	default:
		e.differs(Headers)
		e.config.add("kong_headers", true)
		if c.scope == schema.ScopeGlobal || c.scope == schema.ScopeEndpoint {
			e.config.add("show_shared_limits", true)
		}
	}
	e.differs(Body)
}

// place returns the name of the plugin and of the entry's place, as a namespace.
func (e *entry) place() string {
	var b strings.Builder
	b.WriteString(e.Name)
	for _, part := range [...][2]string{
		{"service", e.Place.Service},
		{"route", e.Place.Route},
		{"consumer", e.Place.Consumer},
		{"group", e.Place.Group},
	} {
		if part[1] != "" && (part[0] != "service" || e.Place.Route == "") {
			b.WriteString("." + part[0] + "." + part[1])
		}
	}
	return namespaceName(b.String())
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
