package limiter

import (
	"net"
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
)

// Middleware limits the requests to an HTTP handler. Every answer has the headers that the plugin would send; a refused
// request is answered as the plugin would, with 429 and a problem document, and never reaches the handler.
//
// identify says who a request is from. It must trust only what is authenticated; a header that clients can forge is
// not. What it leaves empty is filled in: method and path from the request, the name of the endpoint from the pattern of
// the http.ServeMux that has routed it, and the address from the connection, which behind a proxy is the proxy's.
//
// A request that could not be decided is admitted or refused as on_internal_error says, and logged. One whose client has
// gone is counted like any other, so that leaving early buys nothing. identify nil: all requests are strangers'.
func (l *Limiter) Middleware(identify func(*http.Request) Request) func(http.Handler) http.Handler {
	if identify == nil {
		identify = func(*http.Request) Request { return Request{} }
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if l.pass(w, r, identify(r)) {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// pass decides about an HTTP request, sets the headers, and answers it if it is refused.
func (l *Limiter) pass(w http.ResponseWriter, r *http.Request, request Request) bool {
	x := l.exchange()
	defer l.exchanges.Put(x)
	request.tell(&x.known)
	complete(&x.known, r)
	if err := l.decide(&request, x); err != nil {
		l.complain(err)
	}
	header := w.Header()
	for i := range x.Response.Headers {
		header.Set(x.Response.Headers[i].Name, string(x.Response.Headers[i].Value))
	}
	if !x.Response.Denied {
		return true
	}
	refuse(w, x.Response.Status, x.Response.Body)
	return false
}

// complete fills in what identify left empty.
func complete(k *admit.Known, r *http.Request) {
	if k.Path == "" {
		k.Method, k.Path = r.Method, r.URL.EscapedPath()
	}
	if k.Route == "" {
		k.Route = r.Pattern
	}
	if k.IP == "" {
		k.IP = r.RemoteAddr
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			k.IP = host
		}
	}
	k.ContentType = r.Header.Get("Content-Type")
}

// refuse answers a refused request, whose headers are set.
func refuse(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone reads nothing
}
