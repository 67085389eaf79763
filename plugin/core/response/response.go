// Package response renders a decision for the client: a decision in, headers and a body out.
//
// It is the one place where a decision becomes HTTP: the X-RateLimit headers, the structured fields of
// draft-ietf-httpapi-ratelimit-headers-10, Retry-After, and the RFC 9457 problem document of a denial. It decides
// nothing and writes to no connection.
package response

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Header is one response header.
type Header struct {
	Name  string
	Value []byte
}

// Response holds what a client reads. Its memory is reused: the zero value is ready, and a value is valid until the
// next Render into it.
type Response struct {
	Denied  bool // the client gets Status and Body; else the request is proxied, unless Usage
	Usage   bool // the client gets Status and Body, about the usage of its tenant
	Status  int
	Headers []Header
	Body    []byte

	buf []byte // the values of Headers, one after another
}

// Reset makes r ready for the next request.
func (r *Response) Reset() {
	*r = Response{Headers: r.Headers[:0], Body: r.Body[:0], buf: r.buf[:0]}
}

// Get returns the value of a header, "" if it is absent.
func (r *Response) Get(name string) string {
	for _, h := range r.Headers {
		if strings.EqualFold(h.Name, name) {
			return string(h.Value)
		}
	}
	return ""
}

// Renderer renders the decisions of one plugin config. It is immutable.
type Renderer struct {
	config      *schema.Config
	fewest      int    // RateLimit lists all limits of a request that has at most so many
	exposed     string // value of Access-Control-Expose-Headers; "": it is not sent
	message     string // as JSON
	grpcMessage string // the same for gRPC
	jitter      func(n int64) int64
}

// New compiles a renderer. jitter returns a random number from 0 to n-1; it is called only if the config adds jitter to
// Retry-After.
func New(config schema.Config, jitter func(n int64) int64) *Renderer {
	message, _ := json.Marshal(config.ErrorMessage) // every string has a JSON form
	return &Renderer{
		config:      &config,
		fewest:      listedWith(config.RateLimitHeader),
		exposed:     exposedBy(&config),
		message:     string(message),
		grpcMessage: percentEncode(config.ErrorMessage),
		jitter:      jitter,
	}
}

// Shows reports whether clients read the numbers of a bound: always for their own buckets, and only with
// show_shared_limits for a bucket that all tenants share. A denial by a shared bound shows its name and Retry-After.
func (re *Renderer) Shows(b *policy.Bound) bool { return re.config.ShowSharedLimits || !b.Key.Shared() }

// ShowsShared reports whether clients read the numbers of limits that all tenants share: show_shared_limits.
func (re *Renderer) ShowsShared() bool { return re.config.ShowSharedLimits }

// Binding returns the index of the bound whose numbers clients read; -1: none.
func (re *Renderer) Binding(d *decision.Decision) int {
	if re.config.ShowSharedLimits {
		return d.Binding
	}
	return d.OwnBinding
}

// Render writes the response for a decision into r. grpc says whether the request is a gRPC call, which is denied by
// trailers.
func (re *Renderer) Render(d *decision.Decision, grpc bool, r *Response) {
	r.Reset()
	wait := re.wait(d)
	if !re.config.HideClientHeaders {
		re.limits(d, r)
		if wait > 0 {
			r.number("Retry-After", wait)
		}
		if re.config.DegradedHeader && d.Degraded {
			re.degradation(d, r)
		}
		if re.exposed != "" && len(r.Headers) > 0 {
			r.text("Access-Control-Expose-Headers", re.exposed)
		}
	}
	if !d.Denied() {
		return
	}
	r.Denied = true
	if grpc {
		re.trailers(d, r)
		return
	}
	r.Status = cmp.Or(denials[d.Reason].status, int(re.config.ErrorCode))
	if d.Reason == decision.StoreAway {
		r.Status = int(re.config.ClosedStatus)
	}
	r.text("Content-Type", "application/problem+json")
	re.body(d, wait, r)
}

