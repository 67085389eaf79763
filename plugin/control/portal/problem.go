package portal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// problem is an answer of the API that is not 2xx (RFC 9457), or a fault that the portal finds itself.
type problem struct {
	Status  int          `json:"status"`
	Title   string       `json:"title"`
	Detail  string       `json:"detail"`
	Errors  []fieldFault `json:"errors"`
	Request string       `json:"-"` // the id of the API's request in the log
}

// fieldFault is the fault of one value of a request.
type fieldFault struct {
	Location string `json:"location"` // such as body.limit
	Message  string `json:"message"`
}

// newProblem returns the problem of an answer.
func newProblem(a *answer) *problem {
	p := &problem{}
	if err := json.Unmarshal(a.body.Bytes(), p); err != nil {
		p = &problem{Detail: "The API answered in an unexpected way."}
	}
	p.Status, p.Request = cmp.Or(a.status, http.StatusInternalServerError), a.header.Get("X-Request-Id")
	return p
}

// Error implements error.
func (p *problem) Error() string {
	parts := []string{fmt.Sprintf("%d %s", p.Status, cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))}
	for _, e := range p.Errors {
		parts = append(parts, e.Location+" "+e.Message)
	}
	return strings.Join(parts, "; ")
}

// isFault reports whether a form with other values could succeed.
func (p *problem) isFault() bool {
	switch p.Status {
	case http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// At returns the fault of a field of the body, in a template: "" if it has none. Faults of its parts count.
func (p *problem) At(field string) string {
	if p == nil {
		return ""
	}
	for _, e := range p.Errors {
		name, isBody := strings.CutPrefix(e.Location, "body.")
		if isBody && (name == field || strings.HasPrefix(name, field+".") || strings.HasPrefix(name, field+"[")) {
			return e.Message
		}
	}
	return ""
}

// asProblem returns the problem of an error, or nil if it is another one.
func asProblem(err error) *problem {
	p := new(problem)
	if errors.As(err, &p) {
		return p
	}
	return nil
}

// isStatus reports whether an error is a problem with a status.
func isStatus(err error, status int) bool {
	p := asProblem(err)
	return p != nil && p.Status == status
}

// showProblem answers with the page of an error. Errors that are no problem are logged and shown without their text.
func (p *Portal) showProblem(w http.ResponseWriter, r *http.Request, caller Caller, err error) {
	shown := asProblem(err)
	if shown == nil {
		p.Log.Error("a page failed", "path", r.URL.Path, "error", err)
		shown = &problem{Status: http.StatusInternalServerError}
	}
	page := *shown
	page.Title = http.StatusText(page.Status)
	if page.Detail == "" {
		page.Detail = detailOf(page.Status)
	}
	if page.Status < http.StatusInternalServerError {
		page.Request = ""
	}
	err = p.show(w, page.Status, "error", p.layout(r, caller, page.Title), &page)
	if err != nil {
		p.Log.Error("showing an error failed", "path", r.URL.Path, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// detailOf returns the text of a status that needs no other.
func detailOf(status int) string {
	switch status {
	case http.StatusNotFound:
		return "There is nothing at this address."
	case http.StatusMethodNotAllowed:
		return "This address does not accept such a request."
	case http.StatusInternalServerError:
		return "This page failed. The log of the process has the reason."
	}
	return ""
}
