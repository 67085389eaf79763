package api

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	// maxWait bounds how long a write may wait for the nodes.
	maxWait = 30 * time.Second
	// answerTime bounds how long a request may take, in addition to the time that it waits for the nodes. It ends well
	// before writeTime, so that a database that does not respond is still reported to the caller.
	answerTime = 10 * time.Second
	// readyTime bounds how long a probe takes.
	readyTime = 2 * time.Second
)

// Options configures a Server. Log is required.
type Options struct {
	Version string        // of the program
	Rows    *rows.DB      // nil: there is no database, and only the probes are served
	Tokens  Authenticator // nil: only ServeAs serves requests
	Log     *slog.Logger

	Buckets Buckets // nil: usage and reset answer 503
	// OperatorBuckets are the same buckets for operators, who can wait longer than requests; nil: Buckets.
	OperatorBuckets Buckets
	// Ping returns nil if Redis responds before ctx ends; nil: there is no Redis.
	Ping func(ctx context.Context) error
	// Decider decides like the plugin, with the same config, rows and buckets; nil: the decision API and the limits in
	// force answer 503.
	Decider *admit.Decider

	// Reservations keeps what checks reserve until it is settled; nil: checks that reserve, and settlements, answer 503.
	Reservations reservation.Keepers

	// RequestPolicy returns the policy that requests use for a bucket: the given one, or one with less capacity if
	// nodes may lease tokens of it; nil: always the given one.
	RequestPolicy func(*policy.Policy) *policy.Policy
	// IsRoute reports whether a name is a route of the gateway. Limits per endpoint without a pattern count by route.
	// The token of an org may spend on no other. nil: no name is.
	IsRoute func(name string) bool
	// IsConsumer reports whether the config's file has a consumer of a name; nil: none is known.
	IsConsumer func(name string) bool

	Tiers *Tiers // the tiers of orgs without a row; nil: none is known

	Webhooks webhook.Targets // the URLs that a webhook may have

	Limits  admit.Buckets         // buckets of the API's own limits; nil: it has none
	Rates   Rates                 // the API's own limits; zero: the defaults of its fields
	Metrics prometheus.Registerer // nil: not registered

	Now func() time.Time // nil: time.Now
}

// Server serves the API. It is an http.Handler and safe for concurrent use, and keeps no state that another process
// would need. Create it with New.
type Server struct {
	Options
	mux     *http.ServeMux
	api     huma.API
	limits  *admit.Decider // nil: the API has no limits of its own
	metrics *metrics

	reading, decoding *semaphore.Weighted // the places of large bodies in memory, and of the one that is decoded

	newSubjects  *subjectLimiter // nil: the API has no limits of its own
	probes       singleflight.Group
	lastFindings atomic.Pointer[findings] // nil: none yet
}

