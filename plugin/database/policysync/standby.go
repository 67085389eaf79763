package policysync

// setStandby records whether the server is a standby, and logs when that changes.
func (s *Sync) setStandby(standby bool) {
	if standby == s.standby {
		return
	}
	s.standby = standby
	s.updateState(func(state *state) { state.standby = standby })
	if standby {
		s.log.Warn("Postgres is a standby: this node lags as much as the standby; it cannot report, so ratelimit fleet " +
			"does not list it")
		return
	}
	s.log.Info("Postgres is no longer a standby: this node reports")
}

// reportsNothing reports whether this node makes no reports: it has no name, or the server is a standby.
func (s *Sync) reportsNothing() bool { return s.options.Node == "" || s.standby }
