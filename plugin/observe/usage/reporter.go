package usage

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/drain"
)

// Sink stores batches. One goroutine calls Report, one batch after another.
type Sink interface {
	// Report stores a batch of a node, which began age ago when Report is called. It must store a batch once that comes
	// several times: it is identified by node, epoch and seq. After an error the batch is reported again, with the
	// batches after it, unless [IsRejection] reports true for the error. Report should return soon after ctx ends. It
	// must not retry, and must not keep or change the payload.
	Report(ctx context.Context, node, epoch string, seq int64, age time.Duration, payload []byte) error

	// Backlog returns how long ago the oldest batch of all nodes was stored that no process has unpacked; 0: none waits.
	Backlog(ctx context.Context) (time.Duration, error)
}

// IsRejection reports whether a sink will never store a batch: its error has a method Rejects that returns true.
func IsRejection(err error) bool {
	var final interface{ Rejects() bool }
	return errors.As(err, &final) && final.Rejects()
}

// adviceOf returns what an operator has to do about an error of a sink: the text of its method Advice, if it has one.
func adviceOf(err error) string {
	var advised interface{ Advice() string }
	if errors.As(err, &advised) {
		return advised.Advice()
	}
	return ""
}

// The defaults of ReporterOptions.
const (
	DefaultEvery    = 5 * time.Second
	DefaultMaxBytes = 64 << 20
)

// flushTime is how long Run may report after its context has ended.
const flushTime = 2 * time.Second

// ReporterOptions configures a Reporter. Counter, Sink and Log are required.
type ReporterOptions struct {
	Counter *Counter
	Sink    Sink
	Log     *slog.Logger // one line when the sink begins to fail, fails for another reason, or works again
	Node    string       // this process's name in its batches

	// Dir is the folder of the batches that are not stored yet, of all processes. "": they wait in memory only.
	Dir string

	Every time.Duration // between two batches; 0: DefaultEvery
	// MaxBytes bounds the batches that wait, each of which counts as 4 KiB at least. Beyond it the oldest are dropped. 0:
	// DefaultMaxBytes.
	MaxBytes int64
}

// Reporter reports what a counter counts. Make it with NewReporter; Run starts it.
type Reporter struct {
	options  ReporterOptions
	epoch    string
	began    time.Time // of the next batch
	cutAt    time.Time // of the last batch
	seq      int64     // of the last batch
	unsaved  bool      // the last batch could not be saved, which was logged
	bytes    int64     // of queue
	problem  string    // why the last call failed, as logged; "": it did not
	lookedAt time.Time // when the folder was last read
	blind    bool      // the last look at the backlog failed

	mu      sync.Mutex // of what Stats reads
	queue   []*waiting
	account Stats
}

// waiting is a batch that the sink has not stored yet.
type waiting struct {
	saved
	epoch string
	seq   int64
	file  string // its path; "": none
}

// fileBytes is how much of MaxBytes a batch takes at least: the room of a file.
const fileBytes = 4 << 10

func (w *waiting) size() int64 { return int64(max(len(w.Payload), fileBytes)) }

// Reason is why a batch was dropped.
type Reason uint8

// The reasons, named as in the metric.
const (
	Room     Reason = iota // more than MaxBytes waited
	Rejected               // the sink will never store it
	Damaged                // its file cannot be read
	Shutdown               // it was not stored within flushTime, and there is no folder
)

func (r Reason) String() string { return [...]string{"room", "rejected", "damaged", "shutdown"}[r] }

// Stats counts what a reporter has done since NewReporter.
type Stats struct {
	Stored  uint64            `metric:"usage_batches_total"`                // also of other processes
	Dropped map[Reason]uint64 `metric:"usage_batches_dropped_total reason"` // batches, also of other processes
	Failed  uint64            `metric:"usage_report_failures_total"`        // calls of the sink
	Waiting int               `metric:"usage_batches_waiting"`              // batches of this process
	Oldest  time.Duration     `metric:"usage_lag_seconds"`                  // since the oldest of these began; 0: none

	// Backlog is the time since the oldest batch of all nodes was stored that is not unpacked; 0: none, or unknown.
	Backlog time.Duration `metric:"usage_backlog_seconds"`

	Rows          int    `metric:"usage_rows"`                 // of the counter, since the last batch
	DroppedCounts uint64 `metric:"usage_counts_dropped_total"` // of the counter, for lack of rows
}

