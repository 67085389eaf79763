package schema_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// denialProperty holds the parts of a property of the denial event that this test reads.
type denialProperty struct {
	Description          string                    `json:"description"`
	Properties           map[string]denialProperty `json:"properties"`
	AdditionalProperties *bool                     `json:"additionalProperties"`
	Required             []string                  `json:"required"`
	DependentRequired    map[string][]string       `json:"dependentRequired"`
	Const                any                       `json:"const"`
}

// The packages that write events test them against these schemas.
func TestTheSchemasOfEventsAreClosedVersionedAndDescribed(t *testing.T) {
	for _, file := range []string{
		"denial_event.schema.json", "policy_updated.schema.json", "quota_threshold.schema.json", "abuse_step.schema.json",
		"webhook_disabled.schema.json",
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var s denialProperty
		require.NoError(t, json.Unmarshal(text, &s))
		checkDenialProperty(t, "", s)
		if version := s.Properties["version"].Const; version != 1.0 || !slices.Contains(s.Required, "version") {
			t.Errorf("%s: version is %v, want the constant 1 in every event", file, version)
		}
	}
}

func checkDenialProperty(t *testing.T, path string, p denialProperty) {
	t.Helper()
	if p.Description == "" {
		t.Errorf("%q has no description", path)
	}
	if p.Properties == nil {
		return
	}
	if p.AdditionalProperties == nil || *p.AdditionalProperties {
		t.Errorf("%q may have any field", path)
	}
	wanted := slices.Clone(p.Required)
	for name, others := range p.DependentRequired {
		wanted = append(append(wanted, name), others...)
	}
	for _, name := range wanted {
		if _, ok := p.Properties[name]; !ok {
			t.Errorf("%q requires %q, which it does not describe", path, name)
		}
	}
	for name, property := range p.Properties {
		checkDenialProperty(t, path+"."+name, property)
	}
}
