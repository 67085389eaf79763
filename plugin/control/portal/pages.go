package portal

import (
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

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
		{Pattern: "GET /portal/{$}", For: everyone, Nav: "Overview", Serve: serveOverview},
	}, operatorPages(), tenantPages())
}

// servePage serves a page to a caller who is signed in and whose role may see it.
func (p *Portal) servePage(w http.ResponseWriter, r *http.Request, to *page) {
	caller, ok := p.enter(w, r)
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
