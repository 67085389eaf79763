// Package denial keeps a record of denials: one JSON line for each tenant, policy and second, however many requests were
// refused in it, handed to sinks (standard error, a file that rotates, others behind the same interface).
//
// An attack must not become a flood of events, and a slow disk must not become a slow limiter. So a [Recorder] counts
// under a lock that is held for little more than a look into a map, never waits, and bounds everything it keeps: groups in a
// second, finished seconds, bytes in each sink's queue, time at the end. What does not fit is left out and counted, to
// the last denial.
//
// What a line looks like is published as schema/denial_event.schema.json. What is not here: the counters of the same
// denials (package metrics), and why a request was denied (package decision).
package denial

import (
	"crypto/rand"
	"encoding/hex"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The defaults of Options.
const (
	DefaultMaxGroups  = 10_000
	DefaultQueueBytes = 16 << 20
	DefaultRetryFor   = time.Minute
	DefaultFlushTime  = 2 * time.Second
)

// Options are what a recorder is made of. Only Log is required.
type Options struct {
	Sinks map[string]Sink // where lines go, by the name that logs and Stats give them
	Log   *slog.Logger    // told once when a sink begins to fail, fails otherwise than before, or works again
	Node  string          // this node's name, in every line; "": none

	ShowUsers bool   // users, credentials and addresses as they are; false: as hashes
	Salt      []byte // of the hashes: nodes with one salt write one hash for one user; empty: random for each recorder

	MaxGroups  int           // lines of one second, about 400 bytes each until written; what is beyond is counted in one line per policy; 0: DefaultMaxGroups
	QueueBytes int           // of the lines that wait for one sink; what is beyond is dropped; 0: DefaultQueueBytes
	RetryFor   time.Duration // how long a batch that a sink does not take is tried again; 0: DefaultRetryFor
	FlushTime  time.Duration // how long Run may write after its context has ended; 0: DefaultFlushTime
}

func (o Options) withDefaults() Options {
	if o.MaxGroups <= 0 {
		o.MaxGroups = DefaultMaxGroups
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	if o.RetryFor <= 0 {
		o.RetryFor = DefaultRetryFor
	}
	if o.FlushTime <= 0 {
		o.FlushTime = DefaultFlushTime
	}
	if len(o.Salt) == 0 {
		o.Salt = random(32)
	}
	return o
}

// random is n random bytes. Go ends the process where the system has none.
func random(n int) []byte {
	text := make([]byte, n)
	_, _ = rand.Read(text)
	return text
}

// Recorder records denials; it is an admit.Observer. Make it with [New], and let [Recorder.Run] run: without it, what is
// observed is counted as dropped after a few seconds.
type Recorder struct {
	options Options
	epoch   string       // tells the ids of this recorder's lines from those of others
	seed    maphash.Seed // of names that are too long to be kept
	lines   atomic.Uint64
	outlets []*outlet // sorted by name

	mu       sync.Mutex
	window   *window   // the second that is counted now; nil: there was no denial in it yet
	finished []*window // that wait for Run, at most maxFinished
	ended    bool      // Run has taken the last one
	denials  uint64    // that were observed
	handed   uint64    // of those, the ones in lines that have reached the queues
	folded   uint64    // of those, the ones in lines of others
	lost     [reasons]Tally
}

// New makes a recorder. It starts nothing.
func New(options Options) *Recorder {
	r := &Recorder{options: options.withDefaults(), epoch: hex.EncodeToString(random(8)), seed: maphash.MakeSeed()}
	for _, name := range slices.Sorted(maps.Keys(r.options.Sinks)) {
		r.outlets = append(r.outlets, newOutlet(name, r.options.Sinks[name], &r.options))
	}
	return r
}

// Reason is why a denial is not in a line, or not under its own names.
type Reason uint8

// The reasons. Their names are the reasons of the metric.
const (
	Groups   Reason = iota // too many groups in its second: it is counted in a line of others, so only its names are lost
	Queue                  // the queue was full
	Refused                // the sink did not take it in RetryFor
	Shutdown               // it came after the end, or the sink did not take it in FlushTime
	reasons
)

func (r Reason) String() string { return [...]string{"groups", "queue", "sink", "shutdown"}[r] }

// Tally is a number of lines, and of the denials in them.
type Tally struct{ Lines, Denials uint64 }

func (t *Tally) add(lines, denials uint64) {
	t.Lines += lines
	t.Denials += denials
}

// SinkStats is where all denials are, for one sink: Written, Queued and Dropped, together with Stats.Open, are all that
// were observed.
type SinkStats struct {
	Name     string
	Written  Tally
	Queued   Tally          // the batch that is being written included
	Dropped  [reasons]Tally // by Reason, without Groups, which lose no denial
	Failures uint64         // of calls of the sink's Write
	Failing  bool           // the last one failed
}

// Stats is what a recorder has done since it was made. Its parts are read one after another: while lines are on their way
// to the queues, a line can be in two of them.
type Stats struct {
	Denials uint64 // that were observed: one for each policy that denied a request, or would have
	Open    uint64 // of those, the ones whose second is not finished, or not handed to the queues yet
	Folded  uint64 // of those, the ones that are in a line of others (the reason Groups)
	Sinks   []SinkStats
}

// Stats is the account of all denials so far.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	stats := Stats{Denials: r.denials, Folded: r.folded}
	lost := r.lost
	stats.Open = r.denials - r.handed - lost[Queue].Denials - lost[Shutdown].Denials
	r.mu.Unlock()
	for _, o := range r.outlets {
		sink := o.stats()
		for reason := range lost {
			sink.Dropped[reason].add(lost[reason].Lines, lost[reason].Denials)
		}
		stats.Sinks = append(stats.Sinks, sink)
	}
	return stats
}
