package envoy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

func TestTheFirstRuleThatFitsADescriptorNamesItsTierAndTenant(t *testing.T) {
	m, err := ParseMapping([]byte(`{domains: {edge: {user_from: [descriptor.user], rules: [
  {entries: [path=/api/*/v*/get], tier: wild},
  {entries: [path=/files/*], tier: shared, tenant: files},
  {entries: [path=/files/exact], tier: late},
  {entries: [path=exact], tier: exact},
  {entries: [path=exact], tier: second},
  {entries: [host=a, path=/x], tier: two},
  {entries: [host, path=/y], tier: last},
  {entries: [host=b, path], tier: first},
  {entries: [host=b, path=/z], tier: late},
  {entries: [path=a*a], tier: ends},
  {entries: [path], tier: any},
  {entries: [plan=gold, user], tier: gold}]}}}`))
	require.NoError(t, err)
	for text, want := range map[string]string{
		"path=/api/7/v1/get":  "wild path=%2Fapi%2F7%2Fv1%2Fget",
		"path=/api//v/get":    "wild path=%2Fapi%2F%2Fv%2Fget",
		"path=/api/7/v1/put":  "any path=%2Fapi%2F7%2Fv1%2Fput",
		"path=/api/v/get":     "any path=%2Fapi%2Fv%2Fget",
		"path=/files/a":       "shared files",
		"path=/files/exact":   "shared files", // the first that fits, though another one is exact
		"path=exact":          "exact path=exact",
		"host=a path=/x":      "two host=a&path=%2Fx",
		"path=/x host=a":      "nothing",
		"host=b path=/y":      "last host=b&path=%2Fy",
		"host=b path=/z":      "first host=b&path=%2Fz",
		"path=a":              "any path=a", // the wildcard's parts do not overlap
		"path=aa":             "ends path=aa",
		"path=x&y":            "any path=x%26y",
		"plan=gold user=u":    "gold plan=gold&user=u",
		"user=u plan=gold":    " ", // mapped by user_from alone
		"plan=gold":           "nothing",
		"path=/files/a user=": "nothing", // one entry too many
	} {
		var r admit.CallerRequest
		got := "nothing"
		if m["edge"].read(callOf("edge", text).GetDescriptors()[0], &r) {
			got = r.Tier + " " + r.Tenant
		}
		assert.Equal(t, want, got, text)
	}
	m, err = ParseMapping([]byte(`{domains: {edge: {tenant_from: [descriptor.user], tier_from: [descriptor.plan],
  rules: [{entries: [plan, user], tier: ruled, tenant: ruled}]}}}`))
	require.NoError(t, err)
	var sourced admit.CallerRequest
	require.True(t, m["edge"].read(callOf("edge", "plan=gold user=u").GetDescriptors()[0], &sourced))
	assert.Equal(t, "gold u", sourced.Tier+" "+sourced.Tenant, "sources go before rules")
	for text, want := range map[string]string{
		"7": "domains.edge.rules: must be a list", "[{tier: a}]": "rules: [0]: must have entries",
		"[{entries: [a], tier: b, unit: c}]": "rules: [0]: must have", "[]": "maps nothing",
	} {
		_, err := ParseMapping([]byte("{domains: {edge: {rules: " + text + "}}}"))
		require.Error(t, err, text)
		assert.True(t, strings.Contains(err.Error(), want), "%s: %v", text, err)
	}
}
