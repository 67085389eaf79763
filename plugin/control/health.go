package control

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Health is the answer to a probe.
type Health struct {
	Status string `json:"status" enum:"ok" doc:"ok, or else the answer is a problem document"`
}

type healthOutput struct{ Body Health }

// registerHealth adds what probes ask. They have no token, and learn nothing but yes or no.
func (s *Server) registerHealth() {
	huma.Register(s.api, huma.Operation{
		OperationID: "get-healthz", Method: http.MethodGet, Path: "/healthz", Tags: []string{"health"},
		Summary: "Whether the process is alive", Errors: []int{http.StatusNotAcceptable},
	}, func(context.Context, *struct{}) (*healthOutput, error) { return &healthOutput{Health{"ok"}}, nil })
	huma.Register(s.api, huma.Operation{
		OperationID: "get-readyz", Method: http.MethodGet, Path: "/readyz", Tags: []string{"health"},
		Summary: "Whether requests can be answered: the database answers, and the policies are loaded",
		Errors:  []int{http.StatusNotAcceptable, http.StatusServiceUnavailable},
	}, s.ready)
}

func (s *Server) ready(ctx context.Context, _ *struct{}) (*healthOutput, error) {
	// Who probes needs no token, so that all who do at once share one answer, and one connection to the database.
	_, err, _ := s.probes.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTime)
		defer cancel()
		return s.Store.Fleet(ctx, liveWithin)
	})
	var missing []string
	if err != nil {
		s.Log.Warn("not ready: the database does not answer", "error", err)
		missing = append(missing, "the database does not answer")
	}
	if s.Path != nil && s.Path.Policies.Load() == nil {
		missing = append(missing, "the policies are not loaded yet")
	}
	if len(missing) > 0 {
		return nil, huma.Error503ServiceUnavailable(strings.Join(missing, "; "))
	}
	return &healthOutput{Health{"ok"}}, nil
}

// registerOpenAPI adds the description of the API, which is made once all operations are there.
func (s *Server) registerOpenAPI() error {
	asJSON, err := s.api.OpenAPI().MarshalJSON()
	if err != nil {
		return err
	}
	asYAML, err := s.OpenAPI()
	if err != nil {
		return err
	}
	for path, document := range map[string]struct {
		contentType string
		text        []byte
	}{
		"/openapi.json": {"application/openapi+json", asJSON},
		"/openapi.yaml": {"application/openapi+yaml", asYAML},
	} {
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", document.contentType)
			_, _ = w.Write(document.text) // a client that has gone is not told
		})
	}
	return nil
}
