package resolve_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The model resolves as the documentation says it, by looking at every row for every request.

const modelConfig = `
default_tier: bronze
tiers:
- name: bronze
  limits:
  - {name: daily, scope: tenant, limit: 100, window_size: 86400, algorithm: fixed_window}
  - {name: user, scope: user, limit: 10, window_size: 1}
- {name: silver, limits: [{name: daily, scope: tenant, limit: 1000, window_size: 86400}]}
global: {limits: [{name: all, scope: global, limit: 5000, window_size: 1}]}
`

// endpoints are patterns of which each is narrower than the next; "" is every request.
var endpoints = []string{"POST /records/bulk", "POST /records/{id}", "* /records/*", "* /*", ""}

// matching is what of them matches a request.
var matching = map[string][]string{
	"POST /records/bulk": endpoints,
	"POST /records/7":    endpoints[1:],
	"GET /records/7":     endpoints[2:],
	"GET /":              endpoints[4:],
}

// wanted is what the model says of a request.
type wanted struct {
	banned, exempt bool
	until          limit.Micros
	bounds         []string
}

type modelBound struct {
	name, scope, endpoint string
	spec                  limit.Spec
	override, penalty     int64
}

func (b *modelBound) String() string {
	return fmt.Sprintf("%s per %s at %q: %+v, overrides %d and %d",
		b.name, b.scope, b.endpoint, b.spec, b.override, b.penalty)
}

type model struct {
	config schema.Config
	rows   policy.Rows
}

func (m *model) resolve(id *identity.Identity, now limit.Micros) wanted {
	matches := matching[id.Method+" "+id.Path]
	place := func(endpoint string) int { return slices.Index(matches, endpoint) }
	tier := m.tier(id)
	limits := map[string]schema.Limit{}
	for _, l := range m.config.Global.Limits {
		limits[l.Name] = l
	}
	for _, t := range m.config.Tiers {
		for _, l := range t.Limits {
			if t.Name == tier {
				limits[l.Name] = l
			}
		}
	}
	rows := slices.DeleteFunc(slices.Clone(m.rows.Policies), func(p policy.PolicyRow) bool {
		isHis := p.Tenant == id.Tenant.ID && (p.User == "" || p.User == id.User.ID)
		return place(p.Limit.Endpoint) < 0 || p.Namespace == "other" || !(isHis || p.Tier != "" && p.Tier == tier ||
			p.Credential != "" && p.Credential == id.Credential || networkBits(p.IP, id) >= 0 || p.For == schema.ForAll)
	})
	slices.SortFunc(rows, func(a, b policy.PolicyRow) int { // the winner comes last
		return cmp.Or(cmp.Compare(specificity(a), specificity(b)), cmp.Compare(networkBits(a.IP, id), networkBits(b.IP, id)),
			cmp.Compare(place(b.Limit.Endpoint), place(a.Limit.Endpoint)),
			cmp.Compare(a.ID, b.ID))
	})
	for _, p := range rows {
		limits[p.Limit.Name] = p.Limit
	}
	overrides := slices.DeleteFunc(slices.Clone(m.rows.Overrides), func(o policy.Override) bool {
		return place(o.Endpoint) < 0 || (!o.Permanent && now >= endOf(o)) || instant(now).Before(o.StartsAt) ||
			(o.Tenant != "" && o.Tenant != id.Tenant.ID) ||
			(o.User != "" && o.User != id.User.ID) || (o.Credential != "" && o.Credential != id.Credential) ||
			(o.IP != "" && o.IP != id.IP) || (o.Tag != "" && !slices.Contains(id.Tags, o.Tag))
	})
	want := judged(overrides)
	if want.exempt {
		return want
	}
	for _, l := range limits {
		bound := modelBound{name: l.Name, scope: l.Scope, endpoint: l.Endpoint, spec: compiled(l)}
		bound.change(overrides, place)
		want.bounds = append(want.bounds, bound.String())
	}
	slices.Sort(want.bounds)
	return want
}

// specificity orders what rows are for: the larger goes before the smaller.
func specificity(p policy.PolicyRow) int {
	return slices.Index([]bool{
		p.For == schema.ForAll, p.Tier != "", p.For == schema.ForAnonymous, p.Tenant != "" && p.User == "", p.IP != "",
		p.Credential != "", p.User != "",
	}, true)
}

// networkBits returns the length of a network around the request's address, or -1.
func networkBits(text string, id *identity.Identity) int {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.Contains(netip.MustParseAddr(id.IP)) {
		return -1
	}
	return prefix.Bits()
}

func (m *model) tier(id *identity.Identity) string {
	known := func(tier string) bool {
		return slices.ContainsFunc(m.config.Tiers, func(t schema.Tier) bool { return t.Name == tier }) ||
			slices.ContainsFunc(m.rows.Tiers, func(t policy.TierRow) bool { return t.Name == tier }) ||
			slices.ContainsFunc(m.rows.Policies, func(p policy.PolicyRow) bool {
				return p.Tier == tier && p.Namespace != "other"
			})
	}
	claimed := id.Tier
	for _, t := range m.rows.Tenants {
		if t.ID == id.Tenant.ID && t.Tier != "" {
			claimed = t.Tier
		}
	}
	if claimed == "" || !known(claimed) {
		return m.config.DefaultTier
	}
	return claimed
}

