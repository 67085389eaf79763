package identity_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

func TestEachSourceReadsItsOwnField(t *testing.T) {
	request := identity.Request{
		Consumer: identity.Consumer{
			ID: "c-1", Username: "alice", CustomID: "acme", Tags: []string{"org:tagged", "tier:enterprise"},
		},
		Headers: []string{"from-header"},
		Token:   token(hs256, `{"org_id":"claimed"}`),
	}
	for source, want := range map[string]string{
		"consumer.id":        "c-1",
		"consumer.username":  "alice",
		"consumer.custom_id": "acme",
		"consumer.tag.org":   "tagged",
		"header.X-Org":       "from-header",
		"jwt.org_id":         "claimed",
	} {
		id := (&gateway{Request: request}).identify(t, tenantRules(t, source))
		assert.Equal(t, identity.Name{Kind: identity.Tenant, ID: want}, id.Tenant, "%s: tenant", source)
		if id := (&gateway{}).identify(t, tenantRules(t, source)); !id.Anonymous {
			t.Errorf("%s: tenant of an empty request is %v, want an anonymous one", source, id.Tenant)
		}
	}
}

func TestTheFirstSourceThatIsNotEmptyWins(t *testing.T) {
	sources := []string{"jwt.org", "header.X-Org", "consumer.custom_id", "consumer.username"}
	request := identity.Request{
		Consumer: identity.Consumer{Username: "by-username", CustomID: "by-custom-id"},
		Headers:  []string{"by-header"},
		Token:    token(hs256, `{"org":"by-claim"}`),
	}
	for _, want := range []string{"by-claim", "by-header", "by-custom-id", "by-username"} {
		assert.Equal(t, want, (&gateway{Request: request}).identify(t, tenantRules(t, sources...)).Tenant.ID, "tenant")
		switch want {
		case "by-claim":
			request.Token = token(hs256, `{"org":""}`)
		case "by-header":
			request.Headers = []string{""}
		case "by-custom-id":
			request.Consumer.CustomID = ""
		}
	}
}

func TestTheErrorOfAnUnknownSourceQuotesIt(t *testing.T) {
	for _, source := range []string{
		"", "consumer", "consumer.tags", "consumer.tag.", "header.", "jwt.", "jwt", "Consumer.id", "query.org",
		" consumer.id",
	} {
		_, err := identity.ParseSources([]string{"consumer.id", source}, new([]string))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", source)) {
			t.Errorf("ParseSources(%q): error %v, want one that quotes it", source, err)
		}
	}
}

func TestAHeaderIsReadOnceHoweverItIsSpelt(t *testing.T) {
	rules := tenantRules(t, "header.x-org", "header.X-ORG", "header.X-Other", "header.X-Org")
	assert.Equal(t, []string{"X-Org", "X-Other"}, rules.Headers, "headers")
	assert.Equal(t, 1, identity.Header("x-other", &rules.Headers), "index of x-other")
	i := identity.Header("x-new", &rules.Headers)
	assert.True(t, i == 2 && rules.Headers[2] == "X-New", "index of x-new is %d in %q, want 2", i, rules.Headers)
}

func TestTheFirstTagWithTheKeyAndAValueWins(t *testing.T) {
	tests := []struct {
		name string
		tags []string
		want string
	}{
		{"first of several", []string{"a:b", "org:one", "org:two"}, "one"},
		{"no value", []string{"org:", "org:two"}, "two"},
		{"no colon", []string{"org", "orgone"}, ""},
		{"longer key", []string{"orga:one", "xorg:one"}, ""},
		{"colons in the value", []string{"org:a:b:"}, "a:b:"},
		{"empty tags", []string{"", ":", ":org"}, ""},
		{"no tags", nil, ""},
		{"the last of ten thousand", append(slices.Repeat([]string{"x:y"}, 10_000), "org:last"), "last"},
	}
	for _, test := range tests {
		g := gateway{Request: identity.Request{Consumer: identity.Consumer{Tags: test.tags}}}
		assert.Equal(t, test.want, g.identify(t, tenantRules(t, "consumer.tag.org")).Tenant.ID, "%s: tenant", test.name)
	}
}

