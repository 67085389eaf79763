package limiter

import (
	"net"
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// Middleware limits the requests to an HTTP handler. Every response has the headers that the plugin would send. A
// denied request gets the plugin's response, 429 and a problem document, and does not reach the handler.
//
// identify returns whom a request is from. It must trust only what is authenticated, not a header that clients can
// forge. Middleware sets the fields that identify leaves empty: method and path from the request, the endpoint from the
// pattern of the http.ServeMux that has routed it, and the address from the connection, which may be a proxy's.
//
// If the limits cannot decide a request, on_internal_error does, and the error is logged. A request whose client has
// disconnected counts like any other. If identify is nil, all requests are anonymous.
func (l *Limiter) Middleware(identify func(*http.Request) Request) func(http.Handler) http.Handler {
	if identify == nil {
		identify = func(*http.Request) Request { return Request{} }
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if l.admits(w, r, identify(r)) {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// admits decides an HTTP request and sets the headers. It sends the response of a denied request.
func (l *Limiter) admits(w http.ResponseWriter, r *http.Request, request Request) bool {
	x := l.exchange()
	defer l.exchanges.Put(x)
	request.setFacts(&x.request)
	addFacts(&x.request, r)
	if err := l.decide(&request, x); err != nil {
		l.logUndecided(err)
	}
	header := w.Header()
	for i := range x.Response.Headers {
		header.Set(x.Response.Headers[i].Name, string(x.Response.Headers[i].Value))
	}
	if !x.Response.Denied {
		return true
	}
	writeDenial(w, x.Response.Status, x.Response.Body)
	return false
}

// addFacts sets the facts that identify has left empty.
func addFacts(f *admit.CallerRequest, r *http.Request) {
	if f.Path == "" {
		f.Method, f.Path = r.Method, r.URL.EscapedPath()
	}
	if f.Route == "" {
		f.Route = r.Pattern
	}
	if f.IP == "" {
		f.IP = r.RemoteAddr
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			f.IP = host
		}
	}
	f.ContentType = r.Header.Get("Content-Type")
}

// writeDenial sends the response of a denied request, whose headers are set.
func writeDenial(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}
