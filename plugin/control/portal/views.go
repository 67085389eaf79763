package portal

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

//go:embed templates/*.html
var templateFiles embed.FS

// views are the parsed templates, and the names of assets.
type views struct {
	templates *template.Template
	assets    *assets
	nav       map[api.Role][]page
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
	Caller api.Caller
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
func (p *Portal) layout(r *http.Request, caller api.Caller, title string) *layout {
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

//go:embed assets
var assetFiles embed.FS

const assetsPath = home + "assets/"

// assets are the files that pages load. Their names contain a hash of the content, so browsers may keep them forever.
type assets struct {
	hashed  map[string]string // the name in a URL, by the name of the file
	content map[string][]byte // by the name in a URL
}

func newAssets() (*assets, error) {
	files, err := assetFiles.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("read the assets: %w", err)
	}
	a := &assets{hashed: map[string]string{}, content: map[string][]byte{}}
	for _, file := range files {
		text, err := assetFiles.ReadFile("assets/" + file.Name())
		if err != nil {
			return nil, fmt.Errorf("read the assets: %w", err)
		}
		sum, extension := sha256.Sum256(text), path.Ext(file.Name())
		name := strings.TrimSuffix(file.Name(), extension) + "-" + hex.EncodeToString(sum[:6]) + extension
		a.hashed[file.Name()], a.content[name] = name, text
	}
	return a, nil
}

// path returns the URL of a file. The error of a file that does not exist ends the template.
func (a *assets) path(file string) (string, error) {
	name, ok := a.hashed[file]
	if !ok {
		return "", fmt.Errorf("there is no asset %s", file)
	}
	return assetsPath + name, nil
}

// serveAsset serves a file by its hashed name.
func (p *Portal) serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	content, ok := p.views.assets.content[name]
	if !ok {
		p.showProblem(w, r, api.Caller{}, &problem{Status: http.StatusNotFound})
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}

// functions returns the functions of templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"number":  number,
		"percent": percent,
		"when":    when,
		"segment": answers.PathSegment,
		"dict":    dict,
		"pairs":   pairs,

		"limitWords": func(l answers.LimitInForce, who string) string { return limitWords(&l, who) },
		"spanWords":  spanWords, "denialWords": denialWords, "overrideWords": overrideWords,
		"level": usageLevel, "deliveryLevel": func(state string) string { return deliveryLevels[state] }, "events": eventsOf,
	}
}

// number returns an integer, or the one that a pointer is to, with separators between thousands: 1,234,567.
func number(value any) (string, error) {
	if n := reflect.Indirect(reflect.ValueOf(value)); n.CanInt() {
		return humanize.Comma(n.Int()), nil
	}
	return "", fmt.Errorf("%T is not an integer", value)
}

// percent returns a share from 0 to 1 as percent.
func percent(share float64) string {
	return strconv.FormatFloat(math.Round(share*1000)/10, 'f', -1, 64) + " %"
}

// when returns an instant as a time element, in UTC: a time.Time or a *time.Time. Without an instant it is a dash.
func when(value any) (template.HTML, error) {
	var at time.Time
	switch t := value.(type) {
	case time.Time:
		at = t
	case *time.Time:
		if t != nil {
			at = *t
		}
	default:
		return "", fmt.Errorf("%T is not a time", value)
	}
	if at.IsZero() {
		return "–", nil
	}
	at = at.UTC()
	text := `<time datetime="` + at.Format(time.RFC3339) + `">` + at.Format("2006-01-02 15:04:05") + ` UTC</time>`
	return template.HTML(text), nil // #nosec G203 -- digits only
}

// pairs returns texts two by two, such as the values and labels of a select.
func pairs(texts ...string) [][]string { return slices.Collect(slices.Chunk(texts, 2)) }

// dict returns a map of pairs, to pass several values to a template.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict has %d arguments: it needs pairs", len(pairs))
	}
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}
