// Package policysync keeps a [policy.Snapshot] that follows Postgres: it listens before it loads, loads all rows in one
// transaction, then fetches what each new version changed, and swaps snapshots by an atomic pointer. Without Postgres it
// keeps serving the last good snapshot and says how old that is; the last snapshot is also kept in a file, so that a node that
// starts without Postgres has one.
//
// A standby sends no notifications and takes no reports: it is looked at every second.
//
// A notification is only a hint to look. What makes a change arrive is the version: it is looked at after every hint,
// after every connect, and every few seconds; and from time to time everything is loaded again.
//
// Writing policies is package pgstore's, what the rows mean is package policy's, and which paths use a snapshot is package engine's.
package policysync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// What an option is that is not given.
const (
	DefaultMaxRows     = 2_000_000
	DefaultReloadEvery = time.Minute
	DefaultPollEvery   = 5 * time.Second
	DefaultBeatEvery   = 5 * time.Second
	DefaultSaveEvery   = 3 * time.Second
	DefaultMinPause    = 100 * time.Millisecond
	DefaultMaxPause    = 5 * time.Second
)

// FileName is the name of the saved snapshot in Options.Dir.
const FileName = "policies.snapshot"

// Options say what to follow, and how closely. The zero value of a duration or number is its default; less is an error.
type Options struct {
	Source Source       // where Postgres is; required
	Node   string       // the name of this life of this process in its reports, 1 to 256 bytes; "": it makes none
	Away   func() bool  // whether this process answers no requests, and so reports nothing; nil: it always does
	Dir    string       // the folder of the saved snapshot and of the node's life, made if it is missing; "": nothing is saved
	Log    *slog.Logger // nil: slog.Default()

	// Changed is told of every new snapshot, one after the other, by the goroutine that made it: what comes next waits for
	// it. A load of all rows makes a new snapshot even if nothing is new. nil: nobody is told.
	Changed func(*policy.Snapshot)

	// MaxRows is the most rows of all tables together (snapshot_max_rows): of more, the last good snapshot stays. A row takes
	// up to 400 bytes in a snapshot, and while all rows are loaded there are two snapshots, and 250 bytes a row beside them.
	MaxRows int

	ReloadEvery time.Duration // between loads of all rows; longer where loading takes more than 2 % of that
	PollEvery   time.Duration // between looks at the version without a hint
	BeatEvery   time.Duration // between reports of the node without a change
	SaveEvery   time.Duration // at least between saves; longer where saving takes more than 5 % of that
	MinPause    time.Duration // before connecting again, doubled with every failure, and jittered
	MaxPause    time.Duration // of those the longest
}

// Sync follows Postgres while Run runs. Snapshot and Stats may be called by anybody at any time.
type Sync struct {
	options  Options
	log      *slog.Logger
	snapshot atomic.Pointer[policy.Snapshot]
	unsaved  chan struct{} // room for one: there is a snapshot to be saved
	loaded   sync.Once     // the saved snapshot has been looked for

	mu    sync.Mutex // guards what Stats reads
	state state

	// What follows belongs to Load, then to the goroutine that follows.
	faults     faults
	held       head      // what the snapshot was made from
	refused    int64     // the version that was not loaded for its size; -1: none
	reloadAt   time.Time // when all rows are loaded next
	lostAt     time.Time // when contact was lost; zero: it was not
	lostWhy    string    // what was logged about that last
	standby    bool      // the server of the last session was a standby
	left       bool      // the report was taken back
	life       life
	unreported bool                   // the last report failed, and that was logged
	skewed     bool                   // the clocks differ too much, and that was logged
	candidates int64                  // policies of the slot candidate that the last load found
	ahead      *migrations.AheadError // the tables are newer than this program, and that was logged; nil: they are not

	// What follows belongs to the goroutine that saves, then to Run.
	saved    *policy.Snapshot // the last snapshot that was saved, or tried
	savedAt  time.Time        // when that was
	saveTime time.Duration    // how long that took
}

// New checks the options. Nothing is read but the source, and nothing started: that is Load's and Run's.
func New(options Options) (*Sync, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("policy sync: %w", err)
	}
	// A file may come, or be mended, later: until then it is as if Postgres were away.
	if _, err := options.Source.config(); err != nil && (options.Source.File == "" || options.Source.DSN != "") {
		return nil, fmt.Errorf("policy sync: %w", err)
	}
	return &Sync{options: options, log: options.Log, unsaved: make(chan struct{}, 1), refused: -1}, nil
}

// complete puts defaults where nothing is given.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if len(o.Node) > maxNode {
		return errors.New("the name of the node has more than 256 bytes")
	}
	if o.MaxRows == 0 {
		o.MaxRows = DefaultMaxRows
	}
	if o.MaxRows < 0 {
		return fmt.Errorf("snapshot_max_rows must be at least 1, got %d", o.MaxRows)
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"ReloadEvery", &o.ReloadEvery, DefaultReloadEvery},
		{"PollEvery", &o.PollEvery, DefaultPollEvery},
		{"BeatEvery", &o.BeatEvery, DefaultBeatEvery},
		{"SaveEvery", &o.SaveEvery, DefaultSaveEvery},
		{"MinPause", &o.MinPause, DefaultMinPause},
		{"MaxPause", &o.MaxPause, DefaultMaxPause},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
		if *d.value < 0 {
			return fmt.Errorf("%s must be positive, got %v", d.name, *d.value)
		}
	}
	return nil
}

// Snapshot is the last good snapshot; nil while nothing is known.
func (s *Sync) Snapshot() *policy.Snapshot { return s.snapshot.Load() }

// Load reads the saved snapshot, if there is one, before it returns. A file that cannot be used is logged and left alone. Run
// does this first, so only who needs the snapshot before calls it; a second call does nothing.
func (s *Sync) Load() {
	if s.options.Dir != "" {
		s.loaded.Do(s.loadSaved)
	}
}

// Run follows Postgres until ctx ends; it is called once. That Postgres is away is no reason to end: it returns nil.
func (s *Sync) Run(ctx context.Context) error {
	s.Load()
	s.beginLife()
	defer s.endLife()
	var loops sync.WaitGroup
	loops.Go(func() { s.follow(ctx) })
	loops.Go(func() { s.saveUntil(ctx) })
	loops.Wait()
	s.save(true)
	return nil
}

// swap puts a snapshot in force and tells about it. Whoever sees its version in the stats finds it counted there, too.
func (s *Sync) swap(snapshot *policy.Snapshot, from string, confirmed time.Time, count func(*state)) {
	rows := snapshot.Len() + len(snapshot.Tiers())
	s.snapshot.Store(snapshot)
	s.count(func(state *state) {
		state.version, state.source, state.rows = snapshot.Version(), from, rows
		state.confirmed, state.enforced = confirmed, time.Now()
		state.faults, state.faultCount = s.faults.list, s.faults.count
		count(state)
	})
	if from == FromPostgres {
		signal(s.unsaved)
	}
	if s.options.Changed != nil {
		s.options.Changed(snapshot)
	}
}

// path is the file of the saved snapshot.
func (s *Sync) path() string { return filepath.Join(s.options.Dir, FileName) }

// signal wakes the receiver of a channel with room for one signal, unless it will be woken anyway.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// snapshotRead is a transaction in which all statements see the same rows.
var snapshotRead = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
