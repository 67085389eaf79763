package portal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// fieldChange is a field that two JSON values have different.
type fieldChange struct {
	Path          string // of the field: limit, settle.reserve
	Before, After string // as JSON, texts without quotes; "" if absent
	Mark          string // added, removed or changed
}

// diffJSON returns the fields that differ between two JSON values, ordered by path. A value that is empty or null has
// no fields.
func diffJSON(before, after json.RawMessage) ([]fieldChange, error) {
	was, err := flatten(before)
	if err != nil {
		return nil, fmt.Errorf("read the state before: %w", err)
	}
	is, err := flatten(after)
	if err != nil {
		return nil, fmt.Errorf("read the state after: %w", err)
	}
	var changes []fieldChange
	for path, old := range was {
		switch now, ok := is[path]; {
		case !ok:
			changes = append(changes, fieldChange{path, old, "", "removed"})
		case now != old:
			changes = append(changes, fieldChange{path, old, now, "changed"})
		}
	}
	for path, now := range is {
		if _, ok := was[path]; !ok {
			changes = append(changes, fieldChange{path, "", now, "added"})
		}
	}
	slices.SortFunc(changes, func(a, b fieldChange) int { return cmp.Compare(a.Path, b.Path) })
	return changes, nil
}

// flatten returns the leaves of a JSON value by path.
func flatten(raw json.RawMessage) (map[string]string, error) {
	leaves := map[string]string{}
	if len(raw) == 0 {
		return leaves, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // an id may have more digits than a float64
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return leaves, addLeaves(leaves, "", value)
}

// addLeaves adds the leaves of a value at a path. Null is no leaf, and a list is one.
func addLeaves(leaves map[string]string, path string, value any) error {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for name, field := range v {
			if path != "" {
				name = path + "." + name
			}
			if err := addLeaves(leaves, name, field); err != nil {
				return err
			}
		}
	case string:
		leaves[path] = v
	default: // a number, a boolean or a list
		text, err := json.Marshal(v)
		leaves[path] = string(text)
		return err
	}
	return nil
}
