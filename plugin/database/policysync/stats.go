package policysync

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// The sources of a snapshot.
const (
	FromPostgres = "postgres"
	FromDisk     = "disk"  // the file of an earlier run
	FromRedis    = "redis" // a copy that other nodes have made
	FromNone     = "none"  // there is no snapshot: only the config applies
)

// Stats describes the sync at one moment.
type Stats struct {
	Version   int64         `metric:"snapshot_version"` // of the snapshot in force; 0: none, or an empty database
	Source    string        // of the snapshot in force: postgres, disk, redis or none
	Connected bool          `metric:"policies_connected"`   // Postgres is being followed now
	Standby   bool          `metric:"policies_standby"`     // the last server is one: it may lag, and lacks reports
	Mirrored  bool          `metric:"policies_mirrored"`    // Source is redis
	Age       time.Duration `metric:"snapshot_age_seconds"` // since the snapshot was last confirmed; 0: there is none
	Enforced  time.Duration // since the snapshot is in force; 0: there is none
	Rows      int           `metric:"snapshot_rows"` // of all tables in the snapshot

	Faults     []policy.Fault // of rows that do not compile, at most 1000, then those of Unfollowed; do not change it
	FaultCount int            `metric:"snapshot_faults"` // of all faults
	Fault      string         // why the newest version is not in force; "" if it is

	Loads    uint64 `metric:"snapshot_loads_total"`     // of all rows
	CatchUps uint64 `metric:"snapshot_catch_ups_total"` // of changes only
	Contacts uint64 // sessions with Postgres that read a version
	Saves    uint64 `metric:"snapshot_saves_total"` // of the snapshot on disk
	Unsaved  uint64 // saves that failed

	Propagation time.Duration `metric:"propagation_seconds"` // of the last change, from its write; 0: none
}

type state struct {
	Stats                         // without Age and Enforced; its Faults and FaultCount are without unfollowed
	confirmed, enforced time.Time // zero: there is no snapshot
	unfollowed          []policy.Fault
	away                bool // Postgres was tried, and did not answer
}

// Stats returns the present state. It never waits for Postgres.
func (s *Sync) Stats() Stats {
	s.mu.Lock()
	now := s.state
	s.mu.Unlock()
	out := now.Stats
	out.Faults, out.FaultCount = slices.Concat(now.Faults, now.unfollowed), now.FaultCount+len(now.unfollowed)
	out.Mirrored = now.Source == FromRedis
	if out.Source = cmp.Or(now.Source, FromNone); now.Source != "" {
		out.Age, out.Enforced = max(0, time.Since(now.confirmed)), time.Since(now.enforced)
	}
	return out
}

// Unfollowed sets the faults of rows that compile and yet cannot apply, such as tenants of a tier that no config has.
// Stats and the next report include them until the next call. It logs nothing. The caller must not change the list
// afterwards. It may be called by any goroutine at any time.
func (s *Sync) Unfollowed(faults []policy.Fault) {
	s.updateState(func(state *state) { state.unfollowed = faults })
}

func (s *Sync) updateState(change func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

const (
	// maxFaults is the number of faults that are kept; others are only counted.
	maxFaults = 1000
	// maxLogged is the number of faults that one swap logs; maxReported is the number of rows with faults in a report.
	maxLogged, maxReported = 20, 100
)

// faultSet holds the faults of the rows that the snapshot was made from. Lists are immutable: Stats shares them.
type faultSet struct {
	list  []policy.Fault
	count int // of all faults, also those that do not fit in list
}

func keyOf(f policy.Fault) rowKey { return rowKey{f.Table, f.Key} }

// retryKeys returns rows with faults, at most maxReported, to be compiled again with the next change. That change may
// repair them: their fault may be another row, such as one with an ambiguous pattern.
func (f *faultSet) retryKeys() []rowKey {
	var keys []rowKey
	for _, fault := range f.list {
		if key := keyOf(fault); len(keys) == 0 || keys[len(keys)-1] != key {
			keys = append(keys, key)
		}
		if len(keys) == maxReported {
			break
		}
	}
	return keys
}

// replace replaces the faults of the fetched rows (nil: of all). It returns the new ones of those that are kept, and
// all of rows that have changed.
func (f *faultSet) replace(found []policy.Fault, fetched, changed map[rowKey]bool) (fresh []policy.Fault) {
	var list []policy.Fault
	before := map[policy.Fault]bool{}
	for _, fault := range f.list {
		if fetched == nil || fetched[keyOf(fault)] {
			before[fault] = true
		} else {
			list = append(list, fault)
		}
	}
	for _, fault := range found[:min(len(found), maxFaults)] {
		if !before[fault] || changed[keyOf(fault)] {
			fresh = append(fresh, fault)
		}
	}
	unlisted := f.count - len(f.list) // of unnamed rows, until all are loaded again
	if fetched == nil {
		unlisted = 0
	}
	list = append(list, found...)
	f.count, f.list = len(list)+unlisted, list[:min(len(list), maxFaults)]
	return fresh
}

func (s *Sync) logFaults(fresh []policy.Fault, version int64) {
	for _, f := range fresh[:min(len(fresh), maxLogged)] {
		s.log.Warn("a row does not compile: its last good value, if any, stays in force",
			"table", f.Table, "key", f.Key, "field", f.Field, "problem", f.Problem, "version", version)
	}
	if more := len(fresh) - maxLogged; more > 0 {
		s.log.Warn("more rows do not compile", "rows", more, "version", version)
	}
}