// wait returns Retry-After in seconds: rounded up, at least 1, with jitter; 0 if no wait helps.
func (re *Renderer) wait(d *decision.Decision) int64 {
	switch {
	case !d.Denied():
		return 0
	case d.Reason == decision.TenantMissing || d.Reason == decision.UserMissing || d.Reason == decision.HeaderRepeated,
		d.Reason == decision.ModelUnpriced:
		return 0
	case d.Reason == decision.InternalFault || d.Reason == decision.ConfigFault:
		return 1
	case d.RetryAfter == limit.Never:
		return 0
	}
	wait := max(d.RetryAfter.Seconds(), 1)
	jitter := re.config.RetryAfterJitterMax
	if re.jitter != nil && d.Binding >= 0 && d.Resolution.Bounds[d.Binding].Policy.Limit.IsConcurrency() {
		jitter = max(jitter, wait) // it is an estimate, the same for all that are denied
	}
	if jitter > 0 {
		wait += re.jitter(jitter + 1)
	}
	return wait
}

// limits writes the headers about the bound whose numbers clients read, and the structured fields.
func (re *Renderer) limits(d *decision.Decision, r *Response) {
	shown := re.Binding(d)
	if shown < 0 {
		return
	}
	binding, status := d.Resolution.Bounds[shown].Policy, &d.Statuses[shown]
	capacity, remaining := binding.Limit.Spec().Burst, status.Remaining
	r.number("X-RateLimit-Limit", capacity)
	r.number("X-RateLimit-Remaining", remaining)
	r.number("X-RateLimit-Reset", status.ResetAt().Seconds())
	if re.config.ShowCost {
		cost := int64(0) // what the request took when it arrived: nothing if it was denied
		if !d.Denied() {
			cost = max(d.Resolution.Bounds[shown].Cost, 0)
		}
		r.number("X-RateLimit-Cost", cost)
	}
	if re.warns(d) {
		r.text("X-RateLimit-Warning", "true")
	}
	re.fields(d, shown, r)
	if re.config.KongHeaders {
		r.number("RateLimit-Limit", capacity)
		r.number("RateLimit-Remaining", remaining)
		r.number("RateLimit-Reset", max(untilMore(status), 1))
	}
}

// warns reports whether clients read a warning: the request is admitted, and is in the soft zone of a bound whose
// numbers they read.
func (re *Renderer) warns(d *decision.Decision) bool {
	if d.Result != decision.SoftThrottled {
		return false
	}
	for i := range d.Statuses {
		if bound := &d.Resolution.Bounds[i]; d.Statuses[i].Soft && bound.Decides() && re.Shows(bound) {
			return true
		}
	}
	return false
}

// degradation writes which enforced limits Redis did not answer for, and what decided instead. It omits limits in
// shadow, shared limits that do not deny, and what does not fit in maxField.
func (re *Renderer) degradation(d *decision.Decision, r *Response) {
	start := len(r.buf)
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if status.Failure == decision.NoFailure || !bound.Decides() || !re.Shows(bound) && !decision.Denies(bound, status) {
			continue
		}
		decidedBy := bound.Policy.FailMode.String()
		if status.Source == decision.Unanswered && bound.Policy.FailMode == policy.FailLocal {
			decidedBy = "unchecked" // another limit had denied the request already
		}
		if len(r.buf)-start+len(",=")+len(bound.Policy.Name)+len(decidedBy) > maxField {
			continue
		}
		r.separate(start)
		r.buf = append(append(append(r.buf, bound.Policy.Name...), '='), decidedBy...)
	}
	if len(r.buf) > start {
		r.end("X-RateLimit-Degraded", start)
	}
}

func (r *Response) number(name string, n int64) {
	start := len(r.buf)
	r.buf = strconv.AppendInt(r.buf, n, 10)
	r.end(name, start)
}

func (r *Response) text(name, value string) {
	start := len(r.buf)
	r.buf = append(r.buf, value...)
	r.end(name, start)
}

// end adds a header whose value was appended to buf since start. The value stays valid if buf grows later: it keeps
// its array.
func (r *Response) end(name string, start int) {
	r.Headers = append(r.Headers, Header{Name: name, Value: r.buf[start:len(r.buf):len(r.buf)]})
}
