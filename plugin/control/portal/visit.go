package portal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

// visit is one request of a caller who is signed in.
type visit struct {
	w      http.ResponseWriter
	r      *http.Request
	caller Caller
	portal *Portal
}

// maxAnswer bounds an answer of the API, in bytes. Its lists are shorter, because they have pages.
const maxAnswer = 32 << 20

// noticeCookie carries the notice of a write to the next page; noticeTime bounds how long.
const (
	noticeCookie = "ratelimit_notice"
	noticeTime   = time.Minute
	maxNotice    = 1 << 10 // bytes of each of its texts
)

// get decodes the answer of the API to a GET as the caller. The error of an answer that is not 2xx is a *problem.
func (v *visit) get(path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return v.send(http.MethodGet, path, nil, into)
}

// send sends a request to the API as the caller, with a body that is encoded as JSON and pairs of header names and
// values, and decodes the answer. A nil body or answer is none. The error of an answer that is not 2xx is a *problem.
func (v *visit) send(method, path string, body, into any, header ...string) error {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s %s: encode the body: %w", method, path, err)
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(v.r.Context(), method, path, content)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	r.RemoteAddr = v.r.RemoteAddr
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a := &answer{header: http.Header{}}
	v.portal.API.ServeAs(a, r, v.caller)
	if err := a.decode(into); err != nil {
		if asProblem(err) != nil {
			return err
		}
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// render answers with a page: a template inside the layout, with the navigation of the caller's role.
func (v *visit) render(template, title string, data any) error {
	return v.renderStatus(http.StatusOK, template, title, data)
}

// renderFault answers a write that the API denied with the page of its form, where data shows the problem. Errors that
// are not faults of the request are returned.
func (v *visit) renderFault(err error, template, title string, data any) error {
	p := asProblem(err)
	if p == nil || !p.isFault() {
		return err
	}
	return v.renderStatus(p.Status, template, title, data)
}

func (v *visit) renderStatus(status int, template, title string, data any) error {
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
	if !isOwnPath(path) {
		return fmt.Errorf("redirect to %q: the path is not of the portal", path)
	}
	v.portal.redirect(v.w, v.r, path, shown)
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
	if p.jar.Get(r, noticeCookie, &shown) == nil {
		p.jar.Delete(w, r, noticeCookie)
	}
	return shown
}

// isOwnPath reports whether a path, with or without a query, is below the portal. Browsers read a backslash as a slash,
// and resolve the segment "..", also as %2e%2e.
func isOwnPath(target string) bool {
	at, err := url.Parse(target)
	return err == nil && at.Scheme == "" && at.Host == "" && at.User == nil && strings.HasPrefix(target, home) &&
		strings.HasPrefix(path.Clean(at.Path)+"/", home) && !strings.ContainsAny(target, "\\\r\n\t")
}

// cut returns the first bytes of a text, without half a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// answer records an answer of the API.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements [io.Writer].
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(b) > maxAnswer {
		return 0, errors.New("the answer of the API is too long for a page")
	}
	return a.body.Write(b)
}

// decode decodes an answer, or returns its problem.
func (a *answer) decode(into any) error {
	switch {
	case a.status < 200 || a.status > 299:
		return newProblem(a)
	case into == nil || a.body.Len() == 0:
		return nil
	}
	if err := json.Unmarshal(a.body.Bytes(), into); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}
