// Package phase is the plugin in Kong: it makes deciders of plugin configs, reads the facts of each request from Kong
// with the fewest questions, and answers with what package admit decided.
//
// Package wire speaks the protocol. All questions of a request that are needed at once leave in one write, and so
// do the headers, the end of the event and the return of the call. A config with faults is replaced by the last good
// one of the same plugin, or answered as its on_config_fault says. An event that fails or panics is answered as
// on_internal_error says. The path of a request is conn.handleEvent (package wire) → instance.access →
// admit.Decider.Admit → session.respond.
package phase

import (
	"log/slog"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Options configures a Server.
type Options struct {
	Budget time.Duration // how long an event may wait for Kong; buckets have a budget of their own. 0: one second
	Drain  time.Duration // how long running events may take to finish at the end; 0: five seconds
	Build  Build         // makes the decider of a config; one call at a time (required)
	Log    *slog.Logger  // nil: nothing is logged
}

// Counters count what a server has done since its start, except Instances. Panics of compilations are Panics too.
type Counters struct {
	wire.Counters `metric:""`

	Instances    int    `metric:"instances"`           // plugin configs served now
	ConfigFaults uint64 `metric:"config_faults_total"` // configs with faults, each once while it has instances
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
		Name: schema.Name, Start: s.configs.startInstance, Budget: o.Budget, Drain: o.Drain, Log: o.Log,
	})
	return s
}

// Counters returns the server's counters.
func (s *Server) Counters() Counters {
	c := Counters{s.Server.Counters(), s.Instances(), s.configs.faults.Load()}
	c.Panics += s.configs.panics.Load()
	return c
}
