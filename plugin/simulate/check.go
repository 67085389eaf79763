package simulate

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The most of a scenario, so that it fits into memory and ends.
const (
	mostNodes    = 1000
	mostMasters  = 1000
	mostTenants  = 1_000_000
	mostUsers    = 1_000_000
	mostRequests = 200_000_000
	longest      = 24 * time.Hour
)

// check finds the values that make no sense.
func (s *Scenario) check(d *decoder) {
	d.between("nodes", s.Nodes, 1, mostNodes)
	d.between("lease_share", s.LeaseShare, 0, lease.MaxSharePct)
	d.between("redis.masters", s.Redis.Masters, 1, mostMasters)
	s.checkLatency(d)
	s.checkTenants(d)
	s.checkLoad(d)
	for i := range s.Faults {
		s.checkFault(d, docpath.Item("faults", i), &s.Faults[i])
	}
	s.checkConfig(d)
}

// between adds a fault for a number that is not between two others.
func (d *decoder) between(path string, n, least, most int) {
	if n < least || n > most {
		d.fault(path, "must be from %d to %d, got %d", least, most, n)
	}
}

func (s *Scenario) checkLatency(d *decoder) {
	const path = "redis.latency"
	switch l := s.Redis.Latency; {
	case l.P50 < 0:
		d.fault(path+".p50", "must not be below 0, got %s", l.P50)
	case l.P50 < time.Microsecond:
		d.fault(path+".p50", "must be 1µs or more, got %s", l.P50)
	case l.P99 < l.P50:
		d.fault(path+".p99", "must be p50 (%s) or more, got %s", l.P50, l.P99)
	case l.P99 > time.Minute:
		d.fault(path+".p99", "must be a minute at most, got %s", l.P99)
	}
}

func (s *Scenario) checkTenants(d *decoder) {
	if len(s.Tenants) == 0 {
		d.fault("tenants", "must have an entry, such as {tier: gold, count: 100}")
	}
	var tenants int
	var shares float64
	open := false
	for i := range s.Tenants {
		t, path := &s.Tenants[i], docpath.Item("tenants", i)
		d.between(path+".count", t.Count, 1, mostTenants)
		d.between(path+".users", t.Users, 1, mostUsers)
		if !(t.Zipf >= 0 && t.Zipf <= 5) {
			d.fault(path+".zipf", "must be from 0 (all tenants alike) to 5, got %v", t.Zipf)
		}
		if !(t.SharePct >= 0 && t.SharePct <= 100) {
			d.fault(path+".share_pct", "must be from 0 to 100, got %v", t.SharePct)
		}
		s.checkTier(d, path+".tier", t.Tier)
		checkEndpoints(d, path+".endpoints", t.Endpoints)
		tenants, shares, open = tenants+t.Count, shares+t.SharePct, open || t.SharePct == 0
	}
	if tenants > mostTenants {
		d.fault("tenants", "must be %d at most, together they are %d: lower the counts", mostTenants, tenants)
	}
	const slack = 1e-6
	switch {
	case shares > 100+slack:
		d.fault("tenants", "the sum of share_pct must be 100 at most, got %v", shares)
	case len(s.Tenants) > 0 && !open && shares < 100-slack:
		d.fault("tenants", "the sum of share_pct must be 100, got %v: leave one out, and it gets what the others leave", shares)
	case open && shares > 100-slack:
		d.fault("tenants", "share_pct leaves nothing for the entries without one: lower a share, or remove these entries")
	}
}

// routeName matches the names that Kong allows for routes.
var routeName = regexp.MustCompile(`^[\pL\pN.~_-]+$`)

// checkEndpoints finds endpoints that no request can call.
func checkEndpoints(d *decoder, path string, endpoints []string) {
	for i, text := range endpoints {
		method, target, route := admit.Target(text)
		_, err := policy.ParsePattern(cmp.Or(strings.ToUpper(method), "GET") + " " + target)
		isPath := err == nil && method != "*" && !strings.ContainsAny(target, "?#")
		if !isPath && !routeName.MatchString(route) {
			d.fault(docpath.Item(path, i), "must be a method and a path such as GET /records, or the name of a route, got %q",
				docpath.Shorten(text))
		}
	}
}

// checkTier finds a tier that the config does not have.
func (s *Scenario) checkTier(d *decoder, path, tier string) {
	if tier == "" || s.plan == nil {
		return
	}
	var names []string
	for i := range s.config.Tiers {
		names = append(names, s.config.Tiers[i].Name)
	}
	if !slices.Contains(names, tier) {
		d.fault(path, "%q is no tier of config.tiers: add it there, or write one of %s", docpath.Shorten(tier), listed(names))
	}
}

