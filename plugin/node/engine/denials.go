package engine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/pgtext"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/drain"
)

const minSalt = 16

// DenialRecord records denials, and reports recent ones to Postgres. It is a DenialRecorder.
type DenialRecord struct {
	*denial.Recorder
	recent *recentDenials         // nil: no sample of it goes to the database
	sink   *policysync.DenialSink // nil: it does not go to the database
}

// NewDenialRecord returns a record. sink stores its recent denials, if the options keep some, and is closed at its end;
// nil: there is no database.
func NewDenialRecord(o denial.Options, sink *policysync.DenialSink) *DenialRecord {
	d := &DenialRecord{Recorder: denial.New(o), sink: sink}
	if o.Recent {
		d.recent = &recentDenials{node: o.Node, now: time.Now, take: d.TakeRecent, sink: sink, log: o.Log}
	}
	return d
}

// Run writes the record until ctx ends, and then what is left of it.
func (d *DenialRecord) Run(ctx context.Context) error {
	reporting, end := context.WithCancel(context.WithoutCancel(ctx))
	var recent sync.WaitGroup
	if d.recent != nil {
		recent.Go(func() { d.recent.run(reporting) })
	}
	err := d.Recorder.Run(ctx)
	end()
	recent.Wait()
	if d.sink != nil {
		d.sink.Close()
	}
	return err
}

// Metrics returns the numbers of every sink.
func (d *DenialRecord) Metrics() []denial.SinkStats {
	sinks := d.Stats()
	if d.recent != nil {
		sinks = append(sinks, d.recent.metrics())
	}
	return sinks
}

// ReadSalt returns the salt in a file. nil stands for a random one, where the file has none: then the hashes of this
// process differ from the hashes of others, which is logged; requests are served all the same. setting names the file.
func ReadSalt(setting, file string, log *slog.Logger) []byte {
	salt, err := os.ReadFile(file)
	if err == nil && len(salt) < minSalt {
		err = fmt.Errorf("%s has %d bytes: a salt has at least %d", file, len(salt), minSalt)
	}
	if err != nil {
		log.Error(setting+" cannot be used: users are hashed with a random salt", "error", err)
		return nil
	}
	return salt
}

const (
	// recentEvery is the time between two reports of recent denials.
	recentEvery = 5 * time.Second
	// recentTime bounds a report, and recentLastTime those at the end.
	recentTime, recentLastTime = 10 * time.Second, time.Second
	// recentRows bounds the rows of a statement, whose names and ids could have about 14 kB each.
	recentRows = 70
)

// recentReporter stores recent denials. It returns how many were added.
type recentReporter interface {
	ReportRecent(ctx context.Context, node string, rows any) (added int, err error)
}

// recentDenials reports recent denials to Postgres. While Postgres cannot store them, it retries what it has taken, and
// the sample counts what comes meanwhile, so both are bounded.
type recentDenials struct {
	node string
	now  func() time.Time
	take func() []*denial.Recent
	sink recentReporter
	log  *slog.Logger

	pending []*denial.Recent // taken, and not stored
	problem string           // the error of the last report, or ""

	mu     sync.Mutex
	counts denial.SinkStats
}

// run reports until ctx ends, and then what is left, and counts what could not be stored.
func (d *recentDenials) run(ctx context.Context) {
	drain.Run(ctx, recentEvery, recentLastTime, nil, d.report)
	d.drop(d.pending, denial.Shutdown)
	d.count(0, 0, len(d.pending) > 0)
}

// report stores what is pending, and what was denied since. It is done after one try.
func (d *recentDenials) report(ctx context.Context, _ bool) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, recentTime)
	defer cancel()
	if d.store(ctx) {
		d.pending = d.take()
		d.store(ctx)
	}
	return true
}

// store stores what is pending, and reports whether nothing is left.
func (d *recentDenials) store(ctx context.Context) (done bool) {
	for len(d.pending) > 0 {
		batch := d.pending[:min(len(d.pending), recentRows)]
		for _, row := range batch {
			makeStorable(row, d.now())
		}
		added, err := d.sink.ReportRecent(ctx, d.node, batch)
		d.logResult(err)
		if err != nil && policysync.IsStorable(err) {
			d.count(0, len(d.pending), true)
			return false
		}
		if err != nil {
			d.drop(batch, denial.Rejected)
		}
		d.pending = d.pending[len(batch):]
		d.count(added, len(d.pending), err != nil)
	}
	return true
}

func (d *recentDenials) count(added, pending int, failing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Written += uint64(added)
	d.counts.Queued, d.counts.Failing = pending, failing
}

func makeStorable(d *denial.Recent, now time.Time) {
	d.Age = now.Sub(d.At).Microseconds()
	for _, text := range [...]*string{&d.Tenant, &d.Endpoint, &d.Policy, &d.User, &d.IP, &d.Tier, &d.PolicyFor} {
		*text = pgtext.Storable(*text)
	}
}

// logResult logs an error if the previous report had another one or none, and its end.
func (d *recentDenials) logResult(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem == d.problem {
		return
	}
	if d.problem = problem; err != nil {
		d.log.Warn("reporting recent denials failed; requests are not affected (denial-recent: off ends it)", "error", err)
	} else {
		d.log.Info("recent denials are being reported again")
	}
}

func (d *recentDenials) drop(rows []*denial.Recent, reason denial.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts.Dropped == nil {
		d.counts.Dropped = map[denial.Reason]uint64{}
	}
	for _, row := range rows {
		d.counts.Dropped[reason] += row.Count
	}
}

func (d *recentDenials) metrics() denial.SinkStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.counts
	n.Name = "recent"
	n.Dropped = map[denial.Reason]uint64{ // each reason that it can have
		denial.Rejected: d.counts.Dropped[denial.Rejected], denial.Shutdown: d.counts.Dropped[denial.Shutdown],
	}
	return n
}