// endOf returns the instant at which an override ends, or 0 if it does not.
func endOf(o policy.Override) limit.Micros {
	if o.Permanent {
		return 0
	}
	return limit.Micros(o.ExpiresAt.UnixMicro())
}

func judged(overrides []policy.Override) (want wanted) {
	for _, o := range overrides {
		switch {
		case o.Kind == schema.KindBan && (!want.banned || o.Permanent || (want.until > 0 && endOf(o) > want.until)):
			want.banned, want.until = true, endOf(o)
		case o.Kind == schema.KindExempt:
			want.exempt = true
		}
	}
	want.exempt = want.exempt && !want.banned
	return want
}

func compiled(l schema.Limit) limit.Spec {
	algorithm, err := limit.ParseAlgorithm(cmp.Or(l.Algorithm, schema.AlgorithmTokenBucket))
	if err != nil {
		panic(err)
	}
	return limit.Spec{
		Algorithm: algorithm, Quantity: l.Limit, Window: limit.Micros(l.WindowSize) * limit.Second,
		Burst: cmp.Or(l.Burst, l.Limit),
	}
}

// change applies the commercial override that holds, and then the strictest penalty.
func (b *modelBound) change(overrides []policy.Override, place func(string) int) {
	var commercial, penalties []policy.Override
	for _, o := range overrides {
		switch {
		case o.Kind == schema.KindBan || o.Kind == schema.KindExempt || !b.coveredBy(o):
		case o.Source == schema.SourceDetector:
			penalties = append(penalties, o)
		default:
			commercial = append(commercial, o)
		}
	}
	target := func(o policy.Override) int {
		return slices.Index([]bool{
			o.User != "" && o.Endpoint != "", o.User != "", o.Credential != "", o.IP != "", o.Endpoint != "", true,
		}, true)
	}
	specific := func(a, b policy.Override) int {
		return cmp.Or(target(a)-target(b), place(a.Endpoint)-place(b.Endpoint), cmp.Compare(a.Kind, b.Kind),
			min(len(b.Policy), 1)-min(len(a.Policy), 1), b.StartsAt.Compare(a.StartsAt), cmp.Compare(b.ID, a.ID))
	}
	slices.SortFunc(commercial, specific)
	slices.SortFunc(penalties, func(a, b policy.Override) int {
		return cmp.Or(cmp.Compare(a.Factor, b.Factor), specific(a, b))
	})
	if len(commercial) > 0 {
		b.apply(commercial[0])
		b.override = commercial[0].ID
	}
	if len(penalties) > 0 {
		b.apply(penalties[0])
		b.penalty = penalties[0].ID
	}
}

// coveredBy reports whether an override changes the bound.
func (b *modelBound) coveredBy(o policy.Override) bool {
	perUser := b.scope == "user" || b.scope == "user+endpoint"
	perTenant := !slices.Contains([]string{"global", "endpoint", "ip"}, b.scope)
	switch {
	case o.Policy != "":
		return o.Policy == b.name
	case o.User != "":
		return perUser && (o.Endpoint == "" || b.endpoint != "")
	case o.Credential != "":
		return b.scope == "credential"
	case o.IP != "":
		return b.scope == "ip"
	case o.Endpoint != "":
		return perTenant && b.endpoint != ""
	}
	return perTenant
}

func (b *modelBound) apply(o policy.Override) {
	if o.Kind == schema.KindMultiplier {
		factor := int64(o.Factor)
		b.spec.Quantity, b.spec.Burst = max(b.spec.Quantity*factor/1000, 1), max(b.spec.Burst*factor/1000, 1)
		return
	}
	b.spec.Quantity, b.spec.Burst = o.Limit, o.Limit
	if o.WindowSize > 0 {
		b.spec.Window = limit.Micros(o.WindowSize) * limit.Second
	}
	if b.spec.Algorithm == limit.TokenBucket && o.Burst > 0 {
		b.spec.Burst = o.Burst
	}
}

func got(s *resolve.Plan, id *identity.Identity, now limit.Micros) wanted {
	var r resolve.Resolution
	s.ResolveAt(id, now, &r)
	out := wanted{banned: r.Banned, exempt: r.Exempt, until: r.Until}
	for _, b := range r.Bounds {
		bound := modelBound{
			b.Policy.Name, b.Policy.Scope.String(), b.Policy.Endpoint, b.Policy.Limit.Spec(), b.Override, b.Penalty,
		}
		out.bounds = append(out.bounds, bound.String())
	}
	slices.Sort(out.bounds)
	return out
}

func compareWanted(t *rapid.T, what string, got, want wanted) {
	if got.banned != want.banned || got.exempt != want.exempt || got.until != want.until ||
		!slices.Equal(got.bounds, want.bounds) {
		t.Fatalf("%s: resolved to\n%+v, want\n%+v", what, got, want)
	}
}

func TestResolvingIsWhatLookingAtEveryRowSays(t *testing.T) {
	config := policytest.Config(t, modelConfig)
	plan := compile(t, modelConfig)
	rapid.Check(t, func(t *rapid.T) {
		rows := someRows(t)
		snapshot, faults := policy.NewSnapshot(rows, nil)
		require.Empty(t, faults, "rows have faults: %v", faults)
		id, now := somebody(t), limit.Micros(rapid.Int64Range(1, 4).Draw(t, "now"))
		m := model{config, rows}
		compareWanted(t, fmt.Sprintf("%+v at %d", id, now), got(plan.With(snapshot), &id, now), m.resolve(&id, now))
	})
}
