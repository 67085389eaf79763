package identity_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// tenantOf returns the id of a tenant that a trusted header names.
func tenantOf(t interface{ Fatalf(string, ...any) }, rules *identity.Rules, name string) string {
	g := gateway{Request: identity.Request{Headers: []string{name}}}
	return g.identify(t, rules).Tenant.ID
}

func TestANameOfUpTo128BytesIsKeptByteForByte(t *testing.T) {
	rules := tenantRules(t, "header.X-Org")
	for _, name := range []string{
		"acme", " acme", "ACME", "\x00", "acme\x00", "acme\xff", "acme\xfe", "{acme}", "{t=acme}", "acme:daily", ":", "%7B",
		"é", "e\u0301",
		"sha256", "a\r\nb", strings.Repeat("x", 128),
	} {
		got := tenantOf(t, rules, name)
		assert.True(t, got == name, "tenant %q became %q", name, got)
	}
}

func TestALongNameIsHashed(t *testing.T) {
	rules := tenantRules(t, "header.X-Org")
	long := strings.Repeat("x", 129)
	sum := sha256.Sum256([]byte(long))
	hash := "sha256:" + hex.EncodeToString(sum[:])
	assert.Equal(t, hash, tenantOf(t, rules, long), "tenant of 129 bytes became")
	if got := tenantOf(t, rules, hash); got == hash || len(got) != len(hash) {
		t.Errorf("a tenant named %q became %q, the id of the tenant of 129 bytes", hash, got)
	}
	if got := tenantOf(t, rules, strings.Repeat("x", 1<<20)); len(got) != len(hash) || got == hash {
		t.Errorf("tenant of 1 MB became %d bytes: %.80q", len(got), got)
	}
}

func TestTwoNamesAreNeverOne(t *testing.T) {
	rules := tenantRules(t, "header.X-Org")
	long := strings.Repeat("x", 129)
	hashOf := func(name string) string {
		sum := sha256.Sum256([]byte(name))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	names := rapid.OneOf(
		rapid.SampledFrom([]string{
			long, long + "x", hashOf(long), hashOf(hashOf(long)), strings.ToUpper(hashOf(long)),
			"sha256:", "a", "a\x00", "{a}", "a:", "a:{}",
		}),
		rapid.StringN(1, 200, -1),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 140), func(b []byte) string { return string(b) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		a, b := names.Draw(t, "a"), names.Draw(t, "b")
		ida, idb := tenantOf(t, rules, a), tenantOf(t, rules, b)
		require.Equal(t, ida == idb, a == b, "tenants %q and %q became %q and %q", a, b, ida, idb)
	})
}

func TestAllNamesAreBounded(t *testing.T) {
	huge := strings.Repeat("z", 1<<20)
	rules := &identity.Rules{NeedTenant: true, NeedUser: true, NeedCredential: true, CostHeader: -1, IPv6Prefix: 64}
	rules.Tenant, rules.User = parse(t, rules, "consumer.tag.org"), parse(t, rules, "header.X-User-Id")
	rules.Compile(credential | ip)
	g := gateway{Request: identity.Request{
		Consumer: identity.Consumer{Tags: []string{"org:" + huge}}, Headers: []string{huge + "u"}, CredentialID: huge + "c",
		IP: huge + ":i",
	}}
	id := g.identify(t, rules)
	seen := map[string]bool{}
	for _, name := range []string{id.Tenant.ID, id.User.ID, id.Credential, id.IP} {
		if name == "" || len(name) > 128 || seen[name] {
			t.Errorf("name %.80q of %d bytes is empty, too long or another's", name, len(name))
		}
		seen[name] = true
	}
}

func TestAnAddressIsCountedAsOneClientHolds(t *testing.T) {
	tests := []struct {
		address string
		prefix  int
		want    string
	}{
		{"203.0.113.9", 64, "203.0.113.9"},
		{"::ffff:203.0.113.9", 64, "203.0.113.9"},
		{"::FFFF:CB00:7109", 64, "203.0.113.9"},
		{"::ffff:203.0.113.9%eth0", 64, "203.0.113.9"},
		{"2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"},
		{"2001:0DB8:0001:0002::ffff", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48"},
		{"2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6/128"},
		{"fe80::1%eth0", 64, "fe80::/64"},
		{"fe80::1%eth1", 64, "fe80::/64"},
		{"::1", 64, "::/64"},
		{"", 64, "unknown"},
		{"unix:", 64, "unix:"},
		{"unix:/var/run/kong.sock", 64, "unix:/var/run/kong.sock"},
		{"not an address", 64, "not an address"},
		{"1::2::3", 64, "1::2::3"},
		{"\x00:\xff", 64, "\x00:\xff"},
	}
	for _, test := range tests {
		rules := &identity.Rules{CostHeader: -1, IPv6Prefix: test.prefix}
		rules.Compile(ip)
		g := gateway{Request: identity.Request{IP: test.address}}
		assert.Equal(t, test.want, g.identify(t, rules).IP, "address %q per /%d is counted as", test.address, test.prefix)
	}
}

func TestACostHeaderIsBoundedAndNonsenseBuysNothing(t *testing.T) {
	tests := []struct {
		header string
		want   int64
	}{
		{"", 0},
		{"1", 1},
		{"7", 7},
		{"007", 7},
		{"99", 99},
		{"100", 100},
		{"101", 100},
		{"9223372036854775807", 100},
		{"9223372036854775808", 100},
		{strings.Repeat("9", 1<<20), 100},
		{strings.Repeat("0", 100) + "5", 5},
		{"0", 0},
		{"-1", 0},
		{"+1", 0},
		{"1.5", 0},
		{"1e2", 0},
		{" 5", 0},
		{"5 ", 0},
		{"5,5", 0},
		{"0x10", 0},
		{"1_0", 0},
		{"٣", 0},
		{"5\x00", 0},
		{"free", 0},
	}
	rules := &identity.Rules{CostHeader: 0, CostHeaderMax: 100, Headers: []string{"X-Cost"}}
	rules.Compile(0)
	for _, test := range tests {
		g := gateway{Request: identity.Request{Headers: []string{test.header}}}
		assert.Equal(t, test.want, g.identify(t, rules).Cost, "cost header %.40q counts as", test.header)
		g.wantRounds(t, headers)
	}
}
