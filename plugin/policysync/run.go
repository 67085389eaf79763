package policysync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// lookTime, fetchTime and loadTime bound looking at the version, fetching changes and loading all rows: a server that
	// has stopped answering is left and connected to again.
	lookTime, fetchTime, loadTime = 3 * time.Second, 30 * time.Second, 2 * time.Minute
	// loadShare is how many times longer than a load the time to the next one is.
	loadShare = 50
	// rest is how long lies between two looks for a hint, so that a burst of changes makes few snapshots.
	rest = 10 * time.Millisecond
	// tolerance is by how much the clocks may differ before somebody is told: overrides end by the node's clock.
	tolerance = time.Second
)

// follow has one session with Postgres after the other until ctx ends.
func (s *Sync) follow(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		before := s.contacts()
		err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.contacts() != before {
			failures = 0
		}
		if errors.Is(err, errPromoted) {
			continue
		}
		s.lose(err)
		pause := time.NewTimer(jittered(min(s.options.MaxPause, s.options.MinPause<<min(failures, 10))))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// jittered is between half of a time and all of it, so that nodes that lost the same server do not come back as one.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// session connects and follows the versions until ctx ends, or contact does.
func (s *Sync) session(ctx context.Context) error {
	l, err := s.connect(ctx)
	if err != nil {
		return err
	}
	listening, cancel := context.WithCancel(context.WithoutCancel(ctx)) // its end is not mistaken for lost contact
	hints, lost := make(chan struct{}, 1), make(chan error, 1)
	var listener sync.WaitGroup
	if l.listener != nil {
		listener.Go(func() { lost <- listen(listening, l.listener, hints) })
	}
	defer func() {
		cancel()
		listener.Wait()
		l.close()
	}()
	s.meet(l.standby)
	s.checkTables(ctx, l.worker)
	if err := s.look(ctx, l.worker); err != nil {
		return err
	}
	s.find()
	return s.attend(ctx, l.worker, hints, lost)
}

// checkTables logs, once, that a newer program has migrated the database. Rows are followed all the same: a migration
// keeps what older programs read.
func (s *Sync) checkTables(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	err, ahead := migrations.CheckAhead(ctx, conn), new(migrations.AheadError)
	switch {
	case errors.As(err, &ahead):
		if s.ahead == nil || *s.ahead != *ahead {
			s.log.Warn("what newer rows say may not be known here", "error", err)
		}
		s.ahead = ahead
	case err != nil:
		s.log.Debug("the list of migrations cannot be read", "error", err)
	default:
		s.ahead = nil
	}
}

// advice returns what an operator has to do about an error of Postgres; "": nothing follows from it.
func (s *Sync) advice(err error) string {
	if s.ahead != nil && migrations.Lacks(err) {
		return s.ahead.Error()
	}
	return migrations.Advice(err)
}

// listen gives a hint for every notification; many of them make one. Contact is lost when it returns.
func listen(ctx context.Context, conn *pgx.Conn, hints chan<- struct{}) error {
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("wait for changes: %w", err)
		}
		signal(hints)
	}
}

// attend does what is due until ctx ends or contact is lost.
func (s *Sync) attend(ctx context.Context, conn *pgx.Conn, hints <-chan struct{}, lost <-chan error) error {
	poll, beat := time.NewTicker(s.pollEvery()), time.NewTicker(s.options.BeatEvery)
	defer poll.Stop()
	defer beat.Stop()
	reload := time.NewTimer(time.Until(s.reloadAt))
	defer reload.Stop()
	rested := time.NewTimer(0)
	defer rested.Stop()
	var ready <-chan struct{} // hints, but not too soon after the last one
	err := s.beat(ctx, conn)
	for err == nil {
		select {
		case <-ctx.Done():
			s.leave(ctx, conn)
			return nil
		case err = <-lost:
		case <-rested.C:
			ready = hints
		case <-ready:
			ready = nil
			err = s.look(ctx, conn)
			rested.Reset(rest)
		case <-poll.C:
			err = s.look(ctx, conn)
		case <-beat.C:
			err = s.beat(ctx, conn)
		case <-reload.C:
			err = s.load(ctx, conn)
			reload.Reset(time.Until(s.reloadAt))
		}
	}
	return err
}

// beat reports, and takes back the reports of those that can no longer do it.
func (s *Sync) beat(ctx context.Context, conn *pgx.Conn) error {
	err := s.report(ctx, conn)
	if err == nil {
		s.removeDead(ctx, conn)
	}
	return err
}

// look compares versions, and gets what is new.
func (s *Sync) look(ctx context.Context, conn *pgx.Conn) error {
	h, err := s.lookUp(ctx, conn)
	if err != nil {
		return err
	}
	s.compareClocks(h)
	switch {
	case s.standby && !h.standby:
		return errPromoted
	case h.version == s.refused:
		return nil
	case s.source() != FromPostgres, h.version < s.held.version, h.version == s.held.version && !h.at.Equal(s.held.at):
		return s.load(ctx, conn) // what is held is not from this database, or from a past of it that never was
	case h.version == s.held.version:
		s.confirm(h.seen)
		return nil
	}
	return s.catchUp(ctx, conn)
}

