package envoy

import (
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromenvoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

// The descriptors and limits are those that the README of envoyproxy/ratelimit explains.
const importedConfig = `
domain: edge
descriptors:
- {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
- key: message_type
  value: marketing
  descriptors: [{key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}]
- {key: to_number, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: ldap, rate_limit: {unlimited: true}}
- key: service
  descriptors:
  - {key: user, value: user-a, rate_limit: {unit: second, requests_per_unit: 1}, shadow_mode: true}
  - {key: user, value: user-b, rate_limit: {unit: second, requests_per_unit: 2}}
- {key: key1, value: value*, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: route, value: /api/*/resource/*/action, rate_limit: {unit: minute, requests_per_unit: 30}}
- {key: files, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 3}}
`

func TestAnImportedConfigLimitsTheDescriptorsThatItHasLimited(t *testing.T) {
	result, err := fromenvoy.Convert([]fromenvoy.File{{Text: []byte(importedConfig)}}, fromkong.Options{})
	require.NoError(t, err)
	require.Equal(t, len(result.Entries), result.Converted())
	var deck struct{ Plugins []struct{ Config yaml.Node } }
	require.NoError(t, yaml.Unmarshal(result.Text, &deck))
	config, err := yaml.Marshal(&deck.Plugins[0].Config)
	require.NoError(t, err)
	w := newWorld(t, string(config))
	w.Mapping, err = ParseMapping(result.Mapping)
	require.NoError(t, err)
	for _, test := range []struct {
		descriptor     string
		limit, remains uint32 // no limit: none counts
		unit           string
	}{
		{"database=users", 500, 499, "SECOND"},
		{"database=other", 0, 0, ""},
		{"message_type=marketing to_number=1", 5, 4, "DAY"},
		{"message_type=marketing to_number=2", 5, 4, "DAY"},
		{"message_type=other to_number=2", 0, 0, ""},
		{"to_number=1", 100, 99, "DAY"},
		{"to_number=1", 100, 98, "DAY"},
		{"message_type=marketing", 0, 0, ""},
		{"to_number=1 message_type=marketing", 0, 0, ""}, // deeper than the config
		{"ldap=x", 0, 0, ""},
		{"service=auth user=user-b", 2, 1, "SECOND"},
		{"service=other user=user-b", 2, 1, "SECOND"},
		{"service=auth user=user-a", 0, 0, ""}, // only in shadow
		{"service=auth user=user-a", 0, 0, ""},
		{"key1=value7", 20, 19, "MINUTE"},
		{"key1=value8", 20, 19, "MINUTE"},
		{"key1=other", 0, 0, ""},
		{"route=/api/v1/resource/7/action", 30, 29, "MINUTE"},
		{"route=/api/v1/resource/7", 0, 0, ""},
		{"files=files/a", 3, 2, "HOUR"},
		{"files=files/b", 3, 1, "HOUR"}, // one bucket for both
	} {
		answer := w.call(callOf("edge", test.descriptor))
		status := answer.GetStatuses()[0]
		assert.Equal(t, rls.RateLimitResponse_OK, answer.GetOverallCode(), test.descriptor)
		assert.Equal(t, test.limit, status.GetCurrentLimit().GetRequestsPerUnit(), test.descriptor)
		assert.Equal(t, test.remains, status.GetLimitRemaining(), test.descriptor)
		unit := status.GetCurrentLimit().GetUnit().String()
		assert.Equal(t, test.unit, strings.TrimSuffix(unit, "UNKNOWN"), test.descriptor)
	}
	denied := w.call(callOf("edge", "files=files/c hits=xxx"))
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, denied.GetOverallCode(), "2 of a shared limit of which 1 is left")
}
