package limiter

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
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
	Result  string // allowed, soft_throttled (admitted, above a soft threshold), hard_throttled or exempt
	// Reason is counted if the limits decided. Else it is what decided instead: tenant_missing, user_missing, banned,
	// store_away, meta_limited or internal_fault.
	Reason string

	// Policy is the name of the limit that binds: of those that deny, the one with the longest wait; else the one with the
	// smallest part left. "": no enforced limit applies, and Limit, Remaining and Reset are zero. All tenants may share
	// the limit; then Headers and Body do not show these numbers.
	Policy    string
	Unit      string // usd: Limit and Remaining are millionths of a US dollar; "": they are tokens
	Limit     int64  // of the full bucket
	Remaining int64  // after this request
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

	end func(*reservation.Use) error // with what was used, nil: unknown; nil: the request holds nothing
}

// Release ends the request: it gives back the slots of concurrency limits that the request holds. Call it when the work
// of an admitted request is done, also after Settle; further calls do nothing. A slot that is not given back counts
// until max_duration. Limits that settle keep what they have reserved.
func (d *Decision) Release() { _ = d.finish(nil) }

// Settle ends the request as Release does, and says what it has really used: tokens, or millionths of a US dollar if
// the limits that settle have the unit usd. Each of them charges that in place of what it has reserved: it returns the
// rest, or charges what is more even if it has no room. After the timeout of the limit it returns nothing. Only the
// first call of Release, Settle or SettleCall has an effect. An error means that nothing was settled, because tokens is
// below 0 or above MaxCost, or because limits of both units have reserved, which only a call of a model can settle; or
// that Redis did not answer.
func (d *Decision) Settle(tokens int64) error {
	if tokens < 0 || tokens > MaxCost {
		return fmt.Errorf("settle: %d: must be from 0 to %d tokens", tokens, int64(MaxCost))
	}
	return d.finish(&reservation.Use{Actual: tokens})
}

// Call is what a request has used of a language model.
type Call struct {
	Model, Provider                string // that answered
	PromptTokens, CompletionTokens int64
}

// SettleCall settles as Settle does, by the call of a language model: limits of the unit usd charge its price, other
// limits its tokens, and those that match other models nothing. Without a price the reservations stay charged.
func (d *Decision) SettleCall(c Call) error {
	if c.Model == "" || min(c.PromptTokens, c.CompletionTokens) < 0 || max(c.PromptTokens, c.CompletionTokens) > MaxCost {
		return fmt.Errorf("settle: %+v: must have a model, and from 0 to %d tokens of each kind", c, int64(MaxCost))
	}
	used := reservation.Used{
		Model: c.Model, Provider: c.Provider, Prompt: c.PromptTokens, Completion: c.CompletionTokens,
	}
	return d.finish(&reservation.Use{Actual: c.PromptTokens + c.CompletionTokens, Call: used})
}

func (d *Decision) finish(use *reservation.Use) error {
	if d.end == nil {
		return nil
	}
	return d.end(use)
}

type decisionKey struct{}

// NewContext returns a context with the decision about its request, for middleware.
func NewContext(ctx context.Context, d *Decision) context.Context {
	return context.WithValue(ctx, decisionKey{}, d)
}

// FromContext returns the decision about the request that a handler's context is of, or nil if nothing decided it.
func FromContext(ctx context.Context) *Decision {
	d, _ := ctx.Value(decisionKey{}).(*Decision)
	return d
}

// Status is the answer of one limit.
type Status struct {
	Policy    string
	Scope     string // tenant, user, …
	Shared    bool   // all tenants share its bucket: Headers show its numbers only with show_shared_limits
	Enforced  bool   // false: its mode is shadow or log, and it denies nothing
	Allowed   bool   // it has room, or its store did not answer and its fail mode is not closed
	Unit      string // usd: the amounts are millionths of a US dollar; "": they are tokens
	Cost      int64  // of the request
	Charged   bool   // Cost was spent
	Limit     int64
	Used      int64 // rounded up
	Remaining int64
	Reset     time.Time
	// Wait is how long until it has room, and 0 if it has. If Source is unanswered, it is how long Redis is expected to
	// be unavailable.
	Wait   time.Duration
	Source string // memory, redis, lease, local (this process's share while Redis is away), fair_share, or unanswered
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

// newDecision copies the decision out of an exchange, with what ends the request.
func (l *Limiter) newDecision(r Request, x *exchange) Decision {
	out := newDecision(&x.Exchange)
	if x.Decision.Resolution.Settles && out.Allowed {
		out.end = l.ender(&x.Decision)
	}
	if l.observe != nil {
		seen := out
		seen.end = nil // the caller ends the request
		l.observe(r, seen)
	}
	return out
}

// ender returns the function that settles once what a decision has reserved, or nil if that is nothing.
func (l *Limiter) ender(d *decision.Decision) func(*reservation.Use) error {
	record := reservation.NewRecord(d, l.decider.Now())
	if record == nil {
		return nil
	}
	observer, began := l.engine.Settlements(), l.decider.Elapsed()
	record.ReportReserved(observer)
	var once sync.Once
	return func(use *reservation.Use) (err error) {
		held := l.decider.Elapsed() - began
		all, err := record.SettlementsOf(use, held > record.Timeout)
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		once.Do(func() {
			if err = record.Settle(context.Background(), l.buckets, all); err != nil {
				l.logUndecided(err)
			}
			record.ReportSettled(observer, all, held)
		})
		return err
	}
}

// newDecision copies the decision out of an exchange, which the next request reuses.
func newDecision(x *admit.Exchange) Decision {
	d := &x.Decision
	out := Decision{
		Allowed: !x.Response.Denied, Result: d.Result.String(), Reason: d.Reason.String(),
		RetryAfter: duration(d.RetryAfter), Degraded: d.Degraded, ShadowDenied: d.ShadowDenied,
		Headers: headers(&x.Response),
	}
	if d.Binding >= 0 {
		p, status := d.Resolution.Bounds[d.Binding].Policy, &d.Statuses[d.Binding]
		out.Policy, out.Unit, out.Limit, out.Remaining = p.Name, p.Unit, p.Limit.Spec().Burst, status.Remaining
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
		Unit: b.Policy.Unit, Cost: b.Cost, Charged: s.Charged,
		Limit: b.Policy.Limit.Spec().Burst, Wait: duration(s.Wait), Source: s.Source.String(),
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
// A handler that settles gets its decision from [FromContext].
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
				next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), &d)))
			}
		})
	}
}

// decideHTTP decides an HTTP request.
func (l *Limiter) decideHTTP(r *http.Request, request Request) Decision {
	x := l.exchange()
	defer l.exchanges.Put(x)
	request.complete(r)
	request.setFacts(&x.request)
	if x.request.Route == "" {
		x.request.Route = r.Pattern
	}
	if kind := r.Header.Get("Content-Type"); kind != "" {
		x.request.ContentType = kind
	}
	if err := l.decide(&request, x); err != nil {
		l.logUndecided(err)
	}
	return l.newDecision(request, x)
}

// complete sets the fields that identify has left empty.
func (r *Request) complete(from *http.Request) {
	if r.Method == "" && r.Path == "" {
		r.Method, r.Path = from.Method, from.URL.EscapedPath()
	}
	if r.IP == "" {
		r.IP = from.RemoteAddr
		if host, _, err := net.SplitHostPort(from.RemoteAddr); err == nil {
			r.IP = host
		}
	}
}
