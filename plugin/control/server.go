package control

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	// maxWait bounds how long a write may wait for the nodes.
	maxWait = 30 * time.Second
	// answerTime bounds how long an answer is worked on, beside the time that the caller asks a write to wait. A database
	// that keeps silent is told to the caller by then, who could be told nothing after writeTime.
	answerTime = 10 * time.Second
	// readyTime bounds how long a probe is kept waiting.
	readyTime = 2 * time.Second
)

// Options are what a Server needs. Store, Tokens and Log must be set.
type Options struct {
	Version string // of the program
	Store   *pgstore.Store
	Tokens  Authenticator
	Log     *slog.Logger

	Buckets Buckets // nil: usage and reset answer 503
	// OperatorBuckets are the same for what operators ask, who can wait longer than requests; nil: Buckets.
	OperatorBuckets Buckets
	// Ping asks whether Redis answers, until ctx ends; nil: there is no Redis.
	Ping func(ctx context.Context) error
	// PingSecond asks whether the Redis of addresses answers, until ctx ends; nil: they have none of their own.
	PingSecond func(ctx context.Context) error
	Path       *admit.Path // how the plugin decides, with the same config, rows and buckets; nil: the decision API, and what is in force for an org, answer 503

	// RequestPolicy is with which policy requests ask a bucket of a policy: with that one itself, or one with less capacity where nodes
	// may take tokens of it ahead of need; nil: always with itself.
	RequestPolicy func(*policy.Policy) *policy.Policy
	// IsRoute tells whether a name is that of one of the gateway's routes, by which limits per endpoint count where they have no
	// pattern. An org may spend on no other. nil: no name is.
	IsRoute func(name string) bool

	Limits  admit.Buckets         // what the API's own limits are spent from; nil: it does not limit itself
	Rates   Rates                 // the API's own limits; zero: the defaults of its fields
	Metrics prometheus.Registerer // nil: nothing is counted

	Now func() time.Time // nil: time.Now
	// Hold waits before a request of a sender of many faulty ones is answered; nil: so long, or until ctx ends.
	Hold func(ctx context.Context, wait time.Duration)
}

// Server answers the API. It is an http.Handler, keeps nothing between requests that another process would need, and is
// safe for concurrent use. Make it with New.
type Server struct {
	Options
	mux     *http.ServeMux
	api     huma.API
	limits  *admit.Path // nil: the API does not limit itself
	metrics *metrics
	bodies  bodyBudgets
	lookups *lookups
	tarpit  *tarpit

	newSubjects  *subjectLimiter // nil: the API does not limit itself
	probes       singleflight.Group
	lastFindings atomic.Pointer[findings] // of the last look; nil: there was none
}

// New makes a server. It does no I/O. The error tells what is missing from the options, or that the metrics are
// registered already.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Tokens == nil || o.Log == nil {
		return nil, errors.New("make the control plane: Store, Tokens and Log must be set")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.RequestPolicy == nil {
		o.RequestPolicy = func(p *policy.Policy) *policy.Policy { return p }
	}
	if o.IsRoute == nil {
		o.IsRoute = func(string) bool { return false }
	}
	s := &Server{Options: o, mux: http.NewServeMux(), bodies: newBodyBudgets(), lookups: o.Rates.newLookups(), tarpit: newTarpit()}
	if s.Hold == nil {
		s.Hold = s.tarpit.wait
	}
	var err error
	if s.metrics, err = newMetrics(o.Metrics); err != nil {
		return nil, err
	}
	if s.limits, err = o.Rates.admitPath(o.Limits); err != nil {
		return nil, err
	}
	if o.Limits != nil {
		if s.newSubjects, err = newSubjectLimiter(o.Rates.Subjects); err != nil {
			return nil, err
		}
	}
	s.api = humago.New(s.mux, describe(o.Version))
	s.api.UseMiddleware(s.authenticate, s.rejectAmbiguous)
	s.registerPolicies()
	describeFields(s.api.OpenAPI().Components.Schemas.Map()["Policy"], schema.PolicyFields())
	s.registerOverrides()
	s.registerOrgs()
	s.registerUsage()
	s.registerCheck()
	s.registerRecord()
	s.registerHealth()
	s.allowBareWait()
	s.registerOpenAPI()
	return s, nil
}

// OpenAPI is the description of the API as YAML.
func (s *Server) OpenAPI() ([]byte, error) { return s.api.OpenAPI().YAML() }

// registerOpenAPI adds the description of the API. It is made when it is first asked for.
func (s *Server) registerOpenAPI() {
	for path, document := range map[string]struct {
		contentType string
		text        func() ([]byte, error)
	}{
		"/openapi.json": {"application/openapi+json", sync.OnceValues(s.api.OpenAPI().MarshalJSON)},
		"/openapi.yaml": {"application/openapi+yaml", sync.OnceValues(s.OpenAPI)},
	} {
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			text, err := document.text()
			if err != nil {
				s.Log.Error("generating the OpenAPI document failed", "error", err)
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", document.contentType)
			_, _ = w.Write(text) // a client that has gone is not told
		})
	}
}

// Times of an HTTP server that suit the API: a write that waits for the nodes ends before writeTime does.
const (
	headerTime  = 5 * time.Second
	requestTime = 10 * time.Second
	writeTime   = maxWait + 15*time.Second
	idleTime    = 2 * time.Minute
	headerBytes = 16 << 10
)

// HTTPServer returns an HTTP server for the API, with bounds on how long each part of a request may take. Its address,
// TLS and life are the caller's; when it is shut down, answers to faulty requests are no longer delayed.
func (s *Server) HTTPServer() *http.Server {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	server.RegisterOnShutdown(s.tarpit.end)
	return server
}

// operation completes an operation that needs a role. Its Errors are those that are its own: the ones that every
// operation has are added here.
func operation(o huma.Operation, needs access) huma.Operation {
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, maxBody)
	o.RejectUnknownQueryParameters = true
	o.Metadata = map[string]any{accessKey: needs}
	o.Security = []map[string][]string{{bearer: {}}}
	o.Errors = append(o.Errors,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusNotAcceptable, http.StatusUnprocessableEntity,
		http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable)
	if o.Method == http.MethodPost || o.Method == http.MethodPut {
		o.Errors = append(o.Errors, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType)
	}
	return o
}

// describe is the head of the OpenAPI document.
func describe(version string) huma.Config {
	config := huma.DefaultConfig("Tenant rate limiting: control plane", cmp.Or(version, "dev"))
	config.Info.Description = "Policies and overrides, the limits in force for an org and their usage, the audit, and decisions for " +
		"callers other than Kong. Errors are problem documents (RFC 9457) that name the path of every fault."
	config.OpenAPIPath = "" // it would be made by the first reader of each, and two may be the first
	config.DocsPath = ""    // it would load a script from elsewhere
	config.SchemasPath = ""
	config.CreateHooks = nil // no $schema in bodies
	format := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: readJSON}
	config.Formats = map[string]huma.Format{jsonType: format, "json": format} // the second is for types that end in +json
	config.Transformers = []huma.Transformer{tidyProblem}
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		bearer: {Type: "http", Scheme: "bearer", Description: "A token created by ratelimit token create."},
	}
	return config
}
