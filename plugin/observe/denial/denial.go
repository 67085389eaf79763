// Package denial keeps a record of denials: a JSON line for each of the first denials of a tenant by a policy in a
// second, and one line with the number of those after them. Lines go to sinks: standard error, a file that rotates,
// others behind the same interface. A bounded sample of recent denials can be taken for people to read.
//
// An attack must not become a flood of events, and a slow disk must not slow the limiter. So a [Recorder] holds its
// lock for little more than a map access and never waits. It bounds everything it keeps: groups in a second, finished
// seconds, bytes in each sink's queue, time at the end. It drops what does not fit, and counts every dropped denial.
//
// schema/denial_event.schema.json publishes the form of a line. Package metrics counts the same denials; package
// decision decides why a request is denied.
package denial

import (
	"cmp"
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
	DefaultMaxSingles = 1000
	DefaultMaxGroups  = 10_000
	DefaultQueueBytes = 16 << 20
	DefaultRetryFor   = time.Minute
	DefaultFlushTime  = 2 * time.Second
)

// Options configures a recorder. Only Log is required.
type Options struct {
	Sinks map[string]Sink // where lines go, by their names in logs and SinkStats
	Log   *slog.Logger    // one line when a sink begins to fail, fails with another error, or works again
	Node  string          // this node's name, in every line; "": none

	Recent bool // keep a sample of recent denials for TakeRecent

	ShowUsers bool   // users, credentials and addresses as they are; false: as hashes
	Salt      []byte // of the hashes: nodes with one salt write one hash for one user; empty: random for each recorder

	// Singles is how many denials of one tenant by one policy in a second have a line each. 0: none.
	Singles int
	// MaxSingles bounds these lines of a second, of all tenants. Further denials are grouped. 0: DefaultMaxSingles.
	MaxSingles int
	// MaxGroups bounds the lines for groups of one second, about 400 bytes each until written. Further denials are
	// counted in one line per policy. 0: DefaultMaxGroups.
	MaxGroups int
	// QueueBytes bounds the lines that wait for one sink. Further lines are dropped. 0: DefaultQueueBytes.
	QueueBytes int
	RetryFor   time.Duration // how long a batch is retried after a sink's error; 0: DefaultRetryFor
	FlushTime  time.Duration // how long Run may write after its context has ended; 0: DefaultFlushTime
}

func (o Options) withDefaults() Options {
	o.MaxSingles = cmp.Or(o.MaxSingles, DefaultMaxSingles)
	o.MaxGroups = cmp.Or(o.MaxGroups, DefaultMaxGroups)
	o.QueueBytes = cmp.Or(o.QueueBytes, DefaultQueueBytes)
	o.RetryFor = cmp.Or(o.RetryFor, DefaultRetryFor)
	o.FlushTime = cmp.Or(o.FlushTime, DefaultFlushTime)
	if len(o.Salt) == 0 {
		o.Salt = random(32)
	}
	return o
}

// random returns n random bytes. rand.Read ends the process if the system has none.
func random(n int) []byte {
	text := make([]byte, n)
	_, _ = rand.Read(text)
	return text
}

// Recorder records denials; it is an admit.Observer. Make it with [New]. Without [Recorder.Run] denials are counted as
// dropped after a few seconds.
type Recorder struct {
	options Options
	epoch   string       // distinguishes the ids of this recorder's lines
	seed    maphash.Seed // of names that are too long to be kept
	lines   atomic.Uint64
	recent  *sample   // nil: none
	outlets []*outlet // sorted by name

	mu       sync.Mutex
	window   *window   // the current second; nil: it has no denial yet
	finished []*window // they wait for Run, at most maxFinished
	ended    bool      // Run has taken the last one
	lost     [reasons]uint64
}

// New makes a recorder. Run starts it.
func New(options Options) *Recorder {
	r := &Recorder{options: options.withDefaults(), epoch: hex.EncodeToString(random(8)), seed: maphash.MakeSeed()}
	if r.options.Recent {
		r.recent = new(sample)
	}
	for _, name := range slices.Sorted(maps.Keys(r.options.Sinks)) {
		r.outlets = append(r.outlets, &outlet{
			name: name, sink: r.options.Sinks[name], options: &r.options, wake: make(chan struct{}, 1),
		})
	}
	return r
}

// Reason is why a denial is not in a line, or not under its own names.
type Reason uint8

// The reasons, named as in the metric.
const (
	Groups     Reason = iota // too many groups in its second: a line for others counts it, without its names
	Queue                    // the queue was full
	SinkFailed               // the sink did not take it within RetryFor
	Rejected                 // the sink will never take it
	Shutdown                 // it came after the end, or the sink did not take it within FlushTime
	reasons
)

func (r Reason) String() string {
	return [...]string{"groups", "queue", "sink", "rejected", "shutdown"}[r]
}

// SinkStats holds the numbers of one sink, all but Queued and Failing since New.
type SinkStats struct {
	Name    string            `label:"sink"`                                // one of a fixed list
	Written uint64            `metric:"denial_events_total"`                // lines that it has accepted
	Dropped map[Reason]uint64 `metric:"denial_events_dropped_total reason"` // denials
	Queued  int               `metric:"denial_queue_depth"`                 // lines that wait, or are being written
	Failing bool              `metric:"denial_sink_failing"`                // its last Write failed
}

// Stats returns the numbers of all sinks, in the order of their names. Every reason is there from the start, so that an
// alert sees the first loss.
func (r *Recorder) Stats() (all []SinkStats) {
	r.mu.Lock()
	lost := r.lost
	r.mu.Unlock()
	for _, o := range r.outlets {
		all = append(all, o.stats(lost))
	}
	return all
}
