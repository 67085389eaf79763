package portal

import (
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
)

// audience says whom a page is for.
type audience int

const (
	admins    audience = 1 << iota // callers who may write
	viewers                        // callers who read everything
	tenants                        // callers who see one org
	operators = admins | viewers
	everyone  = operators | tenants
)

// includes reports whether a role is part of an audience.
func (a audience) includes(role string) bool {
	switch role {
	case RoleAdmin:
		return a&admins != 0
	case RoleViewer:
		return a&viewers != 0
	case RoleTenant:
		return a&tenants != 0
	}
	return false
}

// page is one row of the table of pages.
type page struct {
	Pattern string   // of http.ServeMux, such as "GET /portal/fleet"
	For     audience // others get 403
	Nav     string   // the label of its link in the navigation; "": none
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

// navigation returns the links of pages for each role, in the order of the table.
func navigation() map[string][]page {
	links := map[string][]page{}
	for _, role := range []string{RoleAdmin, RoleViewer, RoleTenant} {
		for _, page := range pages() {
			// A tenant's overview is the page of its org.
			if page.Nav != "" && page.For.includes(role) && (role != RoleTenant || page.Path() != home) {
				links[role] = append(links[role], page)
			}
		}
	}
	return links
}

// servePage serves a page to a caller who is signed in and whose role may see it.
func (p *Portal) servePage(w http.ResponseWriter, r *http.Request, to *page) {
	caller, ok := p.enter(w, r)
	if !ok {
		return
	}
	if !to.For.includes(caller.Role) {
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
	if !caller.Poll {
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