// New returns a server. It does no I/O. The error reports a missing option.
func New(o Options) (*Server, error) {
	if o.Log == nil {
		return nil, errors.New("make the control plane: Log must be set")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.RequestPolicy == nil {
		o.RequestPolicy = func(p *policy.Policy) *policy.Policy { return p }
	}
	if o.OperatorBuckets == nil {
		o.OperatorBuckets = o.Buckets
	}
	if o.IsRoute == nil {
		o.IsRoute = func(string) bool { return false }
	}
	s := &Server{
		Options:  o,
		mux:      http.NewServeMux(),
		reading:  semaphore.NewWeighted(maxLargeBodies),
		decoding: semaphore.NewWeighted(1),
		metrics:  newMetrics(o.Metrics),
	}
	var err error
	if s.limits, err = o.Rates.decider(o.Limits); err != nil {
		return nil, err
	}
	if o.Limits != nil {
		s.newSubjects = &subjectLimiter{seed: maphash.MakeSeed(), named: recent[uint64]{most: maxSubjects}}
	}
	config := describe(o.Version)
	if o.Rows != nil {
		published.Lock()
		defer published.Unlock()
		config.Components.Schemas = cmp.Or(published.schemas, config.Components.Schemas)
	}
	s.api = humago.New(s.mux, config)
	s.api.UseMiddleware(s.authenticate, s.rejectAmbiguous)
	s.registerHealth()
	if o.Rows != nil {
		s.registerOperations()
	}
	return s, nil
}

// published has the schemas of bodies. The first server that has all operations makes them, which is most of the work
// of New, and the others have the same.
var published struct {
	sync.Mutex
	schemas huma.Registry
}

// registerOperations adds what the database is needed for, and the description of the API. published is locked.
func (s *Server) registerOperations() {
	schemas, isFirst := s.api.OpenAPI().Components.Schemas, published.schemas == nil
	if isFirst {
		schemas.RegisterTypeAlias(reflect.TypeFor[schema.Factor](), reflect.TypeFor[factor]())
		schemas.RegisterTypeAlias(reflect.TypeFor[schema.Price](), reflect.TypeFor[string]()) // a decimal
		schemas.RegisterTypeAlias(reflect.TypeFor[rows.Override](), reflect.TypeFor[DocumentOverride]())
		schemas.RegisterTypeAlias(reflect.TypeFor[rows.SetDiff](), reflect.TypeFor[DocumentDiff]())
	}
	s.registerPolicies()
	s.registerCandidates()
	s.registerDocument()
	s.registerOverrides()
	s.registerWebhooks(&place{s, generalWebhooksPath, "webhooks", readAccess, writeAccess},
		"general-webhook", "of all orgs")
	s.registerWebhooks(&place{s, webhooksPath, "webhooks", orgAccess, ownAccess}, "webhook", "of an org")
	s.registerTokens()
	s.registerOrgs()
	s.registerTiers()
	s.registerCosts()
	s.registerPrices()
	s.registerUsage()
	s.registerUsageExport()
	s.registerDenials()
	s.registerAbuse()
	s.registerCheck()
	s.registerRecord()
	if isFirst {
		describeFields(schemas.Map()["Policy"], schema.Fields[schema.Policy]())
		for _, ofPolicies := range []string{"Diff", "DocumentDiff"} { // policies do not end
			delete(schemas.Map()[ofPolicies].Properties, "ended")
		}
		published.schemas = schemas
	}
	s.allowBareWait()
	s.serveDescription("json", s.api.OpenAPI().MarshalJSON)
	s.serveDescription("yaml", s.OpenAPI)
}

// OpenAPI returns the description of the API as YAML.
func (s *Server) OpenAPI() ([]byte, error) { return s.api.OpenAPI().YAML() }

// serveDescription serves the description of the API in a form, which is generated by the first request for it.
func (s *Server) serveDescription(form string, generate func() ([]byte, error)) {
	generated := sync.OnceValues(generate)
	s.mux.HandleFunc("GET /openapi."+form, func(w http.ResponseWriter, _ *http.Request) {
		text, err := generated()
		if err != nil {
			s.Log.Error("generating the OpenAPI document failed", "error", err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/openapi+"+form)
		_, _ = w.Write(text) // the client may have disconnected
	})
}

// Timeouts of the HTTP server. A write that waits for the nodes ends before writeTime.
const (
	headerTime  = 5 * time.Second
	requestTime = 10 * time.Second
	writeTime   = maxWait + 15*time.Second
	idleTime    = 2 * time.Minute
	headerBytes = 16 << 10
)

// HTTPServer returns an HTTP server for the API, with bounds on how long each part of a request may take. The caller
// sets its address and TLS, and starts and stops it.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
}

// describe returns the head of the OpenAPI document.
func describe(version string) huma.Config {
	config := huma.DefaultConfig("Tenant rate limiting: control plane", cmp.Or(version, "dev"))
	config.Info.Description = "Policies and overrides, the limits in force for an org and their usage, webhooks, the " +
		"audit, and decisions for callers other than Kong. Errors are problem documents (RFC 9457) that name the path of every " +
		"fault."
	config.OpenAPIPath = "" // huma would generate it in the first request, which races with a second
	config.DocsPath = ""    // it would load a script from elsewhere
	config.SchemasPath = ""
	config.CreateHooks = nil // no $schema in bodies
	format := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: readJSON}
	config.Formats = map[string]huma.Format{jsonType: format, "json": format} // the second is for types that end in +json
	config.Transformers = []huma.Transformer{tidyProblem}
	config.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		bearer: {Type: "http", Scheme: "bearer", Description: "A token created by ratelimit token create."},
	}
	return config
}

