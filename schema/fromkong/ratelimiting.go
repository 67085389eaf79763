package fromkong

import (
	"encoding/json"
	"math"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// periods lists the windows of rate-limiting and response-ratelimiting. Kong's months and years are those of the
// calendar; their seconds here are an approximation.
var periods = [...]struct {
	name     string
	seconds  int64
	calendar bool
}{
	{"second", 1, false},
	{"minute", 60, false},
	{"hour", 3600, false},
	{"day", 86400, false},
	{"month", 30 * 86400, true},
	{"year", 365 * 86400, true},
}

const maxLimit = 1_000_000_000_000

// rateLimiting converts a config of rate-limiting.
func (e *entry) rateLimiting(s *settings) {
	windows := e.periods(s, "")
	if len(windows) == 0 && len(s.shared.problems) == 0 {
		s.problem("", "has no limit")
	}
	by := s.choice("limit_by", "consumer", "credential", "ip", "service", "header", "path", "consumer-group")
	c := e.identify(s, "limit_by", by)
	s.ignore("header_name", "path") // where limit_by does not read them
	e.namespace = e.kongNamespace(by)
	e.begin()
	e.policy(s)
	e.visible(c, s.flag("hide_client_headers", false))
	e.denial(s)
	e.identity(c)
	e.count(c, windows, schema.AlgorithmFixedWindow)
}

// kongNamespace returns a namespace that entries share where they share counters in Kong: for one service and route.
func (e *entry) kongNamespace(by string) string {
	if by == "consumer" || by == "credential" {
		return e.place()
	}
	wide := *e
	wide.Place.Consumer, wide.Place.Group = "", ""
	return wide.place()
}

// periods returns the windows of a record that has them as fields. Names begin with a prefix.
func (e *entry) periods(s *settings, prefix string) []window {
	var windows []window
	for _, p := range periods {
		n, present := s.number(p.name)
		if !present {
			continue
		}
		limit, ok := e.roundedUp(n)
		switch {
		case !ok:
			s.problem(p.name, "is %s, and a limit of this plugin is from 1 to %d", n, int64(maxLimit))
			continue
		case p.calendar && !e.options.Approximate:
			s.problem(p.name, "is a window of the calendar, which this plugin does not have: --approximate takes %d days",
				p.seconds/86400)
			continue
		case p.calendar:
			e.differs(CalendarWindows)
		}
		windows = append(windows, window{name: prefix + p.name, limit: limit, seconds: p.seconds})
	}
	return windows
}

// roundedUp returns a limit as a whole number: Kong admits requests while something is left, so a limit of 2.5 admits
// 3.
func (e *entry) roundedUp(n json.Number) (int64, bool) {
	f, err := n.Float64()
	if err != nil || f <= 0 || f > maxLimit {
		return 0, false
	}
	whole := math.Ceil(f)
	if whole != f {
		e.differs(RoundedLimit)
	}
	return int64(whole), true
}

// begin adds what every config begins with.
func (e *entry) begin() {
	e.config.add("namespace", e.namespace)
	if e.options.SideBySide {
		e.config.add("mode", schema.ModeShadow)
	}
}

// policy adds where rate-limiting and response-ratelimiting count.
func (e *entry) policy(s *settings) {
	policy := s.choice("policy", "local", "cluster", "redis")
	sync, given := s.number("sync_rate")
	tolerant := s.flag("fault_tolerant", true)
	synchronous := !given || sync == "-1"
	counting := e.Name == "rate-limiting"
	if counting && (policy != "redis" || !synchronous) {
		e.differs(CheckThenCount)
	}
	if policy == "local" {
		e.inProcess(s)
		return
	}
	e.config.add("strategy", schema.StrategyRedis)
	if policy == "redis" && !synchronous {
		e.differs(SyncRate)
	} else {
		e.config.add("accuracy", schema.AccuracyExact)
	}
	if counting && policy == "redis" && synchronous {
		e.differs(DenialsSpend)
	}
	e.shared(s, policy == "cluster", "policy")
	if tolerant {
		e.config.add("fail_mode", schema.FailOpen)
		e.differs(FaultTolerant)
	} else {
		e.config.add("fail_mode", schema.FailClosed)
		e.differs(NotFaultTolerant)
	}
}

// inProcess counts in the process.
func (e *entry) inProcess(s *settings) {
	s.ignoreRedis()
	e.config.add("strategy", schema.StrategyLocal)
	e.differs(ProcessMemory)
}

// shared adds the Redis that nodes share: the entry's own, or that of the options where Kong's database counts.
func (e *entry) shared(s *settings, inDatabase bool, field string) {
	if !inDatabase {
		e.config.add("redis", e.redis(s))
		return
	}
	s.ignoreRedis()
	host, port, ok := splitAddress(e.options.Redis)
	if !ok {
		s.problem(field, "is cluster: this plugin does not count in Kong's database; --redis HOST:PORT names a Redis for it")
		return
	}
	r := record{{"host", host}}
	addUnless(&r, "port", port, 6379)
	e.config.add("redis", r)
	e.differs(ClusterToRedis)
}

// ignoreRedis marks the fields of Redis as read where they have no effect.
func (s *settings) ignoreRedis() {
	s.ignore("redis")
	for field := range s.values {
		if strings.HasPrefix(field, "redis_") {
			s.ignore(field)
		}
	}
}

// denial adds the status and message of denials.
func (e *entry) denial(s *settings) {
	addUnless(&e.config, "error_code", s.integer("error_code", 429, 400, 599), 429)
	const standard = "API rate limit exceeded"
	addUnless(&e.config, "error_message", s.text("error_message", standard), standard)
}
