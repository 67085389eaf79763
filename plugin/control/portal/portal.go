package portal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

// API is what the portal needs of the REST API.
type API interface {
	// ServeAs serves a request that carries no token. It MUST allow what the role of the caller allows, and no more.
	ServeAs(w http.ResponseWriter, r *http.Request, c api.Caller)
	// Authenticate returns the caller whose token a secret is. address is the RemoteAddr of a sign-in, or "" for the
	// token of a session, which is no guess. After an error that is a limit's, wait is until the next.
	Authenticate(ctx context.Context, secret, address string) (c api.Caller, wait time.Duration, err error)
	// CountSignIn counts a sign-in of a person. After an error, which is a limit's, wait is until the next.
	CountSignIn(ctx context.Context, c api.Caller, address string) (wait time.Duration, err error)
}

const (
	home = "/portal/"
	// maxForm bounds a form, in bytes.
	maxForm = 64 << 10
)

// Options configures a Portal. API and Log are required.
type Options struct {
	API API
	Log *slog.Logger

	Key      []byte        // of cookies, session.KeySize bytes; nil: a new random one
	Idle     time.Duration // how long a session lasts without a request; 0: session.DefaultIdle
	Brand    Brand
	Provider *oidc.Flow // signs people in by OpenID Connect; nil: tokens only
	Metrics  prometheus.Registerer
	Now      func() time.Time // nil: time.Now
}

// Portal serves the pages. It is an http.Handler and safe for concurrent use. Create it with New.
type Portal struct {
	Options
	mux       *http.ServeMux
	origins   *http.CrossOriginProtection
	jar       *session.Jar
	sessions  *session.Sessions
	templates *template.Template
	files     map[string][]byte // of the brand, beside the assets
	logo      string            // the name of the logo in files; "": none
	style     string            // of the colors; "": none
	shared    answerCache
	described atomic.Pointer[description] // nil: not read yet
	metrics   *metrics
}

// New returns a portal. It does no I/O.
func New(o Options) (*Portal, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Key == nil {
		o.Key = make([]byte, session.KeySize)
		_, _ = rand.Read(o.Key) // never fails
	}
	p := &Portal{
		Options: o, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		templates: template.Must(template.New("portal").Funcs(functions(o.Now)).ParseFS(templateFiles, "templates/*.html")),
	}
	var err error
	if p.jar, err = session.NewJar(o.Key, o.Now); err != nil {
		return nil, fmt.Errorf("make the portal: %w", err)
	}
	p.sessions = session.New(p.jar, o.Idle)
	p.Brand.Name = cmp.Or(o.Brand.Name, "Rate limits")
	p.logo, p.style, p.files = o.Brand.files()
	p.metrics = newMetrics(o.Metrics)
	p.route()
	return p, nil
}

// route connects paths to what serves them.
func (p *Portal) route() {
	p.mux.HandleFunc("GET "+assetsPath+"{name}", p.serveAsset)
	p.mux.HandleFunc("GET "+signInPath, p.showSignIn)
	p.mux.HandleFunc("POST "+signInPath, p.signIn)
	p.mux.HandleFunc("POST /portal/sign-out", p.signOut)
	if p.Provider != nil {
		p.mux.HandleFunc("GET "+oidc.StartPath, p.startProvider)
		p.mux.HandleFunc("GET "+oidc.CallbackPath, p.finishProvider)
	}
	for _, page := range pages() {
		p.mux.HandleFunc(page.Pattern, func(w http.ResponseWriter, r *http.Request) { p.servePage(w, r, &page) })
	}
}

// ServeHTTP implements [http.Handler].
func (p *Portal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header(), session.IsEncrypted(r))
	defer p.recoverPage(w, r)
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := p.checkOrigin(r); err != nil {
		p.metrics.denied.WithLabelValues(deniedOrigin).Inc()
		p.showProblem(w, r, api.Caller{}, &problem{
			Status: http.StatusForbidden, Detail: "This request came from another site, so nothing was done.",
		})
		return
	}
	handler, pattern := p.mux.Handler(r)
	if pattern != "" {
		p.mux.ServeHTTP(w, r)
		return
	}
	// Also in place of a redirect to a path without dots, which is no page either.
	status := http.StatusNotFound
	response, err := answers.Served(handler.ServeHTTP).RoundTrip(r) //nolint:bodyclose // in memory
	if err == nil && response.StatusCode == http.StatusMethodNotAllowed {
		status, w.Header()["Allow"] = response.StatusCode, response.Header["Allow"]
	}
	p.showProblem(w, r, api.Caller{}, &problem{Status: status})
}

// checkOrigin returns an error for a write that is not from one of these pages. Browsers send one of both headers with
// every write.
func (p *Portal) checkOrigin(r *http.Request) error {
	if err := p.origins.Check(r); err != nil {
		return fmt.Errorf("check the origin: %w", err)
	}
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if !safe && r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == "" {
		return errors.New("the request names no origin")
	}
	return nil
}

