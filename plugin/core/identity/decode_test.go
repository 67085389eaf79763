package identity_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// decodedPaths are targets, the path of Kong's router, and the path when reserved characters are decoded too.
var decodedPaths = []struct{ target, routed, decoded string }{
	{"/records/7", "/records/7", "/records/7"},
	{"/records%2f7", "/records%2F7", "/records/7"},
	{"/records%2F%2F7%2f", "/records%2F%2F7%2F", "/records/7/"},
	{"/a%2F..%2Fb", "/a%2F..%2Fb", "/b"},
	{"/a%2f%2e%2e%2fb", "/a%2F..%2Fb", "/b"},
	{"/%2E%2E/%2e%2e%2Fb", "/..%2Fb", "/b"},
	{"/records%252F7", "/records%252F7", "/records%2F7"}, // once, and no further
	{"/%252e%252e/b", "/%252e%252e/b", "/%2e%2e/b"},
	{"/a%3Fb%23c%5Bd", "/a%3Fb%23c%5Bd", "/a?b#c[d"},
	{"/%2F", "/%2F", "/"},
	{"/a%2Fb?c=%2F", "/a%2Fb", "/a/b"},
}

func TestEndpointsAreMatchedOnTheDecodedPathIfTheConfigSaysSo(t *testing.T) {
	for _, c := range decodedPaths {
		normal := identity.NormalizePath(c.target)
		if normal != c.routed {
			t.Errorf("NormalizePath(%q) = %q, want %q", c.target, normal, c.routed)
		}
		for decode, want := range map[bool]string{false: c.routed, true: c.decoded} {
			rules := identity.Rules{DecodePath: decode}
			rules.Compile(identity.TargetFact)
			request := identity.Request{Known: ^identity.Facts(0), Path: normal}
			var id identity.Identity
			if missing := rules.Identify(&request, &id); missing != 0 || id.Path != want {
				t.Errorf("decoded %v: path of %q is %q, want %q", decode, c.target, id.Path, want)
			}
		}
	}
}
