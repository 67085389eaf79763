package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Scenario is a fleet, its load and what goes wrong. Read one with [Parse].
//
// Not simulated are limits that settle or share fairly, a second Redis for addresses, and requests without a tenant.
type Scenario struct {
	About      string       `yaml:"about"`       // one line for lists and reports
	Seed       uint64       `yaml:"seed"`        // two runs with one seed are the same; default 1
	Nodes      int          `yaml:"nodes"`       // plugin server processes, behind a load balancer; default 1
	LeaseShare int          `yaml:"lease_share"` // percent of a limit that may be out on lease, 0 to 5; default 2
	Redis      RedisSetup   `yaml:"redis"`
	Tenants    []TenantKind `yaml:"tenants"`
	Load       []Phase      `yaml:"load"` // one after the other
	Faults     []Fault      `yaml:"faults"`
	RawConfig  *yaml.Node   `yaml:"config"` // as under config: in a decK file; strategy is redis

	config schema.Config
	plan   *policy.Plan
	shared func(outage.Shared) outage.Shared // changes the masters in a test; nil: nothing does
}

// RedisSetup is the shared store.
type RedisSetup struct {
	Masters int     `yaml:"masters"` // 1, or the masters of a Redis Cluster; default 1
	Latency Latency `yaml:"latency"`
}

// Latency is the time of a round trip to a master and back, without its work and the queue before it. It is log-normal.
type Latency struct {
	P50 time.Duration `yaml:"p50" zero:"no"` // default 0.3ms
	P99 time.Duration `yaml:"p99" zero:"no"` // default 4 × p50
}

// TenantKind is a group of tenants.
type TenantKind struct {
	Tier      string   `yaml:"tier"`                // of the config; default: its default_tier
	Count     int      `yaml:"count" zero:"no"`     // default 1
	Zipf      float64  `yaml:"zipf"`                // the k-th tenant sends as much as the first ÷ k^zipf; default 0: all the same
	SharePct  float64  `yaml:"share_pct" zero:"no"` // of all requests; default: what the others leave, by count
	Users     int      `yaml:"users" zero:"no"`     // of each tenant, all alike; default 1
	Endpoints []string `yaml:"endpoints"`           // methods with paths, all alike; default GET /
}

// Phase is a time with one rate of requests, which arrive independently of each other.
type Phase struct {
	For  time.Duration `yaml:"for"`
	Rate float64       `yaml:"rate"` // requests a second, all nodes together
}

// The kinds of faults.
const (
	RedisAway  = "redis_away"  // no connection succeeds
	RedisHangs = "redis_hangs" // no answers come
	RedisSlow  = "redis_slow"  // each round trip takes longer, by a time
	NodeDies   = "node_dies"   // and starts again afterwards, if for is set
	ClockStep  = "clock_step"  // of a node or a master, by a time
)

var faultKinds = []string{RedisAway, RedisHangs, RedisSlow, NodeDies, ClockStep}

// Fault is something that goes wrong.
type Fault struct {
	At        time.Duration `yaml:"at"` // since the beginning
	Kind      string        `yaml:"kind"`
	For       time.Duration `yaml:"for"`
	Master    int           `yaml:"master"` // from 1; 0: all, of a fault of Redis
	Node      int           `yaml:"node"`   // from 1
	By        time.Duration `yaml:"by"`     // of redis_slow and clock_step
	LosesData bool          `yaml:"loses_data"`
}

// Parse reads a scenario. The error is of type [schema.Faults] and has every fault with its path, or says why the text
// is not YAML.
func Parse(text []byte) (*Scenario, error) {
	var root yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the scenario is empty: ratelimit simulate --list shows those that are shipped")
		}
		return nil, errors.New("the scenario is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := documents.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the scenario must be a single YAML document: remove everything after ---")
	}
	s := &Scenario{Seed: 1, Nodes: 1, LeaseShare: 2, Redis: RedisSetup{Masters: 1}}
	d := new(decoder)
	d.value(root.Content[0], "", reflect.ValueOf(s).Elem())
	if len(d.faults) > 0 {
		return nil, d.faults
	}
	s.setDefaults()
	s.compile(d)
	if s.check(d); len(d.faults) > 0 {
		return nil, d.faults
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
func (s *Scenario) compile(d *decoder) {
	if s.RawConfig == nil {
		d.fault("config", "is required: the plugin's config, as under config: in a decK file, such as {tiers: [...]}")
		return
	}
	config := map[string]any{}
	if err := s.RawConfig.Decode(&config); err != nil {
		d.fault("config", "must be a mapping with the fields of the plugin's config, got %s", nodeText(s.RawConfig))
		return
	}
	if config["strategy"] == nil {
		config["strategy"] = schema.StrategyRedis
	}
	if config["redis"] == nil {
		config["redis"] = map[string]any{"host": storeName}
	}
	text, err := json.Marshal(config)
	if err != nil {
		d.fault("config", "has a key that is no text: put it in quotes")
		return
	}
	s.config, _, err = schema.Parse(text, func(c schema.Config) (err error) {
		s.plan, err = policy.ForCallers(c)
		return err
	})
	var faults schema.Faults
	switch {
	case err == nil:
		s.plan, err = policy.ForCallers(s.config)
		if err != nil {
			d.fault("config", "%v", err)
		}
	case errors.As(err, &faults):
		for _, f := range faults {
			d.fault(docpath.Join("config", f.Path), "%s", f.Message)
		}
	default:
		d.fault("config", "%v", err)
	}
}

// Duration returns how long the load lasts.
func (s *Scenario) Duration() (sum time.Duration) {
	for _, p := range s.Load {
		sum += p.For
	}
	return sum
}

// Requests returns about how many requests arrive.
func (s *Scenario) Requests() (sum float64) {
	for _, p := range s.Load {
		sum += p.Rate * p.For.Seconds()
	}
	return sum
}
