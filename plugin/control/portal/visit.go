package portal

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// visit is one request of a caller who is signed in.
type visit struct {
	w      http.ResponseWriter
	r      *http.Request
	caller api.Caller
	portal *Portal
}

// noticeCookie carries the notice of a write to the next page; noticeTime bounds how long.
const (
	noticeCookie = "ratelimit_notice"
	noticeTime   = time.Minute
	maxNotice    = 1 << 10 // bytes of each of its texts
)

// get decodes the answer of the API to a GET as the caller. The error of an answer that is not 2xx is a *problem.
func (v *visit) get(path string, query url.Values, into any) error {
	return v.api().Get(v.r.Context(), path, query, into)
}

// send sends a request to the API as the caller, as Client.Do does.
func (v *visit) send(method, path string, body, into any, header ...string) error {
	return v.api().Do(v.r.Context(), method, path, nil, body, into, header...)
}

func (v *visit) api() *answers.Client {
	return &answers.Client{Transport: answers.Served(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = v.r.RemoteAddr
		v.portal.API.ServeAs(w, r, v.caller)
	})}
}

// render answers with a page: a template inside the layout, with the navigation of the caller's role.
func (v *visit) render(template, title string, data any) error {
	return v.renderStatus(http.StatusOK, template, title, data)
}

// liveHeader has a Live page answer with its live part alone: the template with the page's name and liveSuffix. A page
// marks where it shows that part by the attribute data-live, whose value is the address of the page if it is another
// one. The script of pages fetches the part every 2 seconds, or as seldom as data-every says, in seconds.
const (
	liveHeader = "X-Live"
	liveSuffix = "_live"
)

// renderLive answers with a live part, or with 304 if the browser has the same already.
func (v *visit) renderLive(template string, data any) error {
	shown, err := v.portal.fragment(template+liveSuffix, data)
	if err != nil {
		return err
	}
	part := keepRange(string(shown), keptRange(v.r, v.caller))
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(part))
	v.w.Header().Set("ETag", fmt.Sprintf("\"%x\"", sum.Sum64()))
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	http.ServeContent(v.w, v.r, "", time.Time{}, strings.NewReader(part))
	return nil
}

func (v *visit) renderStatus(status int, template, title string, data any) error {
	if v.caller.Routine {
		return v.renderLive(template, data)
	}
	l := v.portal.layout(v.r, v.caller, title)
	l.Notice = v.portal.takeNotice(v.w, v.r)
	return v.portal.show(v.w, status, template, l, data)
}

// notice is what a page shows of the write before it.
type notice struct {
	Text    string
	Version int64  // of the write; 0: nodes need not follow it
	Reach   string // which nodes enforce the version, as of the write
}

// redirect answers with 303 to a path of the portal, which shows a notice.
func (v *visit) redirect(path string, shown notice) error {
	v.portal.redirect(v.w, v.r, withRange(path, keptRange(v.r, v.caller), "&"), shown)
	return nil
}

// redirect answers with 303 to a path, which shows a notice.
func (p *Portal) redirect(w http.ResponseWriter, r *http.Request, path string, shown notice) {
	if shown.Text != "" {
		shown.Text, shown.Reach = cut(shown.Text, maxNotice), cut(shown.Reach, maxNotice)
		if err := p.jar.Put(w, r, noticeCookie, shown, noticeTime); err != nil {
			p.Log.Warn("keeping a notice failed", "error", err)
		}
	}
	w.Header().Set("Location", path)
	w.WriteHeader(http.StatusSeeOther)
}

// takeNotice returns the notice of the write before, and has the browser delete it.
func (p *Portal) takeNotice(w http.ResponseWriter, r *http.Request) (shown notice) {
	if p.jar.Get(r, noticeCookie, &shown) {
		p.jar.Delete(w, r, noticeCookie)
	}
	return shown
}

// ownPath returns a path below the portal, with or without a query, or the first page in place of anything else.
// Browsers read a backslash as a slash, and resolve the segment "..", also as %2e%2e.
func ownPath(target string) string {
	at, err := url.Parse(target)
	if err == nil && at.Scheme == "" && at.Host == "" && at.User == nil && strings.HasPrefix(target, home) &&
		strings.HasPrefix(path.Clean(at.Path)+"/", home) && !strings.ContainsAny(target, "\\\r\n\t") {
		return target
	}
	return home
}

// cut returns the first bytes of a text, without half a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// problem is an answer of the API that is not 2xx, or a fault that the portal finds itself.
type problem = answers.Problem

// isFault reports whether a form with other values could succeed.
func isFault(p *problem) bool {
	return slices.Contains([]int{
		http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity,
	}, p.Status)
}

func isStatus(err error, status int) bool {
	p := answers.ProblemOf(err)
	return p != nil && p.Status == status
}

// showProblem answers with the page of an error. Errors that are no problem are logged and shown without their text.
func (p *Portal) showProblem(w http.ResponseWriter, r *http.Request, caller api.Caller, err error) {
	shown := answers.ProblemOf(err)
	if shown == nil {
		p.Log.Error("a page failed", "path", r.URL.Path, "error", err)
		shown = &problem{Status: http.StatusInternalServerError}
	}
	page := *shown
	page.Title = http.StatusText(page.Status)
	page.Detail = cmp.Or(page.Detail, details[page.Status])
	if page.Status < http.StatusInternalServerError {
		page.Request = ""
	}
	err = p.show(w, page.Status, "error", p.layout(r, caller, page.Title), &page)
	if err != nil {
		p.Log.Error("showing an error failed", "path", r.URL.Path, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// details are the texts of a status that needs no other.
var details = map[int]string{
	http.StatusNotFound:            "There is nothing at this address.",
	http.StatusMethodNotAllowed:    "This address does not accept such a request.",
	http.StatusInternalServerError: "This page failed. The log of the process has the reason.",
}
