package fromkong

import (
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const standardHeader = "x-kong-limit"

// response converts a config of response-ratelimiting: each of its limits settles to the number that the response's
// header lists.
func (e *entry) response(s *settings) {
	header := s.text("header_name", standardHeader)
	windows := e.responseLimits(s, header)
	c := e.identify(s, "limit_by", s.choice("limit_by", "consumer", "credential", "ip"))
	e.namespace = e.kongNamespace(s.text("limit_by", "consumer"))
	e.begin()
	e.policy(s)
	e.visible(c, s.flag("hide_client_headers", false))
	e.identity(c)
	e.count(c, windows, schema.AlgorithmFixedWindow)
	e.settles = true
	e.differs(ResponseAtArrival)
	e.differs(ResponseConcurrent)
	e.differs(ResponseHeaders)
	if e.options.SideBySide {
		e.problem("cannot be counted beside Kong's plugin, which removes the header %s before this one could read it", header)
	}
}

// responseLimits returns a window for each period of each named limit.
func (e *entry) responseLimits(s *settings, header string) []window {
	blocks := s.flag("block_on_first_violation", false)
	limits := s.record("limits")
	names := slices.Sorted(maps.Keys(limits.values))
	if len(names) == 0 && len(s.shared.problems) == 0 {
		s.problem("limits", "is missing")
	}
	if len(names) > 1 && !blocks {
		s.problem("block_on_first_violation", "is false for %d limits: Kong lets requests pass that spend from other limits "+
			"than the used-up one, and this plugin does not know that when they arrive", len(names))
	}
	if strings.Trim(header, headerLetters) != "" {
		s.problem("header_name", "is %s, which is no name of a header", shown(header))
	}
	var windows []window
	for _, name := range names {
		if strings.Trim(name, headerLetters+".") != "" || len(name) > 50 {
			limits.problem(name, "is a name that this plugin does not take: up to 50 letters, digits, dots, dashes and "+
				"underscores")
			continue
		}
		source := record{{"from", "header." + header + "." + name}}
		limit := limits.record(name)
		for _, w := range e.periods(limit, name+"-") {
			w.extra = record{{"settle", record{{"sources", []record{source}}}}}
			windows = append(windows, w)
		}
		limit.finish()
	}
	return windows
}

const headerLetters = "-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// settling returns the entry of the plugin that settles what limits have reserved, for the same requests.
func (e *entry) settling(converted *yaml.Node) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	n.Content = append(n.Content, textNode("name"), textNode(schema.SettlingName))
	for i := 2; i+1 < len(converted.Content); i += 2 { // after its name
		if key := converted.Content[i]; key.Value != "config" && key.Value != "instance_name" {
			n.Content = append(n.Content, textNode(key.Value), plainCopy(converted.Content[i+1]))
		}
	}
	return n
}
