package policysync

import (
	"errors"
	"time"
)

// standbyPoll is the longest time between two polls of a standby, which sends no hints.
const standbyPoll = time.Second

// errPromoted ends a session with a standby that has become a primary: the next session listens and reports.
var errPromoted = errors.New("the standby was promoted")

// setStandby records whether the server of a session is a standby, and logs when that changes.
func (s *Sync) setStandby(standby bool) {
	s.updateState(func(state *state) { state.standby = standby })
	if standby == s.standby {
		return
	}
	if s.standby = standby; standby {
		s.log.Warn("Postgres is a standby: this node polls for changes and lags as much as the standby; "+
			"it cannot report, so ratelimit fleet does not list it", "every_seconds", s.pollEvery().Seconds())
		return
	}
	s.log.Info("Postgres is no longer a standby: this node listens for changes and reports")
}

// pollEvery returns the time between two polls of the version without a hint.
func (s *Sync) pollEvery() time.Duration {
	if s.standby {
		return min(s.options.PollEvery, standbyPoll)
	}
	return s.options.PollEvery
}

// reportsNothing reports whether this node makes no reports: it has no name, or the server is a standby.
func (s *Sync) reportsNothing() bool { return s.options.Node == "" || s.standby }
