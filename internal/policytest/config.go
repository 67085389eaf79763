package policytest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Config returns the config of a text as an administrator writes it, in YAML.
func Config(t testing.TB, text string) schema.Config {
	t.Helper()
	var document any
	require.NoError(t, yaml.Unmarshal([]byte(text), &document), "parse YAML")
	raw, err := json.Marshal(document)
	require.NoError(t, err, "encode config")
	config, _, err := schema.Parse(raw)
	require.NoError(t, err, "parse config")
	return config
}
