package limiter

import (
	"context"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
)

// Never is the wait of a request that costs more than the limit holds, or of a tenant that is banned for good.
const Never = time.Duration(math.MaxInt64)

// Decision is the answer to one request. The caller may keep and change it.
type Decision struct {
	Allowed bool
	Result  decision.Result // allowed, soft_throttled (admitted, above a soft threshold), hard_throttled or exempt
	Reason  decision.Reason // counted: the limits decided; else what decided instead

	// Policy is the name of the limit that binds: of those that deny, the one with the longest wait; else the one with the
	// smallest part left. "": no enforced limit applies, and Limit, Remaining and Reset are zero. All tenants may share
	// the limit; then Headers and Body do not show these numbers.
	Policy    string
	Limit     int64 // tokens of the full bucket
	Remaining int64 // tokens after this request
	// Reset is when the bucket is full again, or its window ends, on the clock of its store. For a denied request it is
	// not before the end of RetryAfter.
	Reset time.Time
	// RetryAfter is how long a denied request must wait until it would be admitted, if no other request spends. 0:
	// unknown.
	RetryAfter time.Duration

	Degraded     bool     // Redis did not answer for all limits
	ShadowDenied bool     // a limit in mode shadow or log would have denied
	Statuses     []Status // of all limits that apply; none if something else decided

	// The HTTP response, as the plugin sends it: Headers always, StatusCode and Body if the request is denied.
	Headers    []Header
	StatusCode int
	Body       []byte

	release func() // nil: the request holds no slots
}

// Release ends the request: it gives back the slots of concurrency limits that the request holds. Call it when the work
// of an admitted request is done; further calls do nothing. A slot that is not given back counts until max_duration.
func (d *Decision) Release() {
	if d.release != nil {
		d.release()
	}
}

// Status is the answer of one limit.
type Status struct {
	Policy    string
	Scope     string // tenant, user, …
	Shared    bool   // all tenants share its bucket: Headers show its numbers only with show_shared_limits
	Enforced  bool   // false: its mode is shadow or log, and it denies nothing
	Allowed   bool   // it has room, or its store did not answer and its fail mode is not closed
	Cost      int64  // tokens that the request costs here
	Charged   bool   // they were spent
	Limit     int64  // tokens
	Used      int64  // tokens, rounded up
	Remaining int64  // tokens
	Reset     time.Time
	// Wait is how long until it has room, and 0 if it has. If Source is unanswered, it is how long Redis is expected to
	// be unavailable.
	Wait   time.Duration
	Source decision.Source // memory, redis, lease, local, or unanswered
}

// Header is one response header.
type Header struct{ Name, Value string }

// WriteTo sets the headers of the decision on an HTTP response, and sends the response of a denied request. It reports
// whether the request is admitted.
func (d *Decision) WriteTo(w http.ResponseWriter) bool {
	for _, h := range d.Headers {
		w.Header().Set(h.Name, h.Value)
	}
	if d.Allowed {
		return true
	}
	w.WriteHeader(d.StatusCode)
	_, _ = w.Write(d.Body) // the client may be gone
	return false
}

// newDecision copies the decision out of an exchange, with what releases its slots.
func (l *Limiter) newDecision(x *admit.Exchange) Decision {
	out := newDecision(x)
	if x.Decision.Resolution.Settles && out.Allowed {
		out.release = l.releaser(&x.Decision)
	}
	return out
}

// releaser returns the function that releases the slots of a decision, or nil if it has none.
func (l *Limiter) releaser(d *decision.Decision) func() {
	var held store.Part
	for i := range d.Statuses {
		if b := d.Resolution.Bounds[i]; b.Key.Slots && d.Statuses[i].Charged {
			b.Key = b.Key.Clone()
			held.Add(i, b, d.Statuses[i])
		}
	}
	if len(held.Bounds) == 0 {
		return nil
	}
	return sync.OnceFunc(func() {
		actual := make([]int64, len(held.Bounds))
		if err := l.buckets.Settle(context.Background(), held.Bounds, held.Statuses, actual); err != nil {
			l.logUndecided(err)
		}
	})
}

// newDecision copies the decision out of an exchange, which the next request reuses.
func newDecision(x *admit.Exchange) Decision {
	d := &x.Decision
	out := Decision{
		Allowed: !x.Response.Denied, Result: d.Result, Reason: d.Reason, RetryAfter: duration(d.RetryAfter),
		Degraded: d.Degraded, ShadowDenied: d.ShadowDenied, Headers: headers(&x.Response),
	}
	if d.Binding >= 0 {
		p, status := d.Resolution.Bounds[d.Binding].Policy, &d.Statuses[d.Binding]
		out.Policy, out.Limit, out.Remaining = p.Name, p.Limit.Spec().Burst, status.Remaining
		out.Reset = time.UnixMicro(int64(status.ResetAt()))
	}
	if n := len(d.Resolution.Bounds); n > 0 {
		out.Statuses = make([]Status, n)
		for i := range out.Statuses {
			out.Statuses[i] = newStatus(d, i)
		}
	}
	if x.Response.Denied {
		out.StatusCode, out.Body = x.Response.Status, append([]byte(nil), x.Response.Body...)
	}
	return out
}

func newStatus(d *decision.Decision, i int) Status {
	b, s := &d.Resolution.Bounds[i], &d.Statuses[i]
	out := Status{
		Policy: b.Policy.Name, Scope: b.Policy.Scope.String(), Shared: b.Key.Shared(), Enforced: b.Enforced(),
		Cost: b.Cost, Charged: s.Charged,
		Limit: b.Policy.Limit.Spec().Burst, Wait: duration(s.Wait), Source: s.Source,
	}
	if s.Source == decision.Unanswered {
		out.Allowed = !decision.Denies(b, s)
		return out
	}
	out.Allowed, out.Used, out.Remaining, out.Reset = s.Admits(), s.Used, s.Remaining, time.UnixMicro(int64(s.Reset))
	return out
}

// headers copies the headers of a response. All values share one string.
func headers(r *response.Response) []Header {
	if len(r.Headers) == 0 {
		return nil
	}
	size := 0
	for i := range r.Headers {
		size += len(r.Headers[i].Value)
	}
	var text strings.Builder
	text.Grow(size)
	for i := range r.Headers {
		text.Write(r.Headers[i].Value)
	}
	values, list := text.String(), make([]Header, len(r.Headers))
	for i := range r.Headers {
		n := len(r.Headers[i].Value)
		list[i], values = Header{Name: r.Headers[i].Name, Value: values[:n]}, values[n:]
	}
	return list
}

// duration returns a wait as a Duration, and Never if it exceeds the range.
func duration(wait limit.Micros) time.Duration {
	if wait > limit.Micros(Never/time.Microsecond) {
		return Never
	}
	return time.Duration(wait) * time.Microsecond
}

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
			d := l.decideHTTP(r, identify(r))
			defer d.Release()
			if d.WriteTo(w) {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// decideHTTP decides an HTTP request.
func (l *Limiter) decideHTTP(r *http.Request, request Request) Decision {
	x := l.exchange()
	defer l.exchanges.Put(x)
	request.setFacts(&x.request)
	addFacts(&x.request, r)
	if err := l.decide(&request, x); err != nil {
		l.logUndecided(err)
	}
	return l.newDecision(&x.Exchange)
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
