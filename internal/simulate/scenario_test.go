package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Scenario is a fleet and its load. Read one with [Parse].
//
// Not simulated are faults, limits that settle or share fairly, a second Redis for addresses, and requests without a tenant.
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
