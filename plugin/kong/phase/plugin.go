package phase

import (
	"log/slog"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Options configures a Server.
type Options struct {
	Version string        // of the plugin
	Budget  time.Duration // how long an event may wait for Kong; buckets have a budget of their own. 0: one second
	Drain   time.Duration // how long running events may take to finish at the end; 0: five seconds
	Build   Build         // makes the decider of a config; one call at a time (required)
	Log     *slog.Logger  // nil: nothing is logged
}

// Counters count what a server has done since its start, except Instances.
type Counters struct {
	Instances        int    `metric:"instances"`               // plugin configs served now
	Events           uint64 `metric:"events_total"`            // HandleEvent calls for known instances
	Questions        uint64 `metric:"questions_total"`         // PDK questions sent
	Writes           uint64 `metric:"writes_total"`            // writes to the socket
	Panics           uint64 `metric:"panics_total"`            // events, compilations of configs and other calls
	Undecided        uint64 `metric:"undecided_total"`         // events that on_internal_error answered
	UnknownInstances uint64 `metric:"unknown_instances_total"` // events and status calls for instances not kept here
	ConfigFaults     uint64 `metric:"config_faults_total"`     // configs with faults, each once while it has instances
}

// Server serves the plugin to Kong. Make it with New.
type Server struct {
	*wire.Server
	configs *configs
}

// New makes a server. Serve starts it.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{}
	s.configs = newConfigs(o.Build, o.Log, func() time.Duration { return s.Elapsed() })
	s.Server = wire.New(wire.Options{
		Name: schema.Name, Version: o.Version, Priority: schema.Priority, Schema: schema.KongSchema(),
		Start: s.configs.startInstance, Budget: o.Budget, Drain: o.Drain, Log: o.Log,
	})
	return s
}

// Counters returns the server's counters.
func (s *Server) Counters() Counters {
	c := s.Server.Counters()
	return Counters{
		Instances: s.Instances(), Events: c.Events, Questions: c.Questions, Writes: c.Writes,
		Panics: c.Panics + s.configs.panics.Load(), Undecided: c.Failures,
		UnknownInstances: c.UnknownInstances, ConfigFaults: s.configs.faults.Load(),
	}
}