// recoverPage answers a request whose page panicked.
func (p *Portal) recoverPage(w http.ResponseWriter, r *http.Request) {
	failure := recover()
	if failure == nil {
		return
	}
	if err, _ := failure.(error); errors.Is(err, http.ErrAbortHandler) {
		panic(failure)
	}
	p.Log.Error("a page ended in a panic", "panic", failure, "path", r.URL.Path, "stack", string(debug.Stack()))
	p.showProblem(w, r, api.Caller{}, &problem{Status: http.StatusInternalServerError})
}

// contentPolicy lets pages load their own assets only, and run no inline script or style.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// setHeaders sets the headers of every answer. The referrer stays within the portal, because browsers derive the
// Origin of forms from it.
func setHeaders(h http.Header, encrypted bool) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
	if encrypted {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// metrics are the metrics of a portal. Pages are the paths of its table, so their labels are bounded.
type metrics struct {
	sessions *prometheus.CounterVec
	denied   *prometheus.CounterVec
	pages    *prometheus.HistogramVec
}

// Values of labels.
const (
	byToken    = "token"
	byProvider = "provider"

	deniedUnknown   = "unknown"   // the token is unknown, expired or revoked
	deniedUnchecked = "unchecked" // tokens could not be checked, or too many unknown ones came from the address
	deniedOften     = "often"     // too many sign-ins with the token, or of the person
	deniedPlain     = "plain"     // the connection is not encrypted
	deniedOrigin    = "origin"    // a write from another site, also of somebody signed in
	deniedProvider  = "provider"  // by the other system
)

// newMetrics returns the metrics, registered unless the registerer is nil. Names that are taken are a panic.
func newMetrics(registerer prometheus.Registerer) *metrics {
	const prefix = "rate_limiter_portal_"
	made := promauto.With(registerer)
	counter := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := made.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
		for _, value := range values {
			c.WithLabelValues(value)
		}
		return c
	}
	m := &metrics{
		sessions: counter("sessions_total", "Sessions started in the portal, by how people signed in.",
			"by", byToken, byProvider),
		denied: counter("denied_total", "Sign-ins and writes denied by the portal, by reason.",
			"reason", deniedUnknown, deniedUnchecked, deniedOften, deniedPlain, deniedOrigin, deniedProvider),
		pages: made.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "page_duration_seconds", Help: "How long pages of the portal took, in seconds.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"page"}),
	}
	for _, to := range pages() {
		m.pages.WithLabelValues(to.Path())
	}
	return m
}

// Roles that a page is for.
var (
	admins    = []api.Role{api.Admin}
	operators = []api.Role{api.Admin, api.Viewer}
	tenants   = []api.Role{api.Tenant}
	everyone  = slices.Concat(operators, tenants)
)

// page is one row of the table of pages.
type page struct {
	Pattern string     // of http.ServeMux, such as "GET /portal/fleet"
	For     []api.Role // others get 403
	Nav     string     // the label of its link in the navigation; "": none
	Live    bool       // its template has a live part
	Ranged  bool       // it shows a range of time, see ranges
	Serve   func(*visit) error
}

// Path returns the path of a page's pattern.
func (p page) Path() string {
	_, path, _ := strings.Cut(p.Pattern, " ")
	return strings.TrimSuffix(path, "{$}")
}

// pageOf returns what serves a page: a template with what a function reads for it.
func pageOf[T any](template, title string, read func(*visit) (T, error)) func(*visit) error {
	return func(v *visit) error {
		data, err := read(v)
		if err != nil {
			return err
		}
		return v.render(template, title, data)
	}
}

// pages returns all pages for callers who are signed in.
func pages() []page {
	return slices.Concat([]page{
		{Pattern: "GET /portal/{$}", For: everyone, Nav: "Overview", Live: true, Ranged: true, Serve: serveOverview},
	}, operatorPages(), tenantPages())
}

// servePage serves a page to a caller who is signed in and whose role may see it.
func (p *Portal) servePage(w http.ResponseWriter, r *http.Request, to *page) {
	caller, ok := p.enter(w, r, to.Live && r.Header.Get(liveHeader) != "")
	if !ok {
		return
	}
	if !slices.Contains(to.For, caller.Role) {
		p.showProblem(w, r, caller, &problem{
			Status: http.StatusForbidden, Detail: "Your role does not include this page.",
		})
		return
	}
	if err := readForm(w, r); err != nil {
		p.showProblem(w, r, caller, err)
		return
	}
	start := p.Now()
	v := &visit{w: w, r: r, caller: caller, portal: p}
	if err := to.Serve(v); err != nil {
		p.showProblem(w, r, caller, err)
	}
	if !caller.Routine {
		p.metrics.pages.WithLabelValues(to.Path()).Observe(p.Now().Sub(start).Seconds())
	}
}

// readForm reads the form of a write, and removes the read deadline: one that passes cancels a request in progress.
func readForm(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodPost {
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != "application/x-www-form-urlencoded" {
			return &problem{Status: http.StatusUnsupportedMediaType, Detail: "The request is not a form of these pages."}
		}
	}
	if err := r.ParseForm(); err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			return &problem{Status: http.StatusRequestEntityTooLarge, Detail: "The form is too long."}
		}
		return &problem{Status: http.StatusBadRequest, Detail: "The form or the query cannot be decoded."}
	}
	err := http.NewResponseController(w).SetReadDeadline(time.Time{})
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
