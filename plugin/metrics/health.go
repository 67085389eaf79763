package metrics

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// State is how far the process is.
type State uint32

// The states. The zero value is a process that does not serve yet.
const (
	Starting State = iota
	Serving
	Draining
)

func (s State) String() string { return [...]string{"starting", "serving", "draining"}[s] }

// SetState tells how far the process is, which /readyz answers.
func (s *Server) SetState(state State) { s.state.Store(uint32(state)) }

// health is the answer of /healthz: the process lives, whatever its stores do.
type health struct {
	Version        string   `json:"version"`
	UptimeSeconds  float64  `json:"uptime_seconds"`
	DegradedStores []string `json:"degraded_stores"`
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready           bool     `json:"ready"`
	State           string   `json:"state"`
	DegradedStores  []string `json:"degraded_stores"`
	ReadyNeedsStore bool     `json:"ready_needs_store"`
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, health{
		Version:        s.options.Metrics.version,
		UptimeSeconds:  time.Since(s.started).Round(time.Millisecond).Seconds(),
		DegradedStores: s.options.Metrics.sources.degraded(),
	})
}

// readyz answers whether the process should get traffic. A degraded store is named, and is no reason against it unless
// it was made one: the fail modes go on deciding, and a node out of rotation decides nothing. The store of addresses
// never is, or strangers who fill it would take all nodes out.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	sources := &s.options.Metrics.sources
	state, degraded := State(s.state.Load()), sources.degraded()
	answer := readiness{
		Ready:           state == Serving && !(s.options.ReadyNeedsStore && sources.missesStore()),
		State:           state.String(),
		DegradedStores:  degraded,
		ReadyNeedsStore: s.options.ReadyNeedsStore,
	}
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
	}
	s.answer(w, status, answer)
}

// degraded are the names of the stores that are, never nil.
func (s *Sources) degraded() []string {
	names := []string{}
	for _, store := range s.stores() {
		if store.Degraded {
			names = append(names, store.Name)
		}
	}
	return names
}

// missesStore reports whether a store is degraded that keeps more than the buckets of addresses.
func (s *Sources) missesStore() bool {
	return slices.ContainsFunc(s.stores(), func(store Store) bool { return store.Degraded && !store.Second })
}

func (s *Server) answer(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(document); err != nil {
		s.options.Log.Debug("writing a health response failed", "error", err)
	}
}
