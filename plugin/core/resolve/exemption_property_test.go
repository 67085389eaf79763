package resolve_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestARequestThatNoEntryMatchesIsResolvedAsWithoutEntries(t *testing.T) {
	without, err := resolve.FromConfig(parsedExempting())
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		config := parsedExempting()
		config.Exempt = rapid.SliceOfN(someExemption, 0, 12).Draw(t, "entries")
		plan, err := resolve.FromConfig(config)
		require.NoError(t, err)
		id := someCaller(t)
		r, plain := resolved(plan, id), resolved(without, id)
		first := slices.IndexFunc(config.Exempt, func(e schema.Exemption) bool { return covers(e, &id) })
		if r.Exempt != (first >= 0) || r.Exempt && r.Exemption.Entry != first {
			t.Fatalf("exempt %v by %+v, want that of entry %d", r.Exempt, r.Exemption, first)
		}
		got, want := r.Bounds, plain.Bounds
		require.True(t, r.Exempt || sameBounds(got, want), "bounds are\n%+v, want\n%+v", got, want)
		if r.Endpoint != plain.Endpoint || r.Tier != plain.Tier {
			t.Fatalf("endpoint %q and tier %q, want %q and %q", r.Endpoint, r.Tier, plain.Endpoint, plain.Tier)
		}
	})
}

func sameBounds(a, b []policy.Bound) bool {
	return slices.EqualFunc(a, b, func(a, b policy.Bound) bool { return a.Key == b.Key && a.Cost == b.Cost })
}

func parsedExempting() schema.Config {
	limits := func(scopes ...string) (list []schema.Limit) {
		for _, scope := range scopes {
			l := schema.Limit{Name: strings.ReplaceAll(scope, "+", "-"), Scope: scope, Limit: 10, WindowSize: 60}
			if strings.Contains(scope, "endpoint") {
				l.Endpoint = "* /exports/*"
			}
			list = append(list, l)
		}
		return list
	}
	return schema.Config{
		UserFrom: []string{"consumer.id"},
		Tiers:    []schema.Tier{{Name: "a", Limits: limits("tenant", "user", "tenant+endpoint", "credential", "ip")}},
		Global:   schema.Global{Limits: limits("global", "endpoint")},
	}.WithDefaults()
}

var someExemption = rapid.Custom(func(t *rapid.T) schema.Exemption {
	some := func(name string, values ...string) string { return rapid.SampledFrom(values).Draw(t, name) }
	e := schema.Exemption{
		Tenant: some("tenant", "", "", "acme", "globex"), User: some("user", "", "u", "v"),
		Tag:      some("tag", "", "", "x", "y"),
		CIDR:     some("cidr", "", "", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "2001:db8::/32", "2001:db8::7/128"),
		Endpoint: some("endpoint", "", "", "GET /exports/{id}", "* /{x}/7", "* /exports/*", "GET /exports/7"),
	}
	if e.Tenant == "" {
		e.User = ""
	}
	if e == (schema.Exemption{}) {
		e.Tag = "x"
	}
	return e
})

func someCaller(t *rapid.T) identity.Identity {
	some := func(name string, values ...string) string { return rapid.SampledFrom(values).Draw(t, name) }
	id := identity.Identity{
		Method: some("method", "GET", "POST"), Path: some("path", "/exports/7", "/other/7", "/exports/7/8", "/exports/%2F"),
		Tags:    rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3).Draw(t, "tags"),
		Address: netip.MustParseAddr(some("address", "10.1.2.3", "10.1.9.9", "10.9.9.9", "192.0.2.1", "2001:db8::7", "::1")),
	}
	id.IP = id.Address.String()
	if name := some("tenant", "", "acme", "globex", "initech"); name != "" {
		id.Tenant = tenant(name)
		if user := some("user", "", "u", "v", "w"); user != "" {
			id.User = identity.Name{Kind: identity.User, ID: user}
		}
	}
	return id
}

// covers reports whether an entry matches a request, field by field.
func covers(e schema.Exemption, id *identity.Identity) bool {
	inNetwork := e.CIDR == "" || netip.MustParsePrefix(e.CIDR).Contains(id.Address)
	matching := map[string]bool{
		"": true, "GET /exports/{id}": id.Method == "GET" && id.Path == "/exports/7",
		"GET /exports/7": id.Method == "GET" && id.Path == "/exports/7",
		"* /{x}/7":       id.Path == "/exports/7" || id.Path == "/other/7",
		"* /exports/*":   id.Path == "/exports/7" || id.Path == "/exports/7/8",
	}
	return (e.Tenant == "" || id.Tenant == tenant(e.Tenant)) && (e.User == "" || id.User.ID == e.User) &&
		(e.Tag == "" || slices.Contains(id.Tags, e.Tag)) && inNetwork && matching[e.Endpoint]
}

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
	isSubject := names[c.Field] != "" && c.Override["kind"] == schema.KindExempt && c.Override["credential"] == nil
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
	assert.True(t, compared >= 15, "%d faults were compared, want at least 15", compared)
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
			for _, kind := range []string{schema.KindExempt, schema.KindBan} {
				with := plan.With(build(t, policy.Rows{Overrides: numbered(schema.Override{Kind: kind, IP: ip})}))
				applies := func(address string) bool {
					id := identityOf(t, &with.Rules, address)
					var r resolve.Resolution
					with.ResolveAt(&id, 1, &r)
					return r.Exempt || r.Banned
				}
				assert.True(t, applies("2001:db8:0:1::7"), "%s of %s with ipv6_prefix_length %d does not apply", kind, ip, prefix)
				for _, other := range others {
					assert.False(t, applies(other), "%s of %s with ipv6_prefix_length %d applies to %s", kind, ip, prefix, other)
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
	need := rules.Identify(&request, &id)
	require.True(t, need == 0, "the facts %b are missing", need)
	return id
}
