package limiter

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
)

// Never is a wait that nothing ends: the request costs more than the limit holds, or its sender is banned for good.
const Never = time.Duration(math.MaxInt64)

// Decision is the answer to one request. It belongs to the caller.
type Decision struct {
	Allowed bool
	Result  decision.Result // allowed, soft_throttled (allowed, beyond a soft threshold) or hard_throttled (refused)
	Reason  decision.Reason // counted: the limits decided; else what decided in their stead

	// Policy is the name of the limit that binds: the one that refuses and takes longest to have room again, else the one
	// of which the smallest part is left. "": no enforced limit applies, and Limit, Remaining and Reset are zero. These
	// are for the program: it may be a limit that all tenants share, whose numbers Headers and Body do not show (see
	// Status).
	Policy     string
	Limit      int64         // tokens it holds when it is full
	Remaining  int64         // tokens left, after this request
	Reset      time.Time     // when it is full again, or its window ends, by the clock of its store; for a refused request not before RetryAfter is over
	RetryAfter time.Duration // of a refused request: how long until it would be admitted, if nobody else spends; 0: that is not known

	Degraded     bool     // Redis did not answer for all limits
	ShadowDenied bool     // a limit in mode shadow or log would have refused
	Statuses     []Status // of all limits that apply; none where something else decided

	// What an HTTP client reads, as the plugin would answer: Headers always; StatusCode and Body of a refused request.
	Headers    []Header
	StatusCode int
	Body       []byte
}

// Status is the answer of one limit.
type Status struct {
	Policy    string
	Scope     string // what it is counted per
	Shared    bool   // all tenants spend from its bucket: clients do not read its numbers, unless show_shared_limits says so
	Enforced  bool   // false: in mode shadow or log, it refuses nothing
	Allowed   bool   // it has room for the request, or nobody could say and its fail mode is not closed
	Cost      int64  // tokens that the request costs here
	Charged   bool   // they were spent
	Limit     int64  // tokens
	Used      int64  // tokens, rounded up
	Remaining int64  // tokens
	Reset     time.Time
	Wait      time.Duration   // 0: it has room; else how long until it has; of an unanswered one how long Redis is expected to be away
	Source    decision.Source // who answered: memory, redis, lease, local, or unanswered
}

// Header is one response header.
type Header struct{ Name, Value string }

// WriteTo sets the headers of the decision on an HTTP response, and answers the request if it is refused. It tells
// whether the request may go on.
func (d *Decision) WriteTo(w http.ResponseWriter) bool {
	for _, h := range d.Headers {
		w.Header().Set(h.Name, h.Value)
	}
	if d.Allowed {
		return true
	}
	refuse(w, d.StatusCode, d.Body)
	return false
}

// newDecision copies what the caller may keep out of an exchange.
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
		Policy: b.Policy.Name, Scope: b.Policy.Scope.String(), Shared: b.Key.Shared(), Enforced: b.Enforced(), Cost: b.Cost, Charged: s.Charged,
		Limit: b.Policy.Limit.Spec().Burst, Wait: duration(s.Wait), Source: s.Source,
	}
	if s.Source == decision.Unanswered {
		out.Allowed = !decision.Denies(b, s)
		return out
	}
	out.Allowed, out.Used, out.Remaining, out.Reset = s.Admits(), s.Used, s.Remaining, time.UnixMicro(int64(s.Reset))
	return out
}

// headers copies the headers of a response; all values are parts of one text.
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
	rest, list := text.String(), make([]Header, len(r.Headers))
	for i := range r.Headers {
		n := len(r.Headers[i].Value)
		list[i], rest = Header{Name: r.Headers[i].Name, Value: rest[:n]}, rest[n:]
	}
	return list
}

// duration is a wait of the core; what is longer than a Duration can say is Never.
func duration(wait limit.Micros) time.Duration {
	if wait > limit.Micros(Never/time.Microsecond) {
		return Never
	}
	return time.Duration(wait) * time.Microsecond
}
