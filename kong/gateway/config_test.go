package gateway

import (
	"strings"
	"testing"
)

func TestSettingsOfBundledPluginsThatAreNotSimulatedAreDenied(t *testing.T) {
	err := CheckConfig(deckConfig(t, `
consumers: [{username: u}]
plugins:
- {name: jwt, config: {maximum_expiration: 5, claims_to_verify: [aud], cookie_names: [c], realm: r}}
- {name: key-auth, consumer: u, config: {key_names: ["a b"], key_in_body: true, hide_credentials: true}}
- {name: other}
`))
	for _, want := range []string{
		"plugins[0].config.claims_to_verify[0]: expected one of: exp, nbf",
		"plugins[0].config.realm: realms are not simulated",
		"plugins[0].config.maximum_expiration: a maximum is not simulated",
		"plugins[1].config.key_names[0]: invalid value: a b",
		"plugins[0].config.cookie_names: tokens in cookies are not simulated", "hidden credentials are not simulated",
		"plugins[1].config.key_in_body: keys in bodies are not simulated", "plugins[1].consumer: value must be null",
		"plugins[2]: plugin 'other' not enabled",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no fault %q in %v", want, err)
		}
	}
}
