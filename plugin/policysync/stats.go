package policysync

import (
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// The sources of a snapshot.
const (
	FromPostgres = "postgres"
	FromDisk     = "disk" // the file of an earlier run
	FromNone     = "none" // there is no snapshot: the config stands alone
)

// Stats are what is known of the sync at one moment.
type Stats struct {
	Version   int64         // of the snapshot in force; 0: there is none, or nothing was ever written
	Source    string        // of the snapshot in force: postgres, disk or none
	Connected bool          // Postgres is being followed now
	Standby   bool          // what was followed last is a standby, which may be late, and has no report of this node
	Age       time.Duration // since Postgres was last known to have nothing newer; 0: there is no snapshot. Of a saved snapshot it goes by the node's clock
	Enforced  time.Duration // since the snapshot is in force; 0: there is none
	Rows      int           // of all tables in the snapshot

	Faults     []policy.Fault // rows that do not compile, at most 1000, and after them those of Unfollowed; not to be changed
	FaultCount int            // all of them
	Refusal    string         // why the newest version is not in force; "": nothing of the kind

	Loads    uint64 // of all rows
	CatchUps uint64 // of changes alone
	Contacts uint64 // sessions with Postgres that got as far as a version
	Saves    uint64 // of the snapshot on disk
	Unsaved  uint64 // tries at that which failed

	LoadTime    time.Duration // of the last load of all rows, the building included; 0: there was none
	Propagation time.Duration // of the last change: from its writing, by Postgres's clock, until it was in force here; 0: there was none
	ClockOffset time.Duration // Postgres's clock less the node's, as last compared
}

// state is what Stats is made from.
type state struct {
	version                                 int64
	source, refusal                         string // source "" is FromNone
	connected, standby                      bool
	confirmed, enforced                     time.Time
	rows, faultCount                        int
	faults, unfollowed                      []policy.Fault
	loads, catchUps, contacts, saves, fails uint64
	loadTime, propagation, offset           time.Duration
}

// Stats tells how things stand. It never waits for Postgres.
func (s *Sync) Stats() Stats {
	s.mu.Lock()
	now := s.state
	s.mu.Unlock()
	out := Stats{
		Version: now.version, Source: now.source, Connected: now.connected, Standby: now.standby, Rows: now.rows,
		Faults: slices.Concat(now.faults, now.unfollowed), FaultCount: now.faultCount + len(now.unfollowed), Refusal: now.refusal,
		Loads: now.loads, CatchUps: now.catchUps, Contacts: now.contacts, Saves: now.saves, Unsaved: now.fails,
		LoadTime: now.loadTime, Propagation: now.propagation, ClockOffset: now.offset,
	}
	if out.Source == "" {
		out.Source = FromNone
		return out
	}
	out.Age, out.Enforced = max(0, time.Since(now.confirmed)), time.Since(now.enforced)
	return out
}

// Unfollowed tells which rows of the snapshot compile and yet cannot be followed where it is used, such as tenants of a tier
// that no config knows. Stats and the next report have them beside those that do not compile, until the next call. Nothing
// is logged. The list is not to be changed afterwards. It may be called by anybody at any time.
func (s *Sync) Unfollowed(faults []policy.Fault) {
	s.count(func(state *state) { state.unfollowed = faults })
}

// reported are the faults that a report has room for.
func (s Stats) reported() []policy.Fault {
	return slices.Clip(s.Faults[:min(len(s.Faults), maxReported)])
}

// count changes the state.
func (s *Sync) count(change func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// confirm notes that the snapshot was the newest at an instant.
func (s *Sync) confirm(at time.Time) {
	s.count(func(state *state) { state.confirmed = at })
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
