package gateway

import "sync/atomic"

// Counters count what the gateway saw. The zero value is ready; all methods
// may be called at any time.
type Counters struct {
	requests, questions, reads, replays, serverErrors atomic.Int64
	starts, closes, spawns, stalls                    atomic.Int64
}

// Requests counts the HTTP requests answered.
func (c *Counters) Requests() int64 { return c.requests.Load() }

// Questions counts the PDK calls of plugins, those that set something
// included.
func (c *Counters) Questions() int64 { return c.questions.Load() }

// PluginWrites counts the batches of bytes that plugins sent: their writes,
// except that two which arrive before the gateway looks count as one.
func (c *Counters) PluginWrites() int64 { return c.reads.Load() }

// Replays counts events run again because the plugin closed the connection.
func (c *Counters) Replays() int64 { return c.replays.Load() }

// ServerErrors counts answers with a 5xx status, the upstream's included.
func (c *Counters) ServerErrors() int64 { return c.serverErrors.Load() }

// Starts counts the instances that plugins were told to start.
func (c *Counters) Starts() int64 { return c.starts.Load() }

// Closes counts the instances that plugins were told to close.
func (c *Counters) Closes() int64 { return c.closes.Load() }

// Spawns counts how often the plugin's process was started.
func (c *Counters) Spawns() int64 { return c.spawns.Load() }

// Stalls counts requests that waited in vain for an instance which another
// request had claimed: Kong leaks the claim when it cannot write the call that
// starts the instance.
func (c *Counters) Stalls() int64 { return c.stalls.Load() }
