package control

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Health is the answer to who asks whether the process is alive.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// Readiness is the answer to who asks whether to send requests here.
type Readiness struct {
	Status  string   `json:"status" enum:"ok,degraded" doc:"degraded: decisions, usage and what is in force go on without what is missing. Where nothing does, the answer is a problem document."`
	Missing []string `json:"missing,omitempty" doc:"What does not answer, and what is refused for want of it."`
}

type (
	healthOutput    struct{ Body Health }
	readinessOutput struct{ Body Readiness }
)

// registerHealth adds what probes ask. They have no token, and learn no more than what is missing.
func (s *Server) registerHealth() {
	tags := []string{"health"}
	huma.Register(s.api, huma.Operation{
		OperationID: "get-healthz", Method: http.MethodGet, Path: "/healthz", Tags: tags,
		Summary: "Whether the process is alive", Errors: []int{http.StatusNotAcceptable},
	}, func(context.Context, *struct{}) (*healthOutput, error) { return &healthOutput{Health{"ok"}}, nil })
	huma.Register(s.api, huma.Operation{
		OperationID: "get-readyz", Method: http.MethodGet, Path: "/readyz", Tags: tags,
		Summary: "Whether requests can be answered",
		Description: "200 where the database answers and the policies are loaded, and also, degraded, where it is away and decisions go " +
			"on by the rows that were loaded. 503 before they are, where nothing can be answered, and when the process is about to end.",
		Errors: []int{http.StatusNotAcceptable, http.StatusServiceUnavailable},
	}, s.ready)
}

// ready answers a probe. Who heeds it takes traffic away from here, so it fails only where there is none to serve: with
// the database all processes would fail at once, and the decisions that do without it.
func (s *Server) ready(ctx context.Context, _ *struct{}) (*readinessOutput, error) {
	// Who probes needs no token, so that all who do at once share one answer, and one connection to the database.
	_, away, _ := s.probes.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTime)
		defer cancel()
		return s.Store.Fleet(ctx, pgstore.LiveWithin)
	})
	if away != nil {
		s.Log.Warn("a probe finds that the database does not answer", "error", away)
	}
	decides := s.Path != nil && loaded(s.Path.Policies.Load())
	var missing []string
	if s.Path != nil && !decides {
		missing = append(missing, "the policies are not loaded yet")
	}
	if away != nil {
		missing = append(missing, "the database does not answer")
	}
	switch {
	case len(missing) == 0:
		return &readinessOutput{Readiness{Status: "ok"}}, nil
	case decides:
		return &readinessOutput{Readiness{"degraded", []string{"the database does not answer: writes and lists answer 503"}}}, nil
	}
	return nil, huma.Error503ServiceUnavailable(strings.Join(missing, "; "))
}

// loaded tells whether there are policies to decide by, those of the database among them.
func loaded(policies *policy.Snapshot) bool { return policies != nil && policies.Book() != nil }
