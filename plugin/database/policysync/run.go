package policysync

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// pollTime, fetchTime and loadTime bound a poll of the version, a fetch of changes and a load of all rows. After that
	// the session ends, and the next one connects again.
	pollTime, fetchTime, loadTime = 3 * time.Second, 30 * time.Second, 2 * time.Minute
	// loadShare is the least ratio of the time between loads to a load.
	loadShare = 50
	// clockTolerance is the difference of the clocks above which it is logged: overrides end by the node's clock.
	clockTolerance = time.Second
)

// follow runs one session with Postgres after the other until ctx ends.
func (s *Sync) follow(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		before := s.Stats().Contacts
		err := s.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.Stats().Contacts != before {
			failures = 0
		}
		s.recordLoss(err)
		select {
		case <-ctx.Done():
		case <-time.After(jittered(min(s.options.MaxPause, s.options.MinPause<<min(failures, 10)))):
		}
	}
}

// jittered returns a random time between d/2 and d, so that nodes do not reconnect at the same time.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// runSession connects and follows the versions until ctx ends or contact is lost.
func (s *Sync) runSession(ctx context.Context) error {
	conn, err := s.options.Source.connect(ctx, quick)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if err = s.poll(ctx, conn); err == nil {
		s.recordContact()
		err = s.serve(ctx, conn)
	}
	if err != nil {
		return &advisedError{err, adviceOn(ctx, conn, err)}
	}
	return nil
}

// serve polls, reports and loads when due, until ctx ends or contact is lost.
func (s *Sync) serve(ctx context.Context, conn *pgx.Conn) error {
	poll, beat := time.NewTicker(s.options.PollEvery), time.NewTicker(s.options.BeatEvery)
	defer poll.Stop()
	defer beat.Stop()
	reload := time.NewTimer(time.Until(s.reloadAt))
	defer reload.Stop()
	err := s.beat(ctx, conn)
	for err == nil {
		select {
		case <-ctx.Done():
			s.removeReport(ctx, conn)
			return nil
		case <-poll.C:
			err = s.poll(ctx, conn)
		case <-beat.C:
			err = s.beat(ctx, conn)
		case <-reload.C:
			err = s.load(ctx, conn)
			reload.Reset(time.Until(s.reloadAt))
		}
	}
	if ctx.Err() != nil {
		s.removeReport(ctx, nil) // the end interrupted a query, which closed conn
		return nil
	}
	return err
}

func (s *Sync) beat(ctx context.Context, conn *pgx.Conn) error {
	err := s.report(ctx, conn)
	if err == nil {
		s.removeDeadReports(ctx, conn)
	}
	return err
}

func (s *Sync) poll(ctx context.Context, conn *pgx.Conn) error {
	bounded, cancel := context.WithTimeout(ctx, pollTime)
	h, err := readHead(bounded, conn)
	if cancel(); err != nil {
		return err
	}
	s.compareClocks(h)
	s.setStandby(h.standby)
	switch {
	case h.version == s.oversizedVersion:
		return nil
	case s.Stats().Source != FromPostgres, h.version < s.loadedVersion.version,
		h.version == s.loadedVersion.version && !h.takenAt.Equal(s.loadedVersion.takenAt):
		return s.load(ctx, conn) // the snapshot is not from this database, or not from this history of it
	case h.version == s.loadedVersion.version:
		s.updateState(func(state *state) { state.confirmed = h.localTime })
		return nil
	}
	return s.catchUp(ctx, conn)
}

// compareClocks logs when the node's clock begins to differ from the server's, and when it agrees again.
func (s *Sync) compareClocks(h versionRow) {
	offset := h.offset()
	if skewed := offset.Abs() > clockTolerance; skewed != s.clocksDiffer {
		s.clocksDiffer = skewed
		if skewed {
			s.log.Warn("the clocks of this node and Postgres differ: overrides expire by this node's clock",
				"seconds", offset.Seconds())
		} else {
			s.log.Info("the clocks of this node and Postgres agree again")
		}
	}
}

