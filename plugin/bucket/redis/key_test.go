package redis

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestKeysAreWhatTheDocumentationSays(t *testing.T) {
	cases := map[string]struct {
		key     policy.Key
		subject string
		log     string
	}{
		"tenant": {
			policy.Key{Policy: "daily", Group: policy.ByTenant, GroupID: "acme"},
			"rl:default:{t=acme}", "rl:default:{t=acme}:log:daily",
		},
		"tenant+endpoint": {
			policy.Key{Policy: "writes", Group: policy.ByTenant, GroupID: "acme", Endpoint: "POST /records"},
			"rl:default:{t=acme}", "rl:default:{t=acme}:log:writes:POST%20/records",
		},
		"user": {
			policy.Key{
				Policy: "burst", Group: policy.ByTenant, GroupID: "acme",
				Kind: policy.KindUser, Subject: "u_42",
			},
			"rl:default:{t=acme}:u=u_42", "rl:default:{t=acme}:u=u_42:log:burst",
		},
		"user+endpoint": {
			policy.Key{
				Policy: "heavy", Group: policy.ByTenant, GroupID: "acme",
				Kind: policy.KindUser, Subject: "u_42", Endpoint: "GET /export",
			},
			"rl:default:{t=acme}:u=u_42", "rl:default:{t=acme}:u=u_42:log:heavy:GET%20/export",
		},
		"credential": {
			policy.Key{
				Policy: "keys", Group: policy.ByTenant, GroupID: "acme",
				Kind: policy.KindCredential, Subject: "9f2c41d0",
			},
			"rl:default:{t=acme}:c=9f2c41d0", "rl:default:{t=acme}:c=9f2c41d0:log:keys",
		},
		"user, by ip": {
			policy.Key{
				Policy: "burst", Group: policy.ByTenant, GroupID: "acme",
				Kind: policy.KindIP, Subject: "192.0.2.7",
			},
			"rl:default:{t=acme}:i=192.0.2.7", "rl:default:{t=acme}:i=192.0.2.7:log:burst",
		},
		"ip": {
			policy.Key{Policy: "visitors", Group: policy.ByIP, GroupID: "2001:db8::/64"},
			"rl:default:{i=2001%3Adb8%3A%3A/64}", "rl:default:{i=2001%3Adb8%3A%3A/64}:log:visitors",
		},
		"endpoint": {
			policy.Key{Policy: "logins", Group: policy.ByEndpoint, GroupID: "POST /login"},
			"rl:default:{e=POST%20/login}", "rl:default:{e=POST%20/login}:log:logins",
		},
		"global": {
			policy.Key{Policy: "everything", Group: policy.ByAll},
			"rl:default:{g}", "rl:default:{g}:log:everything",
		},
		"forged braces": {
			policy.Key{Policy: "p", Group: policy.ByTenant, GroupID: "x}:u={t=acme"},
			"rl:default:{t=x%7D%3Au%3D%7Bt%3Dacme}", "rl:default:{t=x%7D%3Au%3D%7Bt%3Dacme}:log:p",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.key.Namespace = "default"
			assert.Equal(t, c.subject, string(appendSubject(nil, &c.key)), "subject")
			assert.Equal(t, c.log, string(appendLog(nil, &c.key)), "log")
		})
	}
}

// drawPart draws names that try to look like something else.
func drawPart(t *rapid.T, label string) string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "a", "b", "acme", "log", ":", "}", "{t=a}", "a:log:p", "u=a",
			"%", "%61", "\x00", "é",
		}),
		rapid.StringN(0, 6, 12),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }),
	).Draw(t, label)
}

func drawKey(t *rapid.T, label string) policy.Key {
	return policy.Key{
		Namespace: drawPart(t, label+" namespace"), Policy: drawPart(t, label+" policy"),
		Group: rapid.SampledFrom([]policy.Group{policy.ByTenant, policy.ByIP, policy.ByEndpoint, policy.ByAll}).Draw(t,
			label+" group"),
		Kind: rapid.SampledFrom([]policy.Kind{
			policy.WholeGroup, policy.KindUser, policy.KindCredential, policy.KindIP,
		}).Draw(t, label+" kind"),
		GroupID: drawPart(t, label+" tenant"), Subject: drawPart(t, label+" subject"),
		Endpoint: drawPart(t, label+" endpoint"),
	}
}

// near draws a key, and another that differs from it in few parts.
func near(t *rapid.T) (policy.Key, policy.Key) {
	a, b := drawKey(t, "one"), drawKey(t, "other")
	keep := rapid.SliceOfN(rapid.Bool(), 7, 7).Draw(t, "equal parts")
	for i, equal := range keep {
		if !equal {
			continue
		}
		switch i {
		case 0:
			b.Namespace = a.Namespace
		case 1:
			b.Policy = a.Policy
		case 2:
			b.Group = a.Group
		case 3:
			b.Kind = a.Kind
		case 4:
			b.GroupID = a.GroupID
		case 5:
			b.Subject = a.Subject
		default:
			b.Endpoint = a.Endpoint
		}
	}
	return a, b
}

func TestNoTwoBucketsShareAPlace(t *testing.T) {
	place := func(k *policy.Key) string {
		return string(appendSubject(nil, k)) + " " + string(appendName(nil, k))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := near(t)
		if a == b {
			return
		}
		if place(&a) == place(&b) {
			t.Fatalf("%+v and %+v are both kept at %s", a, b, appendSubject(nil, &a))
		}
		if string(appendLog(nil, &a)) == string(appendLog(nil, &b)) {
			t.Fatalf("%+v and %+v both have their entries at %s", a, b, appendLog(nil, &a))
		}
		if string(appendLog(nil, &a)) == string(appendSubject(nil, &b)) {
			t.Fatalf("the entries of %+v are where %+v is kept: %s", a, b, appendLog(nil, &a))
		}
		if (string(appendSubject(nil, &a)) == string(appendSubject(nil, &b))) != sameSubject(&a, &b) {
			t.Fatalf("%+v and %+v: sameSubject says %v", a, b, sameSubject(&a, &b))
		}
	})
}

// A cluster finds the slot by what stands between the first brace and the next closing one.
func tag(t *rapid.T, key []byte) string {
	_, rest, opened := strings.Cut(string(key), "{")
	tag, _, closed := strings.Cut(rest, "}")
	require.True(t, opened && closed && tag != "", "%s has no hash tag", key)
	return tag
}

func TestAllKeysOfAGroupHaveOneSlotAndNoOtherGroupHasItsTag(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := near(t)
		if tag(t, appendSubject(nil, &a)) != tag(t, appendLog(nil, &a)) {
			t.Fatalf("%s and %s are in two slots", appendSubject(nil, &a), appendLog(nil, &a))
		}
		if (tag(t, appendSubject(nil, &a)) == tag(t, appendSubject(nil, &b))) != sameGroup(&a, &b) {
			t.Fatalf("%s and %s: together says %v", appendSubject(nil, &a), appendSubject(nil, &b), sameGroup(&a, &b))
		}
	})
}
