package deckfile

import (
	"errors"
	"fmt"

	"gopkg.in/yaml.v3"
)

// Shared returns the config of a document's _plugin_configs that an entry names by _config, or nil if it names none.
// name may be nil.
func Shared(configs, name *yaml.Node) (*yaml.Node, error) {
	switch {
	case name == nil || name.ShortTag() == "!!null" || name.ShortTag() == "!!str" && name.Value == "":
		return nil, nil
	case name.ShortTag() != "!!str":
		return nil, errors.New("_config must be a string: the name of a config in _plugin_configs")
	}
	config := Get(configs, name.Value)
	switch {
	case config == nil:
		return nil, fmt.Errorf("_plugin_configs has no config %q", name.Value)
	case config.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("the config %q of _plugin_configs must be a mapping", name.Value)
	}
	return config, nil
}

// Merge returns a config with what only the shared one has, as decK merges them: mappings key by key, at every depth.
// What else both have is the config's own. Either may be nil.
func Merge(own, shared *yaml.Node, w *Walk) (*yaml.Node, error) {
	switch {
	case shared == nil:
		return own, nil
	case own == nil || own.ShortTag() == "!!null":
		return shared, nil
	}
	return merge(own, shared, w)
}

func merge(own, shared *yaml.Node, w *Walk) (*yaml.Node, error) {
	own = Resolve(own)
	if own.Kind != yaml.MappingNode || shared.Kind != yaml.MappingNode {
		return own, nil
	}
	if err := w.Enter(own); err != nil {
		return nil, err
	}
	defer w.Leave(own)
	merged := &yaml.Node{Kind: yaml.MappingNode, Line: own.Line}
	for _, p := range Pairs(own) {
		value := p.Value
		if other := Get(shared, p.Key.Value); other != nil {
			var err error
			if value, err = merge(value, other, w); err != nil {
				return nil, err
			}
		}
		merged.Content = append(merged.Content, p.Key, value)
	}
	for _, p := range Pairs(shared) {
		if Get(own, p.Key.Value) == nil {
			merged.Content = append(merged.Content, p.Key, p.Value)
		}
	}
	return merged, nil
}