func (s *Scenario) checkLoad(d *decoder) {
	if len(s.Load) == 0 {
		d.fault("load", "must have a phase, such as {for: 10s, rate: 1000}")
	}
	for i, p := range s.Load {
		path := docpath.Item("load", i)
		if p.For <= 0 {
			d.fault(path+".for", "must be above 0, such as 10s, got %s", p.For)
		}
		if !(p.Rate >= 0 && p.Rate <= 1e9) {
			d.fault(path+".rate", "must be from 0 to 1000000000 requests a second, got %v", p.Rate)
		}
	}
	if lasts := s.Duration(); lasts > longest {
		d.fault("load", "must last %s at most, together it is %s: shorten a phase", longest, lasts)
	}
	if n := s.Requests(); n > mostRequests {
		d.fault("load", "must have %d requests at most, got %.0f: shorten a phase or lower its rate", mostRequests, n)
	}
}

func (s *Scenario) checkFault(d *decoder, path string, f *Fault) {
	if !slices.Contains(faultKinds, f.Kind) {
		d.fault(path+".kind", "must be one of %s, got %q", listed(faultKinds), f.Kind)
		return
	}
	if end := s.Duration(); f.At < 0 || f.At >= end {
		d.fault(path+".at", "must be from 0s to the end of the load (%s), got %s", end, f.At)
	}
	ofRedis := f.Kind != NodeDies && f.Kind != ClockStep
	switch {
	case f.For < 0:
		d.fault(path+".for", "must not be below 0, got %s", f.For)
	case f.For == 0 && ofRedis:
		d.fault(path+".for", "is required: how long it lasts, such as 5s")
	case f.For > 0 && f.Kind == ClockStep:
		d.fault(path+".for", "must be left out: to set the clock back again, add another clock_step")
	}
	d.between(path+".master", f.Master, 0, s.Redis.Masters)
	d.between(path+".node", f.Node, 0, s.Nodes)
	s.checkPlace(d, path, f, ofRedis)
	switch needs := f.Kind == RedisSlow || f.Kind == ClockStep; {
	case needs && f.By == 0:
		d.fault(path+".by", "is required: by how much, such as 20ms")
	case !needs && f.By != 0:
		d.fault(path+".by", "must be left out: it belongs to redis_slow and clock_step")
	case f.Kind == RedisSlow && f.By < 0:
		d.fault(path+".by", "must be above 0, got %s", f.By)
	case f.Kind == RedisSlow && f.By > time.Minute:
		d.fault(path+".by", "must be a minute at most, got %s", f.By)
	case f.By > longest || f.By < -longest:
		d.fault(path+".by", "must be %s at most, got %s", longest, f.By)
	}
	if f.LosesData && f.Kind != RedisAway {
		d.fault(path+".loses_data", "must be left out: it belongs to redis_away")
	}
}

// checkPlace finds a fault that does not say where it is.
func (s *Scenario) checkPlace(d *decoder, path string, f *Fault, ofRedis bool) {
	switch {
	case ofRedis && f.Node != 0:
		d.fault(path+".node", "must be left out: %s is a fault of Redis, for all nodes", f.Kind)
	case f.Kind == NodeDies && f.Node == 0:
		d.fault(path+".node", "is required: the number of the node, from 1")
	case f.Kind == NodeDies && f.Master != 0:
		d.fault(path+".master", "must be left out: use redis_away for a master that dies")
	case f.Kind == NodeDies && s.Nodes == 1:
		d.fault(path+".node", "is the only node: set nodes to 2 or more")
	case f.Kind == ClockStep && (f.Node == 0) == (f.Master == 0):
		d.fault(path, "needs either node or master: whose clock steps")
	}
}

// checkConfig finds what is not simulated.
func (s *Scenario) checkConfig(d *decoder) {
	c := &s.config
	if s.plan == nil {
		return
	}
	if c.Strategy != schema.StrategyRedis {
		d.fault("config.strategy", "must be redis, or left out, got %q: only nodes with a Redis share limits", c.Strategy)
	}
	if !c.AddressRedis.IsZero() {
		d.fault("config.address_redis", "is not simulated: remove it")
	}
	for _, path := range c.Settling() {
		d.fault("config."+path+".settle", "is not simulated: remove it")
	}
	checkFair(d, "config.global", c.Global.Limits)
	for i := range c.Tiers {
		checkFair(d, docpath.Item("config.tiers", i), c.Tiers[i].Limits)
	}
}

func checkFair(d *decoder, path string, limits []schema.Limit) {
	for i := range limits {
		if limits[i].Fair != nil {
			d.fault(docpath.Item(path+".limits", i)+".fair", "is not simulated: remove it")
		}
	}
}
