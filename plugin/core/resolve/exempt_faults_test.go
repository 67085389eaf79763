package resolve_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// faultyEntry returns an override as an entry of a config's list exempt, and the path of its fault; false if it is no
// exemption, or faulty for what only overrides have.
func faultyEntry(c policytest.OverrideCase) (entry map[string]any, field string, ok bool) {
	names := map[string]string{"tag": "tag", "ip": "cidr", "endpoint": "endpoint", "user": "user"}
	entry = map[string]any{}
	if !c.All {
		entry["tenant"] = "acme"
	}
	for name, value := range c.Override {
		if names[name] == "" {
			continue
		}
		entry[names[name]] = value
	}
	text, _ := c.Override[c.Field].(string)
	isSubject := names[c.Field] != "" && c.Override["kind"] == policy.Exempt && c.Override["credential"] == nil
	switch {
	case c.Field == "ip" && (text == "" || !slices.Contains([]string{"239.1.0.0/16", "ff02::/16"}, text)):
		return nil, "", false // an entry has networks alone, whose other faults are their own
	case c.Field == "tag" && text == "x":
		return nil, "", false // it may stand beside a tenant
	case c.Field == "tag" && text == "x*", c.Field == "user" && text != "":
		return nil, "", false // Kong's schema reports the value too
	}
	return entry, "exempt[0]." + names[c.Field], isSubject
}

func TestAnExemptionThatMatchesNothingHasTheSameFaultInAConfigAsInAnOverride(t *testing.T) {
	compared := 0
	for _, c := range policytest.FaultyOverrides(t, "../../../schema/testdata/faulty_overrides.json") {
		entry, path, ok := faultyEntry(c)
		if !ok {
			continue
		}
		compared++
		raw, err := json.Marshal(map[string]any{"exempt": []any{entry}})
		require.NoError(t, err)
		config, _, err := schema.Parse(raw)
		if err == nil {
			_, err = resolve.FromConfig(config)
		}
		var faults schema.Faults
		if !errors.As(err, &faults) || !slices.Contains(faults, schema.Fault{Path: path, Message: c.Message}) {
			t.Errorf("%s: %v, want %s: %s", raw, err, path, c.Message)
		}
	}
	if compared < 15 {
		t.Errorf("%d faults were compared, want at least 15", compared)
	}
}

func TestTheAddressOfARequestIsExemptOrBannedInFull(t *testing.T) {
	for _, prefix := range []int64{48, 64, 128} {
		plan := compile(t, fmt.Sprintf("ipv6_prefix_length: %d\n", prefix)+fmt.Sprintf(exempting, ""))
		for ip, others := range map[string][]string{
			"2001:db8:0:1::7/128": {"2001:db8:0:1::8", "2001:db8:0:2::7"},
			"2001:db8:0:1::/80":   {"2001:db8:0:1:1::7", "2001:db8:0:2::7"},
			"2001:db8:0:1::7":     {"2001:db8:0:2::7"}, // which stands for its /64
			"2001:db8:0::/48":     {"2001:db8:1::7"},
		} {
			for _, kind := range []string{policy.Exempt, policy.Ban} {
				with := plan.With(build(t, policy.Rows{Overrides: numbered(schema.Override{Kind: kind, IP: ip})}))
				applies := func(address string) bool {
					id := identityOf(t, &with.Rules, address)
					var r resolve.Resolution
					with.ResolveAt(&id, 1, &r)
					return r.Exempt || r.Banned
				}
				if !applies("2001:db8:0:1::7") {
					t.Errorf("%s of %s with ipv6_prefix_length %d does not apply", kind, ip, prefix)
				}
				for _, other := range others {
					if applies(other) {
						t.Errorf("%s of %s with ipv6_prefix_length %d applies to %s", kind, ip, prefix, other)
					}
				}
			}
		}
	}
}

// identityOf returns the identity of an anonymous request from an address.
func identityOf(t *testing.T, rules *identity.Rules, address string) identity.Identity {
	t.Helper()
	request := identity.Request{Known: ^identity.Facts(0), IP: address, Method: "GET", Path: "/records"}
	var id identity.Identity
	if need := rules.Identify(&request, &id); need != 0 {
		t.Fatalf("the facts %b are missing", need)
	}
	return id
}
