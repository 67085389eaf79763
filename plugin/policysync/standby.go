package policysync

import (
	"errors"
	"time"
)

// standbyPoll is how long lies at most between two looks at the version of a standby, which sends no hints.
const standbyPoll = time.Second

// errPromoted ends a session with a standby that has become a primary: the next session listens, and reports.
var errPromoted = errors.New("the standby was promoted")

// meet notes whether the server of a session is a standby, and logs when that changes.
func (s *Sync) meet(standby bool) {
	s.count(func(state *state) { state.standby = standby })
	if standby == s.standby {
		return
	}
	if s.standby = standby; standby {
		s.log.Warn("Postgres is a standby: this node polls for changes and lags as much as the standby; it cannot report, so ratelimit fleet does not list it",
			"every_seconds", s.pollEvery().Seconds())
		return
	}
	s.log.Info("Postgres is no longer a standby: this node listens for changes and reports")
}

// pollEvery is how long lies between two looks at the version without a hint.
func (s *Sync) pollEvery() time.Duration {
	if s.standby {
		return min(s.options.PollEvery, standbyPoll)
	}
	return s.options.PollEvery
}

// mute reports whether this node makes no reports: it has no name, or the server takes none.
func (s *Sync) mute() bool { return s.options.Node == "" || s.standby }