// NewReporter returns a reporter with an epoch of its own.
func NewReporter(o ReporterOptions) *Reporter {
	var epoch [epochBytes]byte
	_, _ = rand.Read(epoch[:]) // it ends the process if the system has no random numbers
	o.Every, o.MaxBytes = cmp.Or(o.Every, DefaultEvery), cmp.Or(o.MaxBytes, DefaultMaxBytes)
	return &Reporter{
		options: o, epoch: hex.EncodeToString(epoch[:]), began: time.Now(),
		// Every reason is there from the start, so that an alert sees the first loss.
		account: Stats{Dropped: map[Reason]uint64{Room: 0, Rejected: 0, Damaged: 0, Shutdown: 0}},
	}
}

// Stats returns the numbers of the reporter.
func (r *Reporter) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.account
	s.Dropped, s.Rows, s.DroppedCounts = maps.Clone(s.Dropped), r.options.Counter.Rows(), r.options.Counter.Dropped()
	if s.Waiting = len(r.queue); s.Waiting > 0 {
		s.Oldest = time.Since(r.queue[0].Began)
	}
	return s
}

// Run reports until ctx ends. Then it reports the last counts, for at most two seconds; what is not stored by then
// stays in the folder, or is dropped if there is none. It must be called once, and end after the last decision. It
// returns nil: neither the end of ctx nor the failure of a sink is an error.
func (r *Reporter) Run(ctx context.Context) error {
	drain.Run(ctx, r.options.Every, flushTime, r.options.Counter.full, r.report)
	r.abandon()
	return nil
}

// idle is the longest time between two batches: one without rows reports that the process lives.
const idle = time.Minute

// cut makes batches of what was counted since the last ones, and queues them.
func (r *Reporter) cut() {
	now, counter := time.Now(), r.options.Counter
	began := r.began
	r.began = now
	rest := Batch{
		Epoch: r.epoch, Span: min(max(now.Sub(began), 0), maxSpan),
		Rows: counter.cut(), Denials: counter.cutDenials(), Tiers: counter.cutTiers(now),
		Models: counter.models.cut(),
	}
	if rest.empty() && r.seq > 0 && now.Sub(r.cutAt) < idle {
		return
	}
	r.cutAt = now
	for most := MaxRows; ; {
		first, others := rest.split(most)
		first.Seq = r.seq + 1
		payload, err := first.MarshalBinary()
		if errors.Is(err, errLong) && most > 1 {
			most /= 2
			continue
		}
		if err != nil { // what a counter counts can be encoded
			r.drop(Damaged)
			r.options.Log.Error("a batch of usage was dropped", "rows", len(first.Rows), "error", err)
		} else {
			r.seq++
			w := &waiting{saved{r.options.Node, began, payload}, r.epoch, r.seq, ""}
			r.save(w)
			r.enqueue(w)
		}
		if rest = others; rest.empty() {
			return
		}
	}
}

func (b *Batch) empty() bool { return len(b.Rows)+len(b.Denials)+len(b.Tiers)+len(b.Models) == 0 }

// split returns a batch with the first rows, denials, tiers and models, at most so many of each as fit, and one with
// the others.
func (b Batch) split(most int) (first, others Batch) {
	n, m, l := min(len(b.Rows), most), min(len(b.Denials), most, MaxDenials), min(len(b.Tiers), most, MaxTiers)
	k := min(len(b.Models), most, MaxModels)
	first, others = b, b
	first.Rows, others.Rows = b.Rows[:n], b.Rows[n:]
	first.Denials, others.Denials = b.Denials[:m], b.Denials[m:]
	first.Tiers, others.Tiers = b.Tiers[:l], b.Tiers[l:]
	first.Models, others.Models = b.Models[:k], b.Models[k:]
	return first, others
}

// drop counts a dropped batch, and returns how many were dropped for this reason.
func (r *Reporter) drop(why Reason) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.Dropped[why]++
	return r.account.Dropped[why]
}