// catchUp fetches what has changed, or loads all rows if it is too far behind.
func (s *Sync) catchUp(ctx context.Context, conn *pgx.Conn) error {
	bounded, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	n, err := loadChanges(bounded, conn, s.loadedVersion.version, s.faults.retryKeys())
	if errors.Is(err, errTooFarBehind) {
		return s.load(ctx, conn)
	}
	if err != nil {
		return err
	}
	snapshot, found := s.Snapshot().Apply(n.changes)
	if rows := int64(snapshot.Len() + len(snapshot.Tiers())); rows > int64(s.options.MaxRows) {
		return s.load(ctx, conn) // which reports the size of each table
	}
	if n.candidateChanged {
		s.candidate = n.candidate
	}
	fresh := s.faults.replace(found, n.fetched, n.changed)
	s.logFaults(fresh, n.head.version)
	s.swapLoaded(snapshot, n.head, func(state *state) { state.CatchUps++; state.Propagation = n.head.lag() })
	s.log.Debug("policy changes are in force",
		"version", n.head.version, "rows", len(n.changed), "seconds", n.head.lag().Seconds())
	return s.report(ctx, conn)
}

// load loads all rows. If there are too many, it records that and keeps the last good snapshot.
func (s *Sync) load(ctx context.Context, conn *pgx.Conn) error {
	bounded, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	began := time.Now()
	followed := s.Stats().Source == FromPostgres && s.loadedVersion.version > 0
	a, err := loadAll(bounded, conn, s.options.MaxRows)
	s.planReload(began)
	if crowd := new(tooManyRowsError); errors.As(err, &crowd) {
		s.recordOversized(crowd)
		return nil
	}
	if err != nil {
		return err
	}
	s.swapping.Lock()
	snapshot, found := policy.NewSnapshot(a.rows, s.Snapshot())
	s.candidate = a.candidate
	fresh, newer := s.faults.replace(found, nil, nil), followed && a.head.version != s.loadedVersion.version
	s.logFaults(fresh, a.head.version)
	took := s.planReload(began)
	s.swapLoaded(snapshot, a.head, func(state *state) {
		state.Loads++
		if newer {
			state.Propagation = a.head.lag()
		}
	})
	s.swapping.Unlock()
	s.log.Debug("loaded all policies",
		"version", a.head.version, "rows", snapshot.Len(), "seconds", took.Seconds())
	return s.report(ctx, conn)
}

// planReload sets when all rows are loaded next, and returns how long a load that began at an instant has taken.
func (s *Sync) planReload(began time.Time) (took time.Duration) {
	took = time.Since(began)
	s.reloadAt = time.Now().Add(jittered(max(s.options.ReloadEvery, loadShare*took)))
	return took
}

// swapLoaded puts a snapshot from Postgres in force. count updates the counters of its load.
func (s *Sync) swapLoaded(snapshot *policy.Snapshot, h versionRow, count func(*state)) {
	if s.Stats().Fault != "" {
		s.log.Info("policies fit within snapshot_max_rows again", "version", h.version, "rows", snapshot.Len())
	}
	s.loadedVersion, s.oversizedVersion = h, -1
	s.swap(s.withCandidate(snapshot), FromPostgres, h.localTime, func(state *state) {
		state.Fault = ""
		count(state)
	})
}

// recordOversized records that a version has too many rows, and logs that once. The last good snapshot stays.
func (s *Sync) recordOversized(crowd *tooManyRowsError) {
	s.oversizedVersion = crowd.version
	if s.Stats().Fault == "" {
		s.log.Error("too many policies: the last good ones stay in force",
			"error", crowd, "version_in_force", s.loadedVersion.version)
	}
	s.updateState(func(state *state) { state.Fault = crowd.Error() })
}

// recordLoss records that Postgres cannot be followed, and logs it once for each reason.
func (s *Sync) recordLoss(err error) {
	s.updateState(func(state *state) { state.Connected, state.away = false, true })
	why := cmp.Or(adviceOf(err), "no contact with Postgres")
	if !s.lostAt.IsZero() && why == s.lostReason {
		s.log.Debug("still "+why, "error", err)
		return
	}
	if s.lostAt.IsZero() {
		s.lostAt = time.Now()
	}
	s.lostReason = why
	now := s.Stats()
	s.log.Warn(why+": the last good policies stay in force",
		"error", err, "version", now.Version, "source", now.Source, "age_seconds", now.Age.Seconds())
}

// recordContact records a session, and logs that contact is back if it was lost.
func (s *Sync) recordContact() {
	s.updateState(func(state *state) { state.Connected, state.away = true, false; state.Contacts++ })
	if s.lostAt.IsZero() {
		return
	}
	s.log.Info("contact with Postgres is restored",
		"away_seconds", time.Since(s.lostAt).Seconds(), "version", s.loadedVersion.version)
	s.lostAt = time.Time{}
}
