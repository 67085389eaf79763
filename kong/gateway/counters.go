package gateway

import "sync/atomic"

// Counters counts what the gateway served. The zero value is ready; all methods may be called at any time.
type Counters struct {
	requests, questions, replays, serverErrors atomic.Int64
	starts, closes, spawns, stalls, logEvents  atomic.Int64
}

// Questions counts the PDK calls of plugins, those that set something included.
func (c *Counters) Questions() int64 { return c.questions.Load() }

// Replays counts events that were run again because the plugin closed the connection.
func (c *Counters) Replays() int64 { return c.replays.Load() }

// LogEvents counts the log events of plugins that are over, failed ones included.
func (c *Counters) LogEvents() int64 { return c.logEvents.Load() }

// ServerErrors counts answers with a 5xx status, the upstream's included.
func (c *Counters) ServerErrors() int64 { return c.serverErrors.Load() }

// Closes counts the calls that close an instance.
func (c *Counters) Closes() int64 { return c.closes.Load() }

// Spawns counts the starts of plugin servers' processes.
func (c *Counters) Spawns() int64 { return c.spawns.Load() }

// Stalls counts requests that waited until they gave up for an instance that another request had claimed. Kong leaks
// the claim when it cannot write the call that starts the instance.
func (c *Counters) Stalls() int64 { return c.stalls.Load() }
