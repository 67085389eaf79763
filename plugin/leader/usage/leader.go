// Package usage keeps usage history in Postgres. Nodes report batches ([usage.Batch]). One leader unpacks them
// into rows by minute, and sums minutes up to hours and hours to days ([Leader]). The migrations 00006_usage.sql and
// 00012_usage_models.sql describe the tables.
//
// # Once
//
// A batch is added once. One transaction adds its rows, sets last_seq of its source (a process of a node) and deletes
// the batch. The batches of a source are added in the order of their seq. One that is not above last_seq was added or
// given up before, and adds nothing. Where one is missing, the later ones wait for it, and go on without it after a
// time: that is a gap, which the source counts.
//
// All writes of the leader go through the session that holds its advisory lock. Each transaction also locks the row of
// usage_state first. So a leader that has lost its lock cannot write, and two leaders would work one after the other.
//
// # Sums
//
// usage_state has two marks. All minutes before hours_until are in the hours, and all hours before days_until are in
// the days. Moving a mark and adding the sums is one transaction. A batch that comes late is added to its minutes, and
// also to each sum whose mark has passed it. A closed day does not change: what is of it counts on the day on which it
// comes. So minutes, hours and days always have the same total, and no sum is recomputed.
//
// # Faults
//
// A batch that cannot be decoded is set aside: it stays in its table with the fault as long as minutes are kept, and
// those after it are added. After any other error the leader ends its session, logs the error once, and tries again.
package usage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
)

const (
	// defaultEvery is the time between two rounds of the leader, and between two tries to become it.
	defaultEvery = 5 * time.Second
	// defaultGapAfter is how long the batches after a missing one wait for it. A source without a batch for as long does
	// not keep a day open.
	defaultGapAfter = 10 * time.Minute
	// choresEvery is the time between two runs of the chores, and between two looks at the partitions.
	choresEvery = time.Minute
	// checkEvery is the time between two calls of Options.Check.
	checkEvery = 15 * time.Second
	// roundTime bounds one round, so that a server that does not answer costs the leader its session.
	roundTime = 15 * time.Minute
)

// sessionSettings bound what the leader waits for. To drop a partition it waits for readers, and readers wait for it.
const sessionSettings = `SELECT set_config('lock_timeout', '5s', false),
	set_config('statement_timeout', '10min', false), set_config('timezone', 'UTC', false)`

// mayLead checks a right that only the role keeper needs.
const mayLead = `SELECT has_function_privilege('rate_limiter.keep_usage_partitions()', 'EXECUTE')`

// Options configure a Leader. Zero values of the durations are the defaults.
type Options struct {
	// Connect opens a session of its own, as a role with the rights of keeper.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	// Lock is the number of the advisory lock that the leader holds in its session.
	Lock int64
	// Chores does other work of the leader in its session, once a minute, and reports whether more is due; nil: none.
	Chores func(ctx context.Context, conn *pgx.Conn) (more bool, err error)
	// Check looks at the rows that were unpacked, in the session of the leader, from time to time; nil: nothing does.
	Check func(ctx context.Context, conn *pgx.Conn) error
	Log   *slog.Logger
	// Advice returns what an operator has to do about an error, or ""; nil: there is no advice.
	Advice func(error) string

	Every    time.Duration // between two rounds: 5 s
	GapAfter time.Duration // how long a missing batch is waited for: 10 min
}

// Leader unpacks what the nodes report, sums it up, and keeps partitions and retention. Any number of processes may run
// one: the process that holds the lock works, and the others wait for it. It is safe for concurrent use.
type Leader struct {
	options Options
	fault   leadership.Fault
	shift   time.Duration // added to the database's clock where days are closed; for tests

	mu    sync.Mutex
	stats Stats
}

