package portal

import (
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"strings"
	"time"
)

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
