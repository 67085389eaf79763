package limiter

import (
	"encoding/json"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Parse reads a config as it stands under config: in a decK file, in YAML or JSON, with all defaults filled in. An error
// about what the text says is of type [schema.Faults] and holds every fault with its path.
func Parse(text []byte) (schema.Config, error) {
	if !json.Valid(text) {
		var document any
		if err := yaml.Unmarshal(text, &document); err != nil {
			return schema.Config{}, fmt.Errorf("parse the config: %w", err)
		}
		var err error
		if text, err = json.Marshal(document); err != nil {
			return schema.Config{}, fmt.Errorf("parse the config: its keys must be strings: %w", err)
		}
	}
	config, _, err := schema.Parse(text, compiles)
	return config, err
}

// compiles finds the faults that the schema cannot see.
func compiles(config schema.Config) error {
	_, err := policy.FromConfig(config)
	return err
}
