package fromkong

import (
	"errors"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// names maps the kind (the key of its list) and id of each entity of a document to its name. Plugins may refer to an
// entity by either.
type names map[[2]string]string

func entityNames(document *yaml.Node) names {
	n := names{}
	n.collect(deckfile.Root(document), true)
	return n
}

// collect adds the entities of a mapping, and those within its services.
func (n names) collect(mapping *yaml.Node, nested bool) {
	for _, kind := range [...]string{"services", "routes", "consumers", "consumer_groups"} {
		list := deckfile.Get(mapping, kind)
		if list == nil || list.Kind != yaml.SequenceNode {
			continue
		}
		for _, item := range list.Content {
			if id, name := scalar(item, "id"), scalar(item, "name")+scalar(item, "username"); id != "" && name != "" {
				n[[2]string{kind, id}] = name
			}
			if nested {
				n.collect(deckfile.Resolve(item), false)
			}
		}
	}
}

// nameFor returns the name of the entity that has an id, or the id itself.
func (n names) nameFor(kind, id string) string {
	if name, ok := n[[2]string{kind, id}]; ok {
		return name
	}
	return id
}

func (n names) place(p deck.Place) deck.Place {
	return deck.Place{
		Service: n.nameFor("services", p.Service), Route: n.nameFor("routes", p.Route),
		Consumer: n.nameFor("consumers", p.Consumer), Group: n.nameFor("consumer_groups", p.Group),
	}
}

// scalar returns the text of a key in a mapping, or "".
func scalar(mapping *yaml.Node, key string) string {
	value := deckfile.Get(mapping, key)
	if value == nil || value.Kind != yaml.ScalarNode {
		return ""
	}
	return value.Value
}

// duplicateKey returns a key that a mapping within n has twice, or "". Readers of YAML differ in which one they take.
func duplicateKey(n *yaml.Node, w *deckfile.Walk) string {
	n = deckfile.Resolve(n)
	if err := w.Enter(n); err != nil {
		return "" // reading the config reports it
	}
	defer w.Leave(n)
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			if key := duplicateKey(item, w); key != "" {
				return key
			}
		}
		return ""
	}
	seen := map[string]bool{}
	for _, p := range deckfile.Pairs(n) {
		if seen[p.Key.Value] {
			return p.Key.Value
		}
		seen[p.Key.Value] = true
		if key := duplicateKey(p.Value, w); key != "" {
			return key
		}
	}
	return ""
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