func TestAClaimIsAStringOrAWholeNumber(t *testing.T) {
	for claims, want := range map[string]string{
		`{"org":"acme"}`:                      "acme",
		`{"org":"a\u0000\"b"}`:                "a\x00\"b",
		`{"org":42}`:                          "42",
		`{"org":-7}`:                          "-7",
		`{"org":0}`:                           "0",
		`{"org":9007199254740993}`:            "9007199254740993", // not the nearest double
		`{"org":9223372036854775808}`:         "",
		`{"org":1.5}`:                         "",
		`{"org":1e400}`:                       "",
		`{"org":""}`:                          "",
		`{"org":null}`:                        "",
		`{"org":true}`:                        "",
		`{"org":["acme"]}`:                    "",
		`{"org":{"id":"acme"}}`:               "",
		`{"ORG":"acme"}`:                      "",
		`{}`:                                  "",
		`["org"]`:                             "",
		`"org"`:                               "",
		`null`:                                "",
		`{"org":"acme"`:                       "",
		`{"org":"a\ud800"}`:                   "", // half a character
		"{\"org\":\"a\xff\"}":                 "",
		`{"org":"\ud83d\ude00"}`:              "😀",
		`{"org":"acme","exp":1,"nbf":1e15}`:   "acme", // the gateway checks whether it is valid
		`{"org":"acme","exp":"never","x":[]}`: "acme",
	} {
		g := gateway{Request: identity.Request{Token: token(hs256, claims)}}
		assert.Equal(t, want, g.identify(t, tenantRules(t, "jwt.org")).Tenant.ID, "claims %s: tenant", claims)
	}
}

func TestABrokenTokenIsAMissingTenant(t *testing.T) {
	good := token(hs256, `{"org":"acme"}`)
	header, after, _ := strings.Cut(good, ".")
	claims, _, _ := strings.Cut(after, ".")
	for name, text := range map[string]string{
		"none":            "",
		"no dots":         "token",
		"two parts":       header + "." + claims,
		"four parts":      good + ".more",
		"bad base64":      header + ".*" + claims + ".c2ln",
		"header not JSON": token("{", `{"org":"acme"}`),
		"with its scheme": "Bearer " + good,
		"NUL":             "\x00.\x00.\x00",
		"one megabyte":    strings.Repeat("a", 1<<20),
	} {
		g := gateway{Request: identity.Request{Token: text}}
		id := g.identify(t, tenantRules(t, "jwt.org"))
		assert.True(t, id.Anonymous && id.Tenant == (identity.Name{}), "%s: tenant is %v, want none", name, id.Tenant)
	}
}

// The gateway decides whether a token may be unsigned: only a token that it has verified is a fact.
func TestTheSignatureIsNotRead(t *testing.T) {
	for _, header := range []string{hs256, `{"alg":"none"}`, `{"alg":"EdDSA"}`} {
		g := gateway{Request: identity.Request{Token: token(header, `{"org":"acme"}`)}}
		assert.Equal(t, "acme", g.identify(t, tenantRules(t, "jwt.org")).Tenant.ID, "header %s: tenant", header)
	}
}

// FuzzClaims compares the reader of tokens with encoding/json: a token that names a tenant has an object with such a
// claim.
func FuzzClaims(f *testing.F) {
	for _, claims := range []string{`{"org":"acme"}`, `{"org":7}`, `{"org":[]}`, `{`, `{"org":"acme"} `, `{"org":-0}`} {
		f.Add(token(hs256, claims))
	}
	f.Add("..")
	f.Add("e30.e30.")
	f.Fuzz(func(t *testing.T, text string) {
		g := gateway{Request: identity.Request{Token: text}}
		id := g.identify(t, tenantRules(t, "jwt.org"))
		if id.Anonymous == (id.Tenant.ID != "") || len(id.Tenant.ID) > 128 {
			t.Fatalf("token %q: anonymous %v with tenant %q", text, id.Anonymous, id.Tenant.ID)
		}
		if id.Anonymous || strings.HasPrefix(id.Tenant.ID, "sha256:") {
			return
		}
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(text, ".")[1])
		require.NoError(t, err, "token %q: tenant %q from a payload that is not base64", text, id.Tenant.ID)
		var claims map[string]json.RawMessage
		// What follows the object is ignored: the gateway has verified the token.
		if err := json.NewDecoder(bytes.NewReader(payload)).Decode(&claims); err != nil {
			t.Fatalf("payload %q: tenant %q although it is not an object: %v", payload, id.Tenant.ID, err)
		}
		var value string
		if err := json.Unmarshal(claims["org"], &value); err != nil {
			value = string(claims["org"]) // a number
		}
		if value == "-0" {
			value = "0"
		}
		require.Equal(t, id.Tenant.ID, value, "payload %q: tenant is %q, want %q", payload, id.Tenant.ID, value)
	})
}
