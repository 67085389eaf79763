package simulate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Scenario is a fleet and its load. Read one with [Parse].
//
// Not simulated are faults, limits that settle or share fairly, and requests without a tenant.
type Scenario struct {
	About      string       `yaml:"about"`
	Seed       uint64       `yaml:"seed"`        // two runs with one seed are the same; default 1
	Nodes      int          `yaml:"nodes"`       // plugin server processes, behind a load balancer; default 1
	LeaseShare int          `yaml:"lease_share"` // percent of a limit that may be out on lease, 0 to 5; default 2
	Redis      RedisSetup   `yaml:"redis"`
	Tenants    []TenantKind `yaml:"tenants"`
	Load       Load         `yaml:"load"`
	RawConfig  yaml.Node    `yaml:"config"` // as under config: in a decK file; strategy is redis

	config schema.Config
	plan   *resolve.Plan
	shared func(outage.Central) outage.Central // changes the masters in a test; nil: nothing does
}

// RedisSetup is the shared store.
type RedisSetup struct {
	Masters int     `yaml:"masters"` // 1, or the masters of a Redis Cluster; default 1
	Latency Latency `yaml:"latency"`
}

// Latency is the time of a round trip to a master and back, without its work and the queue before it. It is log-normal.
type Latency struct {
	P50 time.Duration `yaml:"p50"` // default 0.3ms
	P99 time.Duration `yaml:"p99"` // default 4 × p50
}

// TenantKind is a group of tenants.
type TenantKind struct {
	Tier      string   `yaml:"tier"`      // of the config; default: its default_tier
	Count     int      `yaml:"count"`     // default 1
	Zipf      float64  `yaml:"zipf"`      // the k-th tenant sends as much as the first ÷ k^zipf; default 0: all the same
	SharePct  float64  `yaml:"share_pct"` // of all requests; default: what the others leave, by count
	Users     int      `yaml:"users"`     // of each tenant, all alike; default 1
	Endpoints []string `yaml:"endpoints"` // methods with paths, all alike; default GET /
}

// Load is a time with one rate of requests, which arrive independently of each other.
type Load struct {
	For  time.Duration `yaml:"for"`
	Rate float64       `yaml:"rate"` // requests a second, all nodes together
}

// Parse reads a scenario.
func Parse(text []byte) (*Scenario, error) {
	s := &Scenario{Seed: 1, Nodes: 1, LeaseShare: 2, Redis: RedisSetup{Masters: 1}}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
	s.setDefaults()
	if err := s.compile(); err != nil {
		return nil, fmt.Errorf("compile the config: %w", err)
	}
	return s, nil
}

// setDefaults fills in what was left out.
func (s *Scenario) setDefaults() {
	l := &s.Redis.Latency
	if l.P50 == 0 {
		l.P50 = 300 * time.Microsecond
	}
	if l.P99 == 0 {
		l.P99 = 4 * l.P50
	}
	for i := range s.Tenants {
		t := &s.Tenants[i]
		if t.Count == 0 {
			t.Count = 1
		}
		if t.Users == 0 {
			t.Users = 1
		}
		if len(t.Endpoints) == 0 {
			t.Endpoints = []string{"GET /"}
		}
	}
}

// compile compiles the config, of which a scenario need not say that its buckets are in Redis.
func (s *Scenario) compile() error {
	config := map[string]any{"strategy": schema.StrategyRedis, "redis": map[string]any{"host": storeName}}
	if err := s.RawConfig.Decode(&config); err != nil {
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	s.config, _, err = schema.Parse(text, func(c schema.Config) (err error) {
		s.plan, err = resolve.ForCallers(c)
		return err
	})
	return err
}

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
