package limiter

import (
	"encoding/json"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Parse returns the config of a text in YAML or JSON, as under config: in a decK file, with all defaults set. If the
// config has faults, the error is of type [schema.Faults] and holds every fault with its path.
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
	config, _, err := schema.Parse(text, checkPolicies)
	return config, err
}

// checkPolicies returns the faults of a config that the schema cannot find.
func checkPolicies(config schema.Config) error {
	_, err := policy.FromConfig(config)
	return err
}
