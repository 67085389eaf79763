package fromkong

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// periods lists the windows of rate-limiting and response-ratelimiting. Months and years are those of the calendar in
// UTC. rate-limiting-advanced has windows of so many seconds since 1970 in their place, under the same names.
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

func (e *entry) rateLimiting() {
	var k rateLimiting
	e.read("", e.values, &k)
	windows := e.periods("", "", k.periodLimits)
	if len(windows) == 0 && len(e.problems) == 0 {
		e.fault("", "has no limit")
	}
	c := e.identify("limit_by", k.LimitBy, k.HeaderName, k.Path)
	e.config.Namespace = e.kongNamespace(k.LimitBy)
	e.policy(k.counters)
	e.config.denial = k.denial
	e.count(c, windows, schema.AlgorithmFixedWindow, k.visibility)
}

// kongNamespace returns a namespace that entries share where they share counters in Kong: for one service and route.
func (e *entry) kongNamespace(by string) string {
	if by == "consumer" || by == "credential" {
		return e.place()
	}
	wide := *e
	wide.Place[deck.OfConsumer], wide.Place[deck.OfGroup] = "", ""
	return wide.place()
}

// periods returns the windows of the record at a path. Names begin with a prefix.
func (e *entry) periods(path, prefix string, l periodLimits) []window {
	var windows []window
	for i, n := range [len(periods)]json.Number{l.Second, l.Minute, l.Hour, l.Day, l.Month, l.Year} {
		p := periods[i]
		f, err := n.Float64()
		switch {
		case n == "":
			continue
		case err != nil || f <= 0 || f > maxLimit:
			e.fault(docpath.Member(path, p.name), "is %s, and a limit of this plugin is from 1 to %d", n, int64(maxLimit))
			continue
		}
		whole := math.Ceil(f) // Kong admits requests while something is left
		if whole != f {
			e.differs("rounded-limit")
		}
		w := window{name: prefix + p.name, limit: int64(whole)}
		if p.calendar {
			w.over.Period = p.name
		} else {
			w.over.WindowSize = p.seconds
		}
		windows = append(windows, w)
	}
	return windows
}

// policy sets where rate-limiting and response-ratelimiting count.
func (e *entry) policy(k counters) {
	synchronous := k.SyncRate == "" || k.SyncRate == "-1"
	exact := k.Policy == "redis" && synchronous
	if counting := e.Name == "rate-limiting"; counting && exact {
		e.differs("denials-spend")
	} else if counting {
		e.differs("check-then-count")
	}
	if k.Policy == "local" {
		e.inProcess()
		return
	}
	if exact || k.Policy == "cluster" {
		e.config.Accuracy = schema.AccuracyExact
	} else {
		e.differs("sync-rate")
	}
	e.shared(k.Policy == "cluster", "policy")
	if k.FaultTolerant == nil || *k.FaultTolerant {
		e.config.FailMode = schema.FailOpen
		e.differs("fault-tolerant")
	} else {
		e.config.FailMode = schema.FailClosed
		e.differs("not-fault-tolerant")
	}
}

func (e *entry) inProcess() {
	e.config.Strategy = schema.StrategyLocal
	e.differs("process-memory")
}

// shared sets the Redis that nodes share: the entry's own, or that of the options where Kong's database counts.
func (e *entry) shared(inDatabase bool, field string) {
	e.config.Strategy = schema.StrategyRedis
	if !inDatabase {
		e.config.Redis = e.readRedis()
		return
	}
	host, port, ok := SplitAddress(e.options.Redis)
	if !ok {
		e.fault(field, "is cluster: this plugin does not count in Kong's database; --redis HOST:PORT names a Redis for it")
		return
	}
	if port == 6379 {
		port = 0
	}
	e.config.Redis = &redis{server: server{Host: host, Port: port}}
	e.differs("cluster-to-redis")
}

// response converts a config of response-ratelimiting: each of its limits settles to the number that the response's
// header lists.
func (e *entry) response() {
	var k responseRateLimiting
	e.read("", e.values, &k)
	if e.options.SideBySide {
		e.problem("cannot be counted beside Kong's plugin, which removes the header %s before this one could read it",
			k.HeaderName)
	}
	windows := e.responseLimits(k)
	c := e.identify("limit_by", k.LimitBy, "", "")
	e.config.Namespace = e.kongNamespace(k.LimitBy)
	e.policy(k.counters)
	e.count(c, windows, schema.AlgorithmFixedWindow, k.visibility)
	e.settles = true
	e.differs("response-at-arrival", "response-concurrent", "response-headers")
}

const headerLetters = "-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func (e *entry) responseLimits(k responseRateLimiting) []window {
	names := slices.Sorted(maps.Keys(k.Limits))
	switch {
	case len(names) == 0:
		e.fault("limits", "is missing")
	case len(names) > 1 && !k.BlockOnFirstViolation:
		e.fault("block_on_first_violation", "is false for %d limits: Kong lets requests pass that spend from other limits "+
			"than the used-up one, and this plugin does not know that when they arrive", len(names))
	}
	if strings.Trim(k.HeaderName, headerLetters) != "" {
		e.fault("header_name", "is %s, which is no name of a header", shown(k.HeaderName))
	}
	var windows []window
	for _, name := range names {
		path := docpath.Member("limits", name)
		if strings.Trim(name, headerLetters+".") != "" || len(name) > 50 {
			e.fault(path, "is a name that this plugin does not take: up to 50 letters, digits, dots, dashes and underscores")
			continue
		}
		var l periodLimits
		e.read(path, e.record(path, k.Limits[name]), &l)
		for _, w := range e.periods(path, name+"-", l) {
			w.settle = &settle{[]source{{From: "header." + k.HeaderName + "." + name}}}
			windows = append(windows, w)
		}
	}
	return windows
}

// settling returns the entry of the plugin that settles what limits have reserved, for the same requests.
func (e *entry) settling(converted *yaml.Node) *yaml.Node {
	n := mapping("name", textNode(schema.SettlingName))
	for i := 2; i+1 < len(converted.Content); i += 2 { // after its name
		if key := converted.Content[i]; key.Value != "config" && key.Value != "instance_name" {
			n.Content = append(n.Content, textNode(key.Value), plainCopy(converted.Content[i+1]))
		}
	}
	return n
}