// NewLeader returns a leader. It does no I/O.
func NewLeader(o Options) *Leader {
	o.Every = cmp.Or(o.Every, defaultEvery)
	o.GapAfter = cmp.Or(o.GapAfter, defaultGapAfter)
	return &Leader{options: o, fault: leadership.Fault{
		Log: o.Log, Level: slog.LevelWarn, Advice: o.Advice, Ends: "unpacking usage succeeds again",
		Begins: "unpacking usage failed: batches wait in Postgres, and this process tries again",
	}}
}

// Stats returns what this process has done as the leader.
func (l *Leader) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Run leads, or waits to lead, until ctx ends. After an error it starts a new session, so it always returns nil.
func (l *Leader) Run(ctx context.Context) error { return leadership.Run(ctx, l.job()) }

func (l *Leader) job() leadership.Job {
	o := &l.options
	return leadership.Job{
		Connect: o.Connect, SetUp: setUp, Lock: o.Lock, Every: o.Every, Lead: l.lead, Fault: &l.fault,
	}
}

func (l *Leader) lead(ctx context.Context, conn *pgx.Conn) error {
	l.setLeading(true)
	defer l.setLeading(false)
	s := l.newSession(conn)
	for {
		bounded, cancel := context.WithTimeout(ctx, roundTime)
		more, err := s.round(bounded)
		cancel()
		if err != nil {
			return err
		}
		if !more {
			l.succeed()
			leadership.Pause(ctx, l.options.Every)
		}
	}
}

// Once does the work of the leader that is due, and returns what it did. If another process leads, it does nothing and
// Leading is false. With an error it also returns what was done: a check that fails keeps it from nothing else.
func (l *Leader) Once(ctx context.Context) (done Stats, err error) {
	conn, err := l.job().Open(ctx)
	if err != nil {
		return l.Stats(), err
	}
	defer leadership.Close(conn)
	s := l.newSession(conn)
	leads, err := leadership.TryLock(ctx, conn, l.options.Lock)
	if err == nil && leads {
		l.setLeading(true)
		defer l.setLeading(false)
		for more := true; more && err == nil; {
			more, err = s.round(ctx)
		}
		err = cmp.Or(err, s.checkError)
	}
	return l.Stats(), err
}

// session is a connection of the leader, with what it remembers while it holds the lock.
type session struct {
	*Leader
	conn *pgx.Conn

	choresAt time.Time // when the chores are due, by this process's clock
	checkAt  time.Time // when the check is due, by the same clock

	checkFault *leadership.Fault
	checkError error // of the last check
}

func (l *Leader) newSession(conn *pgx.Conn) *session {
	return &session{Leader: l, conn: conn, checkFault: &leadership.Fault{
		Log: l.options.Log, Level: slog.LevelError, Advice: l.options.Advice,
		Begins: "checking what was unpacked failed: it is tried again",
		Ends:   "checking what was unpacked succeeds again",
	}}
}

// setUp sets the parameters of a session, and returns an error if its user cannot lead.
func setUp(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, sessionSettings); err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	var may bool
	if err := conn.QueryRow(ctx, mayLead).Scan(&may); err != nil {
		return fmt.Errorf("check the rights of the session: %w", err)
	}
	if !may {
		return &RightsError{User: conn.Config().User}
	}
	return nil
}

// RightsError reports a database user who cannot lead.
type RightsError struct{ User string }

func (e *RightsError) Error() string {
	return fmt.Sprintf("the database user %q lacks the rights of the role keeper", e.User)
}

// round does the work that is due, and reports whether there is more. It ends in time for the next chores, also while
// many batches wait.
func (s *session) round(ctx context.Context) (more bool, err error) {
	choresDue := !time.Now().Before(s.choresAt)
	if choresDue {
		if err := s.tidyUsage(ctx); err != nil {
			return false, err
		}
	}
	for end := time.Now().Add(choresEvery); ; {
		if more, err = s.unpack(ctx); err != nil {
			return false, err
		}
		if !more || time.Now().After(end) {
			break
		}
	}
	if err := s.countWaiting(ctx); err != nil {
		return false, err
	}
	if err := s.sumUp(ctx); err != nil {
		return false, err
	}
	if err := s.check(ctx); err != nil || !choresDue {
		return more, err
	}
	choresLeft := false
	if s.options.Chores != nil {
		if choresLeft, err = s.options.Chores(ctx, s.conn); err != nil {
			return false, fmt.Errorf("chores: %w", err)
		}
	}
	if !choresLeft {
		s.choresAt = time.Now().Add(choresEvery)
	}
	return more, nil
}

