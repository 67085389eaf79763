package portal

import (
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
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
	p.metrics.pages.WithLabelValues(to.Path()).Observe(p.Now().Sub(start).Seconds())
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

const livePath = home + "live/"

// topic is a live part of pages. A page shows it as an element with the attribute data-live, whose value is
// "/portal/live/" with the name and a query, and whose content is the template. The script of pages fetches it again
// every 2 seconds, or as seldom as data-every says, in seconds.
type topic struct {
	Name     string
	For      audience
	Template string                    // such as operator_fleet_rows
	Read     func(*visit) (any, error) // reads the data of the template from the API; the query is that of the viewer
}

// live returns a live part.
func live[T any](name string, to audience, template string, read func(*visit) (T, error)) topic {
	return topic{name, to, template, func(v *visit) (any, error) { return read(v) }}
}

// topics returns all live parts by their names.
func topics() map[string]topic {
	all := map[string]topic{}
	for _, t := range append(operatorTopics(), tenantTopics()...) {
		all[t.Name] = t
	}
	return all
}

// serveLive answers with a live part, or with 304 if the browser has the same already.
func (p *Portal) serveLive(w http.ResponseWriter, r *http.Request) {
	rows, err := p.liveRows(w, r)
	if err != nil {
		p.showProblem(w, r, Caller{}, err)
		return
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(rows))
	w.Header().Set("ETag", fmt.Sprintf("\"%x\"", sum.Sum64()))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(rows)))
}

// liveRows returns the content of the live part that a request names. A page that is left open does not prolong its
// session, and ends the part with 401 when the session ends.
func (p *Portal) liveRows(w http.ResponseWriter, r *http.Request) (template.HTML, error) {
	who, ok := p.sessions.Read(r)
	if !ok {
		return "", &problem{Status: http.StatusUnauthorized}
	}
	caller, err := p.callerOf(r, who)
	if errors.Is(err, ErrUnknownToken) {
		return "", &problem{Status: http.StatusUnauthorized}
	}
	if err != nil {
		return "", &problem{Status: http.StatusServiceUnavailable}
	}
	t, ok := p.topics[r.PathValue("topic")]
	if !ok {
		return "", &problem{Status: http.StatusNotFound}
	}
	if !t.For.includes(caller.Role) {
		return "", &problem{Status: http.StatusForbidden}
	}
	if err := readForm(w, r); err != nil {
		return "", err
	}
	caller.Poll = true
	data, err := t.Read(&visit{w: w, r: r, caller: caller, portal: p})
	if err != nil {
		return "", err
	}
	return p.views.fragment(t.Template, data)
}
