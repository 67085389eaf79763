package fromkong

import (
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"
)

// config is a config of this plugin: the fields that a conversion sets, in the order in which they are written.
type config struct {
	Namespace        string `yaml:"namespace"`
	Mode             string `yaml:"mode,omitempty"`
	Strategy         string `yaml:"strategy"`
	Accuracy         string `yaml:"accuracy,omitempty"`
	Redis            *redis `yaml:"redis,omitempty"`
	FailMode         string `yaml:"fail_mode,omitempty"`
	visibility       `yaml:",inline"`
	KongHeaders      bool `yaml:"kong_headers,omitempty"`
	ShowSharedLimits bool `yaml:"show_shared_limits,omitempty"`
	denial           `yaml:",inline"`
	jitter           `yaml:",inline"`

	TenantFrom         []string  `yaml:"tenant_from,omitempty"`
	TrustedHeaders     []string  `yaml:"trusted_headers,omitempty"`
	AnonymousConsumers *[]string `yaml:"anonymous_consumers,omitempty"`
	IPv6PrefixLength   int64     `yaml:"ipv6_prefix_length,omitempty"`

	Global    *limits `yaml:"global,omitempty"`
	Tiers     []tier  `yaml:"tiers,omitempty"`
	Anonymous *limits `yaml:"anonymous,omitempty"`
}

type tier struct {
	Name   string `yaml:"name"`
	limits `yaml:",inline"`
}

type limits struct {
	Limits []limit `yaml:"limits"`
}

type limit struct {
	Name       string              `yaml:"name"`
	Scope      string              `yaml:"scope"`
	Endpoint   string              `yaml:"endpoint,omitempty"`
	Limit      int64               `yaml:"limit"`
	WindowSize int64               `yaml:"window_size"`
	Algorithm  string              `yaml:"algorithm"`
	Settle     map[string][]source `yaml:"settle,omitempty"`
}

type source struct {
	From string `yaml:"from"`
}

// node returns the config as YAML.
func (c *config) node() *yaml.Node {
	n := new(yaml.Node)
	if err := n.Encode(c); err != nil {
		panic(fmt.Sprintf("fromkong: no YAML for a config: %v", err))
	}
	style(n)
	return n
}

// style writes lists of texts in one line, and so each record of a list, unless it has a list itself.
func style(n *yaml.Node) {
	for _, inner := range n.Content {
		style(inner)
		list := n.Kind == yaml.SequenceNode
		switch {
		case list && inner.Kind == yaml.ScalarNode:
			n.Style = yaml.FlowStyle
		case list && !hasList(inner):
			inner.Style = yaml.FlowStyle
		case isTemplate(inner.Value):
			inner.Style = yaml.SingleQuotedStyle // decK replaces it before it parses the file
		}
	}
}

func hasList(n *yaml.Node) bool {
	return slices.ContainsFunc(n.Content, func(inner *yaml.Node) bool { return inner.Kind == yaml.SequenceNode })
}

// mapping returns a mapping of one key.
func mapping(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{textNode(key), value}}
}

// textNode returns a text as YAML; the encoder quotes it where another reader could take it for something else.
func textNode(text string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(text)
	style(&yaml.Node{Content: []*yaml.Node{n}})
	return n
}