// schemaName returns the name of a type in the OpenAPI document: of the changes of policies a short one.
func schemaName(t reflect.Type, hint string) string {
	switch t {
	case reflect.TypeFor[rows.Diff]():
		return "Diff"
	case reflect.TypeFor[rows.RewriteRow[rows.Policy]]():
		return "Rewrite"
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// metrics are the metrics of one server. Routes are patterns of operations, so their labels are bounded.
type metrics struct {
	requests     *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	authFailures *prometheus.CounterVec
	limited      *prometheus.CounterVec
	busy         prometheus.Counter
	writes       *prometheus.CounterVec
}

// Values of labels.
const (
	noRoute     = "(none)"
	otherMethod = "(other)"

	reasonMissing = "missing" // no token was sent
	reasonUnknown = "unknown" // the token is unknown, expired or revoked
	reasonRole    = "role"    // the token's role does not allow it

	byToken   = "token"
	byAddress = "address"
)

// writeKinds are the kinds of writes in metrics, by the tag of their operations. A reset of buckets counts itself,
// since a preview is none.
var writeKinds = map[string]string{
	"policies": "policy", "candidates": "candidate", "overrides": "override", "abuse": "override", "orgs": "org",
	"costs": "cost", "prices": "price", "record": "node", "webhooks": "webhook", "tokens": "token",
}

// countWrite counts a write that succeeded. The test of a webhook writes no setting.
func (m *metrics) countWrite(o *huma.Operation) {
	if kind, ok := writeKinds[o.Tags[0]]; ok && !strings.HasPrefix(o.OperationID, "test-") {
		m.writes.WithLabelValues(kind).Inc()
	}
}

// newMetrics returns the metrics, registered unless the registerer is nil. Names that are taken are a panic.
func newMetrics(registerer prometheus.Registerer) *metrics {
	const prefix = "rate_limiter_control_"
	made := promauto.With(registerer)
	counter := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := made.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
		for _, value := range values {
			c.WithLabelValues(value)
		}
		return c
	}
	return &metrics{
		requests: made.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "requests_total", Help: "Requests answered, by route, method and status code.",
		}, []string{"route", "method", "code"}),
		duration: made.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "request_duration_seconds",
			Help:    "How long requests took, in seconds, including what a write waited for the nodes.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		authFailures: counter("auth_failures_total", "Requests denied because of their token: missing, unknown, or "+
			"without the required role.", "reason", reasonMissing, reasonUnknown, reasonRole),
		limited: counter("limited_total", "Requests denied by the API's own limits, by what the limit is counted per.",
			"by", byToken, byAddress, byNewSubjects),
		busy: made.NewCounter(prometheus.CounterOpts{
			Name: prefix + "busy_total", Help: "Requests denied because too many large bodies were in progress.",
		}),
		writes: counter("writes_total", "Writes that succeeded, by the kind of what was written.", "kind"),
	}
}

// observeRequest counts a request. The empty route stands for none. Clients choose methods freely, so only those that
// the API uses become labels.
func (m *metrics) observeRequest(route, method string, status int, took time.Duration) {
	route = cmp.Or(route, noRoute)
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "DELETE"}, method) {
		method = otherMethod
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}
