package fromkong

import (
	"errors"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
)

// scalar returns the text of a key in a mapping, or "".
func scalar(mapping *yaml.Node, key string) string {
	value := deckfile.Get(mapping, key)
	if value == nil || value.Kind != yaml.ScalarNode {
		return ""
	}
	return value.Value
}

// partialsOf returns the configs of the partials of a document, by name and by id.
func partialsOf(document *yaml.Node) map[string]*yaml.Node {
	partials := map[string]*yaml.Node{}
	list := deckfile.Get(deckfile.Root(document), "partials")
	if list == nil || list.Kind != yaml.SequenceNode {
		return partials
	}
	for _, item := range list.Content {
		for _, name := range [...]string{scalar(item, "name"), scalar(item, "id")} {
			if config := deckfile.Get(item, "config"); name != "" && config != nil {
				partials[name] = config
			}
		}
	}
	return partials
}

// addPartials adds the config of Redis that the entry takes from a partial.
func (e *entry) addPartials(w *deckfile.Walk) error {
	list := deckfile.Get(e.Item, "partials")
	if list == nil {
		return nil
	}
	for _, item := range list.Content {
		name, path := scalar(item, "name")+scalar(item, "id"), scalar(item, "path")
		if path != "" && path != "config.redis" {
			return fmt.Errorf("takes %s from a partial, and only config.redis can be taken from one", path)
		}
		partial := e.partials[name]
		if partial == nil {
			return fmt.Errorf("takes Redis from the partial %s, which is not in this file", shown(name))
		}
		config, err := deckfile.Encode(partial, w)
		if err != nil {
			return err
		}
		redis, err := valuesOf(config)
		if err != nil {
			return err
		}
		if own, ok := e.values["redis"].(map[string]any); ok && len(own) > 0 {
			return errors.New("has a config of Redis beside the one of a partial")
		}
		e.values["redis"] = redis
		e.differs("shared-config")
	}
	return nil
}
