package replay_test

import (
	"fmt"
	"time"
)

// kongModel is what Kong's rate-limiting does (kong/plugins/rate-limiting of Kong 3.9): a counter for each identifier
// and window, whose windows begin at whole seconds, minutes, hours, days, months and years of UTC.
type kongModel struct {
	limits   map[string]float64 // by period
	limitBy  string
	path     string // of limitBy path
	counters map[string]int64

	// synchronous counts in Redis while it reads (policy redis, sync_rate -1), so denied requests count too. Else Kong
	// reads first, and counts those that it admits.
	synchronous bool
}

// loggedRequest is a request of the log that the model and the plugin decide.
type loggedRequest struct {
	at                       time.Time
	consumer, credential, ip string // consumer and credential: their ids
	org                      string // a header
	path                     string
}

// admits decides a request and counts it.
func (m *kongModel) admits(r *loggedRequest) bool {
	admitted := true
	for period, limit := range m.limits {
		key := m.key(r, period)
		if limit-float64(m.counters[key]) <= 0 {
			admitted = false
		}
		if m.synchronous {
			m.counters[key]++
		}
	}
	for period := range m.limits {
		if admitted && !m.synchronous {
			m.counters[m.key(r, period)]++
		}
	}
	return admitted
}

func (m *kongModel) key(r *loggedRequest, period string) string {
	return fmt.Sprintf("%s:%d:%s", m.identifier(r), startOf(period, r.at).UnixMilli(), period)
}

// identifier returns what a request is counted by; Kong falls back to the address.
func (m *kongModel) identifier(r *loggedRequest) string {
	identifier := ""
	switch m.limitBy {
	case "consumer":
		identifier = r.consumer
	case "credential":
		identifier = r.credential
	case "header":
		identifier = r.org
	case "path":
		if r.path == m.path {
			identifier = r.path
		}
	case "service":
		identifier = "the service"
	}
	if identifier == "" {
		return r.ip
	}
	return identifier
}

// startOf returns when the window of an instant began.
func startOf(period string, at time.Time) time.Time {
	switch period {
	case "second":
		return at.Truncate(time.Second)
	case "minute":
		return at.Truncate(time.Minute)
	case "hour":
		return at.Truncate(time.Hour)
	case "day":
		return time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
	case "month":
		return time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
	default: // year
		return time.Date(at.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	}
}
