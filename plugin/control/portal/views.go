package portal

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
)

//go:embed templates/*.html
var templateFiles embed.FS

// views are the parsed templates, and the names of assets.
type views struct {
	templates *template.Template
	assets    *assets
	nav       map[string][]page
}

// newViews parses the templates. A file is a page, named by the file without .html, or has parts of pages.
func newViews() (*views, error) {
	found, err := newAssets()
	if err != nil {
		return nil, err
	}
	v := &views{assets: found, nav: navigation()}
	v.templates, err = template.New("portal").Funcs(functions()).Funcs(template.FuncMap{"asset": found.path}).
		ParseFS(templateFiles, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse the templates: %w", err)
	}
	return v, nil
}

// layout is what surrounds a page.
type layout struct {
	Title  string
	Caller Caller
	Nav    []link
	Notice notice
	Body   template.HTML // rendered by a template
}

// link is one of the navigation.
type link struct {
	Label, Path string
	Current     bool
}

// layout returns the surroundings of a page for a caller, or for none.
func (p *Portal) layout(r *http.Request, caller Caller, title string) *layout {
	l := &layout{Title: title, Caller: caller}
	for _, to := range p.views.nav[caller.Role] {
		l.Nav = append(l.Nav, link{Label: to.Nav, Path: to.Path(), Current: to.Path() == r.URL.Path})
	}
	return l
}

// show answers with a template inside the layout. It writes nothing before all is rendered.
func (p *Portal) show(w http.ResponseWriter, status int, name string, l *layout, data any) error {
	body, err := p.views.fragment(name+".html", data)
	if err != nil {
		return err
	}
	l.Body = body
	var page bytes.Buffer
	if err := p.views.templates.ExecuteTemplate(&page, "layout.html", l); err != nil {
		return fmt.Errorf("render the layout: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(page.Len()))
	w.WriteHeader(status)
	_, _ = page.WriteTo(w) // the client may have disconnected
	return nil
}

// fragment renders a template alone.
func (v *views) fragment(name string, data any) (template.HTML, error) {
	var text bytes.Buffer
	if err := v.templates.ExecuteTemplate(&text, name, data); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return template.HTML(text.String()), nil // #nosec G203 -- a template has escaped it
}
