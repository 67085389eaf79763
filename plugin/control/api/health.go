package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// Health is the answer of the liveness probe.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// Readiness is the answer of the readiness probe.
type Readiness struct {
	Status  string   `json:"status"            enum:"ok,degraded" doc:"degraded: decisions, usage and limits in force work without what is missing. If none of them works, the answer is a problem document."`
	Missing []string `json:"missing,omitempty"                    doc:"What does not answer, and what is unavailable because of it."`
}

// registerHealth adds the probes. They need no token, and reveal only what is missing.
func (s *Server) registerHealth() {
	tags := []string{"health"}
	huma.Register(s.api, huma.Operation{
		OperationID: "get-healthz", Method: http.MethodGet, Path: "/healthz", Tags: tags,
		Summary: "Check that the process is alive", Errors: []int{http.StatusNotAcceptable},
	}, func(context.Context, *struct{}) (*bodyOutput[Health], error) {
		return &bodyOutput[Health]{Health{"ok"}}, nil
	})
	huma.Register(s.api, huma.Operation{
		OperationID: "get-readyz", Method: http.MethodGet, Path: "/readyz", Tags: tags,
		Summary: "Check that requests can be served",
		Description: "200 if the policies are loaded and all dependencies answer, and also (degraded) if decisions work " +
			"without the database, or by fail modes without Redis, or if the database is read-only. 503 before the policies " +
			"are loaded, if nothing can be served, and during shutdown. Dependencies are checked at most once a second, " +
			"however many probes arrive.",
		Errors: []int{http.StatusNotAcceptable, http.StatusServiceUnavailable},
	}, s.ready)
}

type findings struct {
	at       time.Time // when the check ended
	noAnswer bool      // the database does not answer
	degraded []string  // what is missing, and what that means for requests
}

const findingsAge = time.Second

// ready answers a readiness probe. Its failure ends the traffic of this process, so it fails only if the process
// can serve none. If it failed without the database, all processes would fail at once, including decisions that need no
// database.
func (s *Server) ready(context.Context, *struct{}) (*bodyOutput[Readiness], error) {
	found := s.findings()
	decides := s.Decider != nil && (s.Rows == nil || isLoaded(s.Decider.Policies.Load()))
	switch {
	case s.Decider != nil && !decides:
		missing := append([]string{"the policies are not loaded yet"}, found.degraded...)
		return nil, huma.Error503ServiceUnavailable(strings.Join(missing, "; "))
	case found.noAnswer && !decides:
		return nil, huma.Error503ServiceUnavailable(strings.Join(found.degraded, "; "))
	case len(found.degraded) > 0:
		return &bodyOutput[Readiness]{Readiness{"degraded", found.degraded}}, nil
	}
	return &bodyOutput[Readiness]{Readiness{Status: "ok"}}, nil
}

// findings returns recent findings. Probes need no token, so all that arrive at the same time share one check, and one
// connection to the database.
func (s *Server) findings() *findings {
	shared, _, _ := s.probes.Do("", func() (any, error) {
		last := s.lastFindings.Load()
		if last != nil && time.Since(last.at) < findingsAge {
			return last, nil
		}
		now := s.probe()
		s.logReadiness(last, now)
		s.lastFindings.Store(now)
		return now, nil
	})
	return shared.(*findings)
}

// logReadiness logs a change since the last findings, which are nil at first: a loss as a warning, its end as
// information.
func (s *Server) logReadiness(last, now *findings) {
	switch {
	case last == nil && len(now.degraded) == 0, last != nil && slices.Equal(last.degraded, now.degraded):
	case len(now.degraded) == 0:
		s.Log.Info("readiness restored")
	default:
		s.Log.Warn("readiness degraded", "missing", now.degraded)
	}
}

// probe checks the database and Redis, in parallel, for at most readyTime.
func (s *Server) probe() *findings {
	ctx, cancel := context.WithTimeout(context.Background(), readyTime)
	defer cancel()
	var ping sync.WaitGroup
	var unanswered error
	if s.Ping != nil {
		ping.Go(func() { unanswered = s.Ping(ctx) })
	}
	found := &findings{}
	var why string
	var err error
	if s.Rows != nil {
		why, err = s.Rows.ReadOnly(ctx)
	}
	switch {
	case err != nil:
		s.Log.Debug("database probe failed", "error", err)
		found.noAnswer = true
		found.degraded = append(found.degraded, databaseProblem(err)+": writes and lists return 503")
	case why != "":
		found.degraded = append(found.degraded, "the database is read-only, because it is "+why+": writes return 503")
	}
	if ping.Wait(); unanswered != nil {
		s.Log.Debug("Redis probe failed", "error", unanswered)
		found.degraded = append(found.degraded,
			"Redis does not answer: the fail mode of each limit decides, usage and resets return 503")
	}
	found.at = time.Now()
	return found
}

// databaseProblem returns why a probe of the database failed. Probes need no token, so it names no user and no address.
func databaseProblem(err error) string {
	switch {
	case rows.IsLoginDenied(err):
		return "the database denies the login"
	case rows.IsRejected(err):
		return "the database lacks tables or privileges"
	}
	return "the database does not answer"
}

// isLoaded reports whether the policies are loaded, including those of the database.
func isLoaded(policies *resolve.Plan) bool { return policies != nil && policies.Snapshot() != nil }
