package portal

import (
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// problem is an answer of the API that is not 2xx, or a fault that the portal finds itself.
type problem = answers.Problem

// isFault reports whether a form with other values could succeed.
func isFault(p *problem) bool {
	switch p.Status {
	case http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// isStatus reports whether an error is a problem with a status.
func isStatus(err error, status int) bool {
	p := answers.ProblemOf(err)
	return p != nil && p.Status == status
}

// showProblem answers with the page of an error. Errors that are no problem are logged and shown without their text.
func (p *Portal) showProblem(w http.ResponseWriter, r *http.Request, caller Caller, err error) {
	shown := answers.ProblemOf(err)
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
