package resolve_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// A name is whatever a client or an administrator could write.
var anyName = rapid.OneOf(
	rapid.SampledFrom([]string{
		"acme", "acme\x00", "{acme}", "acme:t", ":", "{}", "192.0.2.1", "2001:db8::/64", "GET /x/{id}", "records",
		"\xff", "\xfe", "*", " ",
	}),
	rapid.StringN(1, 20, -1),
	rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 20), func(b []byte) string { return string(b) }),
)

// someone of a tenant or of an address, with whatever names beside it.
func someone(t *rapid.T, who identity.Name, label string) identity.Identity {
	userKinds := []identity.Kind{identity.User, identity.Credential, identity.IP}
	userKind := rapid.SampledFrom(userKinds).Draw(t, label+" user kind")
	return identity.Identity{
		Tenant: who, User: identity.Name{Kind: userKind, ID: anyName.Draw(t, label+" user")},
		Credential: rapid.OneOf(rapid.Just(""), anyName).Draw(t, label+" credential"), IP: anyName.Draw(t, label+" address"),
		Method: "GET", Path: rapid.SampledFrom([]string{"/", "/x/1", "/y"}).Draw(t, label+" path"),
		Route: anyName.Draw(t, label+" route"),
	}
}

const tenantScopes = `
tiers:
- name: one
  limits:
  - {name: t, scope: tenant, limit: 1, window_size: 1}
  - {name: u, scope: user, limit: 1, window_size: 1}
  - {name: c, scope: credential, limit: 1, window_size: 1}
  - {name: te, scope: tenant+endpoint, endpoint: "GET /x/{id}", limit: 1, window_size: 1}
  - {name: te-route, scope: tenant+endpoint, limit: 1, window_size: 1}
  - {name: ue, scope: user+endpoint, endpoint: "* /*", limit: 1, window_size: 1}
`

func TestNoTenantSpendsFromAnotherTenantsBuckets(t *testing.T) {
	plan := compile(t, tenantScopes)
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom([]identity.Kind{identity.Tenant, identity.IP})
		a := identity.Name{Kind: kinds.Draw(t, "kind a"), ID: anyName.Draw(t, "a")}
		b := identity.Name{Kind: kinds.Draw(t, "kind b"), ID: anyName.Draw(t, "b")}
		keysA, _ := bounds(plan, someone(t, a, "a's"))
		keysB, _ := bounds(plan, someone(t, b, "b's"))
		require.True(t, len(keysA) != 0 && len(keysB) != 0, "no bounds")
		met := false
		for _, x := range keysA {
			for _, y := range keysB {
				met = met || x == y
			}
		}
		// Everyone has the bucket t, so the same tenant always meets itself.
		require.Equal(t, a == b, met, "%+v and %+v share a bucket", a, b)
	})
}

func TestAUserACredentialAndAnAddressOfOneNameAreThree(t *testing.T) {
	plan := compile(t, `tiers: [{name: one, limits: [{name: u, scope: user, limit: 1, window_size: 1}]}]`)
	seen := map[policy.Key]identity.Kind{}
	for _, kind := range []identity.Kind{identity.User, identity.Credential, identity.IP} {
		keys, _ := bounds(plan, identity.Identity{Tenant: tenant("acme"), User: identity.Name{Kind: kind, ID: "same"}})
		require.Len(t, keys, 1, "bounds")
		if other, ok := seen[keys[0]]; ok {
			t.Errorf("kinds %d and %d share %+v", other, kind, keys[0])
		}
		seen[keys[0]] = kind
	}
}

func TestACredentialAndTheAddressThatStandsInForOneAreTwo(t *testing.T) {
	plan := compile(t, `tiers: [{name: one, limits: [{name: c, scope: credential, limit: 1, window_size: 1}]}]`)
	with, _ := bounds(plan, identity.Identity{Tenant: tenant("acme"), Credential: "192.0.2.1", IP: "192.0.2.1"})
	without, _ := bounds(plan, identity.Identity{Tenant: tenant("acme"), IP: "192.0.2.1"})
	want := policy.Key{
		Namespace: "default", Policy: "c", Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindIP, Subject: "192.0.2.1",
	}
	if without[0] != want || with[0] == want {
		t.Errorf("without a credential the bucket is %+v, with one %+v, want %+v and another", without[0], with[0], want)
	}
}
