package policysync

import (
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// The sources of a snapshot.
const (
	FromPostgres = "postgres"
	FromDisk     = "disk" // the file of an earlier run
	FromNone     = "none" // there is no snapshot: only the config applies
)

// Stats describes the sync at one moment.
type Stats struct {
	Version   int64         `metric:"snapshot_version"` // of the snapshot in force; 0: none, or an empty database
	Source    string        // of the snapshot in force: postgres, disk or none
	Connected bool          `metric:"policies_connected"`   // Postgres is being followed now
	Standby   bool          `metric:"policies_standby"`     // the last server is one: it may lag, and lacks reports
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
	ClockOffset time.Duration // Postgres's clock less the node's, as last compared
}

// state holds what Stats returns.
type state struct {
	version                                 int64
	source, fault                           string // source "" is FromNone
	connected, standby                      bool
	confirmed, enforced                     time.Time
	rows, faultCount                        int
	faults, unfollowed                      []policy.Fault
	loads, catchUps, contacts, saves, fails uint64
	propagation, offset                     time.Duration
}

// Stats returns the present state. It never waits for Postgres.
func (s *Sync) Stats() Stats {
	s.mu.Lock()
	now := s.state
	s.mu.Unlock()
	out := Stats{
		Version: now.version, Source: now.source, Connected: now.connected, Standby: now.standby, Rows: now.rows,
		Faults: slices.Concat(now.faults, now.unfollowed), FaultCount: now.faultCount + len(now.unfollowed),
		Fault: now.fault,
		Loads: now.loads, CatchUps: now.catchUps, Contacts: now.contacts, Saves: now.saves, Unsaved: now.fails,
		Propagation: now.propagation, ClockOffset: now.offset,
	}
	if out.Source == "" {
		out.Source = FromNone
		return out
	}
	out.Age, out.Enforced = max(0, time.Since(now.confirmed)), time.Since(now.enforced)
	return out
}

// Unfollowed sets the faults of rows that compile and yet cannot apply, such as tenants of a tier that no config has.
// Stats and the next report include them until the next call. It logs nothing. The caller must not change the list
// afterwards. It may be called by any goroutine at any time.
func (s *Sync) Unfollowed(faults []policy.Fault) {
	s.updateState(func(state *state) { state.unfollowed = faults })
}

// reported returns the faults that fit into a report.
func (s Stats) reported() []policy.Fault {
	return slices.Clip(s.Faults[:min(len(s.Faults), maxReported)])
}

// updateState changes the state under the lock.
func (s *Sync) updateState(change func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// confirm records that the snapshot was the newest at an instant.
func (s *Sync) confirm(at time.Time) {
	s.updateState(func(state *state) { state.confirmed = at })
}

func (s *Sync) source() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.source
}

func (s *Sync) contacts() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.contacts
}
