// Package policysync keeps a [policy.Snapshot] that follows Postgres. It loads all rows in one transaction, then
// fetches what each new version changed, and swaps snapshots by an atomic pointer. While Postgres is unavailable it
// serves the last good snapshot and reports its age. It also saves the last snapshot in a file, and a copy in Redis,
// for starts without Postgres.
//
// Changes are found by their version: one row, which Sync polls four times a second. From time to time it loads all
// rows again. Writes send no notification, because any role can fill Postgres's queue of notifications, and a full
// queue stops every write that sends one. A standby accepts no reports.
//
// Package rows writes policies, and package policy compiles rows. The programs select what uses a snapshot.
package policysync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// DefaultMaxRows is the default of Options.MaxRows.
const DefaultMaxRows = 2_000_000

// FileName is the name of the saved snapshot in Options.Dir.
const FileName = "policies.snapshot"

// Options configures what to follow, and how closely. The zero value of a duration or number selects its default.
type Options struct {
	Source     Source       // where Postgres is; required
	Node       string       // name of this process in its reports, 1 to 256 bytes; "": no reports
	Superseded func() bool  // reports whether this process answers no requests, and so makes no reports; nil: never
	Dir        string       // folder of the saved snapshot and the life file, created if missing; "": nothing is saved
	Log        *slog.Logger // nil: slog.Default()

	// Condition returns what the reports have besides the rows; nil: no leases and no Redis. It must not block.
	Condition func() Condition

	// Changed is called with every new snapshot, one after the other, by the goroutine that made it, which waits for it.
	// A load of all rows makes a new snapshot even if no row has changed. nil: no call.
	Changed func(*policy.Snapshot)

	// MaxRows bounds the rows of all tables together (snapshot_max_rows): with more, the last good snapshot stays. A row
	// takes up to 400 bytes in a snapshot. A load needs room for two snapshots, and 250 bytes a row besides.
	MaxRows int

	ReloadEvery time.Duration // between loads of all rows; longer where loading takes more than 2 % of that: 1 min
	PollEvery   time.Duration // between polls of the version: 250 ms
	BeatEvery   time.Duration // between reports of the node without a change: 5 s
	SaveEvery   time.Duration // at least between saves; longer where saving takes more than 5 % of that: 3 s
	MinPause    time.Duration // before connecting again, doubled with every failure, and jittered: 100 ms
	MaxPause    time.Duration // the longest of these pauses: 5 s
}

// Sync follows Postgres while Run runs. Snapshot and Stats may be called by any goroutine at any time.
type Sync struct {
	options  Options
	log      *slog.Logger
	snapshot atomic.Pointer[policy.Snapshot]
	unsaved  chan struct{} // room for one signal: there is a snapshot to be saved
	loaded   sync.Once     // reads the saved snapshot

	mu      sync.Mutex // guards what Stats reads, and mirrors
	state   state
	mirrors map[string]*mirrorState // by fingerprint

	// swapping is held while other rows come into force than those before with changes: saved ones or all of Postgres.
	// It guards faults and candidate until rows of Postgres are in force.
	swapping sync.Mutex

	// The next fields belong to Load, then to the goroutine that follows.
	faults           faultSet
	loadedVersion    versionRow // of the snapshot
	oversizedVersion int64      // the version with too many rows; -1: none
	reloadAt         time.Time  // when all rows are loaded next
	lostAt           time.Time  // when contact was lost; zero while there is contact
	lostReason       string     // as last logged
	standby          bool       // the server of the last session was a standby
	reportRemoved    bool       // the report was removed
	life             *os.File   // the locked life file; nil: there is none
	reportFailed     bool       // the last report failed, and that was logged
	clocksDiffer     bool       // the clocks differ too much, and that was logged

	candidate       *policy.CandidateSet // the open one; nil: none is
	candidateFaults []policy.Fault       // of its changes

	// The next fields belong to the goroutine that saves, then to Run.
	saved    *policy.Snapshot // the snapshot of the last save, failed or not
	savedAt  time.Time        // start of the last save
	saveTime time.Duration    // duration of the last save
}

// New checks the options and reads the source. It starts nothing: Load and Run do.
func New(options Options) (*Sync, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("policy sync: %w", err)
	}
	// A file may be created or repaired later: until then Postgres counts as unavailable.
	if _, err := options.Source.config(nil); err != nil && (options.Source.File == "" || options.Source.DSN != "") {
		return nil, fmt.Errorf("policy sync: %w", err)
	}
	return &Sync{
		options: options, log: options.Log, oversizedVersion: -1,
		unsaved: make(chan struct{}, 1), mirrors: map[string]*mirrorState{},
	}, nil
}

func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if len(o.Node) > maxNode {
		return errors.New("the name of the node has more than 256 bytes")
	}
	if o.MaxRows = cmp.Or(o.MaxRows, DefaultMaxRows); o.MaxRows < 0 {
		return fmt.Errorf("snapshot_max_rows must be at least 1, got %d", o.MaxRows)
	}
	o.ReloadEvery = cmp.Or(o.ReloadEvery, time.Minute)
	o.PollEvery = cmp.Or(o.PollEvery, 250*time.Millisecond)
	o.BeatEvery = cmp.Or(o.BeatEvery, 5*time.Second)
	o.SaveEvery = cmp.Or(o.SaveEvery, 3*time.Second)
	o.MinPause = cmp.Or(o.MinPause, 100*time.Millisecond)
	o.MaxPause = cmp.Or(o.MaxPause, 5*time.Second)
	return nil
}

// Snapshot returns the last good snapshot, or nil before the first one.
func (s *Sync) Snapshot() *policy.Snapshot { return s.snapshot.Load() }

// Load reads the saved snapshot, if there is one. It logs a file that cannot be read, and keeps it. Run calls Load
// first. A second call does nothing.
func (s *Sync) Load() {
	if s.options.Dir != "" {
		s.loaded.Do(s.loadSaved)
	}
}

// Run follows Postgres until ctx ends, also while Postgres is unavailable, and returns nil. It is called once.
func (s *Sync) Run(ctx context.Context) error {
	s.Load()
	s.createLifeFile()
	defer s.closeLifeFile()
	var loops sync.WaitGroup
	loops.Go(func() { s.follow(ctx) })
	loops.Go(func() { s.saveUntil(ctx) })
	loops.Go(func() { s.mirrorUntil(ctx) })
	loops.Wait()
	s.save(true)
	return nil
}

// swap puts a snapshot in force, with Options.Changed. After that Stats change, in one step: with the version come its
// counts.
func (s *Sync) swap(snapshot *policy.Snapshot, from string, confirmed time.Time, count func(*state)) {
	rows := snapshot.Len() + len(snapshot.Tiers())
	s.snapshot.Store(snapshot)
	if s.options.Changed != nil {
		s.options.Changed(snapshot)
	}
	s.updateState(func(state *state) {
		state.Version, state.Source, state.Rows = snapshot.Version(), from, rows
		state.confirmed, state.enforced = confirmed, time.Now()
		state.Faults, state.FaultCount = s.faults.list, s.faults.count
		count(state)
	})
	if from == FromPostgres {
		select {
		case s.unsaved <- struct{}{}:
		default: // a signal is pending
		}
	}
}

func (s *Sync) path() string { return filepath.Join(s.options.Dir, FileName) }

// snapshotRead selects a transaction in which all statements see the same rows.
var snapshotRead = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
