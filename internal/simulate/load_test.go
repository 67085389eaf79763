package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// load is who sends the requests, and when.
type load struct {
	random    *rand.Rand
	tenants   []tenant
	upTo      []float64 // the part of the requests of each tenant and those before it
	endpoints [][]endpoint
	users     []string
	rate      float64      // requests a second
	ends      limit.Micros // since the beginning of the load
	now       float64      // µs since the beginning of the load
}

// tenant is one of a kind.
type tenant struct {
	name, tier string
	kind       int
	users      int
}

// endpoint is what a request calls.
type endpoint struct{ method, path, route string }

func newLoad(s *Scenario, random *rand.Rand) *load {
	l := &load{random: random, rate: s.Load.Rate, ends: micros(s.Load.For)}
	sum, users := 0.0, 0
	for i, share := range shares(s.Tenants) {
		kind := &s.Tenants[i]
		var list []endpoint
		for _, text := range kind.Endpoints {
			method, path, route := admit.Target(text)
			list = append(list, endpoint{method, path, route})
		}
		l.endpoints = append(l.endpoints, list)
		weights := zipf(kind.Count, kind.Zipf)
		for k, weight := range weights {
			sum += share * weight
			l.upTo = append(l.upTo, sum)
			l.tenants = append(l.tenants, tenant{tenantName(kind, k), kind.Tier, i, kind.Users})
		}
		users = max(users, kind.Users)
	}
	for i := range users {
		l.users = append(l.users, "u"+strconv.Itoa(i+1))
	}
	return l
}

// tenantName returns the name of the k-th tenant of a kind: gold-1.
func tenantName(kind *TenantKind, k int) string {
	return fmt.Sprint(cmp.Or(kind.Tier, "tenant"), "-", k+1)
}

// shares returns the part of the requests of each kind.
func shares(kinds []TenantKind) []float64 {
	left, open := 1.0, 0
	for i := range kinds {
		if left -= kinds[i].SharePct / 100; kinds[i].SharePct == 0 {
			open += kinds[i].Count
		}
	}
	parts := make([]float64, len(kinds))
	for i := range kinds {
		if parts[i] = kinds[i].SharePct / 100; kinds[i].SharePct == 0 {
			parts[i] = max(left, 0) * float64(kinds[i].Count) / float64(open)
		}
	}
	return parts
}

// zipf returns n weights whose sum is 1, of which the k-th is the first ÷ k^s.
func zipf(n int, s float64) []float64 {
	weights, sum := make([]float64, n), 0.0
	for k := range weights {
		weights[k] = math.Pow(float64(k+1), -s)
		sum += weights[k]
	}
	for k := range weights {
		weights[k] /= sum
	}
	return weights
}

// next returns the instant of the next request since the beginning of the load; false: there is none.
func (l *load) next() (at limit.Micros, more bool) {
	l.now += l.random.ExpFloat64() * 1e6 / l.rate
	at = limit.Micros(l.now)
	return at, at < l.ends
}

// draw sets a request to a random one, and returns the number of its tenant.
func (l *load) draw(r *admit.CallerRequest) int {
	n := min(sort.SearchFloat64s(l.upTo, l.random.Float64()*l.upTo[len(l.upTo)-1]), len(l.tenants)-1)
	t := &l.tenants[n]
	list := l.endpoints[t.kind]
	e := &list[l.random.IntN(len(list))]
	*r = admit.CallerRequest{
		Caller: identity.Caller{Tenant: t.name, Tier: t.tier, User: l.users[l.random.IntN(t.users)]},
		Method: e.method, Path: e.path, Route: e.route,
	}
	return n
}
