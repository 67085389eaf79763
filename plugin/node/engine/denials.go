package engine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// minSalt is the fewest bytes of a salt.
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
	var recent sync.WaitGroup
	if d.recent != nil {
		recent.Go(func() { d.recent.run(ctx) })
	}
	err := d.Recorder.Run(ctx)
	if recent.Wait(); d.recent != nil {
		d.recent.end(ctx)
	}
	if d.sink != nil {
		d.sink.Close()
	}
	return err
}

// Metrics returns the counts of written, queued and dropped lines of every sink. Every reason is there from the start,
// so that an alert sees the first loss.
func (d *DenialRecord) Metrics() (sinks []metrics.DenialSink) {
	s := d.Stats()
	for _, sink := range s.Sinks {
		dropped := map[string]uint64{}
		for reason, tally := range sink.Dropped {
			dropped[denial.Reason(reason).String()] = tally.Denials
		}
		dropped[denial.Groups.String()] = s.Folded
		sinks = append(sinks, metrics.DenialSink{
			Name: sink.Name, Written: sink.Written.Lines, Dropped: dropped, Queued: int(sink.Queued.Lines),
			Failing: sink.Failing,
		})
	}
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