func (s *Sync) lookUp(ctx context.Context, conn *pgx.Conn) (head, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return readHead(ctx, conn)
}

// compareClocks tells when the node's clock begins to differ from the server's.
func (s *Sync) compareClocks(h head) {
	offset := h.offset()
	s.count(func(state *state) { state.offset = offset })
	if skewed := offset.Abs() > tolerance; skewed != s.skewed {
		s.skewed = skewed
		if skewed {
			s.log.Warn("the clocks of this node and Postgres differ: overrides expire by this node's clock", "seconds", offset.Seconds())
		} else {
			s.log.Info("the clocks of this node and Postgres agree again")
		}
	}
}

// catchUp fetches what has changed. Where that cannot be told, it loads everything.
func (s *Sync) catchUp(ctx context.Context, conn *pgx.Conn) error {
	bounded, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	n, err := loadChanges(bounded, conn, s.held.version, s.faults.again())
	if errors.Is(err, errFar) {
		return s.load(ctx, conn)
	}
	if err != nil {
		return err
	}
	snapshot, found := s.Snapshot().Apply(n.changes)
	if rows := int64(snapshot.Len() + len(snapshot.Tiers())); rows > int64(s.options.MaxRows) {
		return s.load(ctx, conn) // which tells what there is too much of
	}
	fresh := s.faults.some(found, n.looked, n.changed)
	s.logFaults(fresh, n.head.version)
	s.adopt(snapshot, n.head, func(state *state) { state.catchUps++; state.propagation = n.head.lag() })
	s.log.Debug("policy changes are in force", "version", n.head.version, "rows", len(n.changed), "seconds", n.head.lag().Seconds())
	return s.report(ctx, conn)
}

// load gets all rows. When there are too many that is told, and the last good snapshot stays.
func (s *Sync) load(ctx context.Context, conn *pgx.Conn) error {
	bounded, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	began := time.Now()
	known := s.source() == FromPostgres && s.held.version > 0
	a, err := loadAll(bounded, conn, s.options.MaxRows)
	s.reloadAt = time.Now().Add(jittered(max(s.options.ReloadEvery, loadShare*time.Since(began))))
	if crowd := new(crowdError); errors.As(err, &crowd) {
		s.refuse(crowd)
		return nil
	}
	if err != nil {
		return err
	}
	snapshot, found := policy.NewSnapshot(a.rows, s.Snapshot())
	fresh, newer := s.faults.all(found), known && a.head.version != s.held.version
	s.logFaults(fresh, a.head.version)
	s.logCandidates(a.candidates, a.head.version)
	took := time.Since(began)
	s.reloadAt = time.Now().Add(jittered(max(s.options.ReloadEvery, loadShare*took)))
	s.adopt(snapshot, a.head, func(state *state) {
		state.loads++
		state.loadTime = took
		if newer {
			state.propagation = a.head.lag()
		}
	})
	s.log.Debug("loaded all policies", "version", a.head.version, "rows", snapshot.Len(), "bytes", a.bytes, "seconds", took.Seconds())
	return s.report(ctx, conn)
}

// adopt puts a snapshot from Postgres in force, and counts how it came.
func (s *Sync) adopt(snapshot *policy.Snapshot, h head, count func(*state)) {
	if s.Stats().Refusal != "" {
		s.log.Info("policies fit within snapshot_max_rows again", "version", h.version, "rows", snapshot.Len())
	}
	s.held, s.refused = h, -1
	s.swap(snapshot, FromPostgres, h.seen, func(state *state) {
		state.refusal = ""
		count(state)
	})
}

// refuse keeps the last good snapshot while there are too many rows, and tells so once.
func (s *Sync) refuse(crowd *crowdError) {
	s.refused = crowd.version
	if s.Stats().Refusal == "" {
		s.log.Error("too many policies: the last good ones stay in force", "error", crowd, "version_in_force", s.held.version)
	}
	s.count(func(state *state) { state.refusal = crowd.Error() })
}

// lose tells once that Postgres cannot be followed, or never could: that contact is lost, or what else there is to be done.
// It tells again when that becomes something else.
func (s *Sync) lose(err error) {
	s.count(func(state *state) { state.connected = false })
	why := cmp.Or(s.advice(err), "no contact with Postgres")
	if !s.lostAt.IsZero() && why == s.lostWhy {
		s.log.Debug("still "+why, "error", err)
		return
	}
	if s.lostAt.IsZero() {
		s.lostAt = time.Now()
	}
	s.lostWhy = why
	now := s.Stats()
	s.log.Warn(why+": the last good policies stay in force",
		"error", err, "version", now.Version, "source", now.Source, "age_seconds", now.Age.Seconds())
}

// find tells once that contact is back.
func (s *Sync) find() {
	s.count(func(state *state) { state.connected = true; state.contacts++ })
	if s.lostAt.IsZero() {
		return
	}
	s.log.Info("contact with Postgres is restored", "away_seconds", time.Since(s.lostAt).Seconds(), "version", s.held.version)
	s.lostAt = time.Time{}
}