// check looks at what was unpacked, if that is due. A check that fails does not keep the leader from its other work: it
// returns an error only if the session has ended.
func (s *session) check(ctx context.Context) error {
	if s.options.Check == nil || time.Now().Before(s.checkAt) {
		return nil
	}
	s.checkAt = time.Now().Add(checkEvery)
	s.checkError = s.options.Check(ctx, s.conn)
	if s.checkError != nil && s.conn.IsClosed() {
		return fmt.Errorf("check what was unpacked: %w", s.checkError)
	}
	s.checkFault.Record(s.checkError)
	return nil
}

func (s *session) tidyUsage(ctx context.Context) error {
	for _, sql := range [...]string{keepPartitions, deleteSources, deleteNodes, deleteDenials, deleteCalls, deleteFaulty} {
		if _, err := s.conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("tidy usage: %w", err)
		}
	}
	return nil
}

// Stats counts what a process has done as the leader. All numbers but Leading, Rows and UnpackedAt are of batches,
// hours and days.
type Stats struct {
	Leading bool  `json:"leader" metric:"usage_leader"`                                   // this process leads, or has
	Batches int64 `json:"batches" metric:"usage_unpacked_batches_total result=added"`     // added
	Rows    int64 `json:"rows"`                                                           // of minutes that these changed
	Again   int64 `json:"repeated" metric:"usage_unpacked_batches_total result=repeated"` // added before
	Gaps    int64 `json:"gaps" metric:"usage_unpacked_batches_total result=gap"`          // that did not come
	TooLate int64 `json:"too_late" metric:"usage_unpacked_batches_total result=too_late"` // older than the minutes kept
	Faulty  int64 `json:"faulty" metric:"usage_unpacked_batches_total result=faulty"`     // that were set aside
	Hours   int64 `json:"hours"`                                                          // summed up
	Days    int64 `json:"days"`                                                           // closed

	// UnpackedAt is when it had last unpacked all batches that were ready.
	UnpackedAt time.Time `json:"-" metric:"usage_unpacked_timestamp_seconds"`
}

// add adds what a transaction did, after its commit.
func (l *Leader) add(done Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Batches += done.Batches
	l.stats.Rows += done.Rows
	l.stats.Again += done.Again
	l.stats.Gaps += done.Gaps
	l.stats.TooLate += done.TooLate
	l.stats.Faulty += done.Faulty
	l.stats.Hours += done.Hours
	l.stats.Days += done.Days
}

func (l *Leader) setLeading(leads bool) {
	text := "this process unpacks the usage that nodes report, and tidies"
	if !leads {
		text = "this process has stopped unpacking the usage that nodes report"
	}
	l.options.Log.Info(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Leading = leads
}

func (l *Leader) succeed() {
	l.mu.Lock()
	l.stats.UnpackedAt = time.Now()
	l.mu.Unlock()
	l.fault.Record(nil)
}

func (l *Leader) logRound(done Stats, fault string) {
	if done.Gaps > 0 {
		l.options.Log.Warn("batches of usage did not come: what they counted is lost", "batches", done.Gaps)
	}
	if done.TooLate > 0 {
		l.options.Log.Warn("batches of usage came after the time for which minutes are kept, and were dropped",
			"batches", done.TooLate)
	}
	if done.Faulty > 0 {
		l.options.Log.Warn("batches of usage cannot be added: they are set aside in usage_batches",
			"batches", done.Faulty, "fault", fault)
	}
}
