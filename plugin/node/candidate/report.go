package candidate

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/pgtext"
)

const (
	// reportEvery is the time between two reports.
	reportEvery = 5 * time.Second
	// reportTime bounds one call of Postgres, and lastReportTime all calls at the end.
	reportTime, lastReportTime = 10 * time.Second, 3 * time.Second
	// batchRows bounds the rows of one batch.
	batchRows = 500
)

// Sink stores batches of rows.
type Sink interface {
	// Report stores a batch of a candidate, which began age ago. seq counts the batches of source, from 1: a batch that is
	// stored already stays as it is. An error with the method Rejects() bool that returns true means that the batch will
	// never be stored.
	Report(ctx context.Context, source, candidate string, seq int64, age time.Duration, rows []byte) error
}

// ReporterOptions configures a Reporter. Counter, Sink, Source and Log must be set.
type ReporterOptions struct {
	Counter *Counter
	Sink    Sink
	Source  string // names one run of one process
	Log     *slog.Logger
	Every   time.Duration // 0: five seconds
}

// Reporter reports what a counter has counted. Counts wait in the counter while a batch cannot be stored.
type Reporter struct {
	options ReporterOptions
	seq     int64
	began   time.Time // of the rows in the counter
	waiting []batch
	failing bool // the last report failed, and that was logged

	failed, lost atomic.Uint64
}

// batch holds rows of one candidate.
type batch struct {
	candidate string
	seq       int64
	began     time.Time
	rows      []byte
}

// NewReporter returns a reporter. It starts nothing: see [Reporter.Run].
func NewReporter(o ReporterOptions) *Reporter {
	if o.Every <= 0 {
		o.Every = reportEvery
	}
	return &Reporter{options: o, began: time.Now()}
}

// Failed returns the number of calls that did not store a batch, which is sent again.
func (r *Reporter) Failed() uint64 { return r.failed.Load() }

// Lost returns the number of batches that will never be stored.
func (r *Reporter) Lost() uint64 { return r.lost.Load() }

// Run reports until ctx ends, and then what was counted last.
func (r *Reporter) Run(ctx context.Context) error {
	tick := time.NewTicker(r.options.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.report(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReportTime)
			defer cancel()
			r.report(last)
			if len(r.waiting) == 0 {
				r.report(last) // rows that had waited for a batch before them
			}
			r.lost.Add(uint64(len(r.waiting)))
			return nil
		}
	}
}

// report sends the batches that wait, or else what was counted since.
func (r *Reporter) report(ctx context.Context) {
	if len(r.waiting) == 0 {
		r.cut()
	}
	for len(r.waiting) > 0 && r.send(ctx, &r.waiting[0]) {
		r.waiting = r.waiting[1:]
	}
}

// send reports whether a batch needs no further try.
func (r *Reporter) send(ctx context.Context, b *batch) bool {
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	err := r.options.Sink.Report(bounded, r.options.Source, b.candidate, b.seq, time.Since(b.began), b.rows)
	if err == nil {
		r.failing = false
		return true
	}
	if rejection, ok := errors.AsType[interface {
		error
		Rejects() bool
	}](err); ok && rejection.Rejects() {
		r.lost.Add(1)
		r.options.Log.Warn("Postgres rejects counts of a candidate: the report lacks them",
			"candidate", b.candidate, "error", err)
		return true
	}
	r.failed.Add(1)
	if !r.failing {
		r.options.Log.Warn("counts of a candidate cannot be stored: they wait", "candidate", b.candidate, "error", err)
	}
	r.failing = true
	return false
}

// cut makes batches of what was counted.
func (r *Reporter) cut() {
	began := r.began
	r.began = time.Now()
	byCandidate := map[string][]*Row{}
	for key, row := range r.options.Counter.cut() {
		row.Key = Key{key.Candidate, pgtext.Storable(key.Tenant), pgtext.Storable(key.Endpoint), key.Policy}
		for i := range row.Examples {
			row.Examples[i].Active = pgtext.Storable(row.Examples[i].Active)
			row.Examples[i].Candidate = pgtext.Storable(row.Examples[i].Candidate)
		}
		byCandidate[key.Candidate] = append(byCandidate[key.Candidate], row)
	}
	for _, name := range slices.Sorted(maps.Keys(byCandidate)) {
		for rows := range slices.Chunk(byCandidate[name], batchRows) {
			text, err := json.Marshal(rows)
			if err != nil { // unreachable: rows have texts, numbers and times
				r.lost.Add(1)
				continue
			}
			r.seq++
			r.waiting = append(r.waiting, batch{name, r.seq, began, text})
		}
	}
}
