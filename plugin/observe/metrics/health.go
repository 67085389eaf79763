package metrics

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// State names a phase of the process.
type State uint32

// The states. The zero value means that the process does not serve yet.
const (
	Starting State = iota
	Serving
	Draining
)

func (s State) String() string { return [...]string{"starting", "serving", "draining"}[s] }

// SetState sets the state that /readyz reports.
func (s *Server) SetState(state State) { s.state.Store(uint32(state)) }

// healthBody is the response body of /healthz. The process is alive, whatever the state of its stores.
type healthBody struct {
	Version        string   `json:"version"`
	UptimeSeconds  float64  `json:"uptime_seconds"`
	DegradedStores []string `json:"degraded_stores"`
}

// readinessBody is the response body of /readyz.
type readinessBody struct {
	Ready           bool     `json:"ready"`
	State           string   `json:"state"`
	DegradedStores  []string `json:"degraded_stores"`
	ReadyNeedsStore bool     `json:"ready_needs_store"`
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	s.writeJSON(w, http.StatusOK, healthBody{
		Version:        s.options.Metrics.version,
		UptimeSeconds:  time.Since(s.started).Round(time.Millisecond).Seconds(),
		DegradedStores: s.options.Metrics.sources.degraded(),
	})
}

// readyz reports whether the process should get traffic. It names degraded stores. A degraded store makes the process
// unready only with ReadyNeedsStore: otherwise the fail modes decide.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	sources := &s.options.Metrics.sources
	state, degraded := State(s.state.Load()), sources.degraded()
	answer := readinessBody{
		Ready:           state == Serving && !(s.options.ReadyNeedsStore && len(degraded) > 0),
		State:           state.String(),
		DegradedStores:  degraded,
		ReadyNeedsStore: s.options.ReadyNeedsStore,
	}
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
	}
	s.writeJSON(w, status, answer)
}

// degraded returns the names of the degraded stores, never nil.
func (s *Sources) degraded() []string {
	names := []string{}
	for _, store := range s.stores() {
		if store.Degraded {
			names = append(names, labelValue(store.Name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s *Sources) stores() []Store {
	if s.Stores == nil {
		return nil
	}
	return s.Stores()
}

func (s *Server) writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(document); err != nil {
		s.options.Log.Debug("writing a health response failed", "error", err)
	}
}
