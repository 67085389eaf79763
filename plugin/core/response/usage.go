package response

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Usage is what a tenant reads about its own limits.
type Usage struct {
	Tenant    string      `json:"tenant"`
	User      string      `json:"user,omitempty"`
	Tier      string      `json:"tier,omitempty"`
	Endpoint  string      `json:"endpoint,omitempty"`  // the one that was named in the request
	Exempt    bool        `json:"exempt,omitempty"`    // no limit applies
	Degraded  bool        `json:"degraded,omitempty"`  // some limits have no numbers, because Redis did not answer
	Truncated bool        `json:"truncated,omitempty"` // there are more limits
	Limits    []LimitUsed `json:"limits"`
}

// LimitUsed is the current state of one limit. Its numbers are nil where Redis did not answer.
type LimitUsed struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	PublicNote  string `json:"public_note,omitempty"`
	Scope       string `json:"scope"`
	Endpoint    string `json:"endpoint,omitempty"`
	Limit       int64  `json:"limit"` // as in X-RateLimit-Limit
	Quota       int64  `json:"quota"` // as q of RateLimit-Policy

	Unit  string        `json:"unit,omitempty"`  // usd: the numbers are millionths of a US dollar
	Match *schema.Match `json:"match,omitempty"` // the calls of models that it counts

	schema.Window // what it counts over

	Used      *int64 `json:"used,omitempty"`
	Remaining *int64 `json:"remaining,omitempty"`
	Reset     int64  `json:"reset,omitempty"` // seconds since 1970, as in X-RateLimit-Reset
	ResetAt   string `json:"reset_at,omitempty"`
}

// NewUsage returns what the tenant of a decision reads about the decision's bounds, which were peeked at.
func NewUsage(d *decision.Decision, endpoint string) Usage {
	u := Usage{
		Tenant: d.Identity.Tenant.ID, Tier: d.Resolution.Tier, Endpoint: endpoint, Exempt: d.Resolution.Exempt,
		Limits: make([]LimitUsed, 0, len(d.Statuses)),
	}
	if d.Identity.User.Kind == identity.User {
		u.User = d.Identity.User.ID
	}
	for i := range d.Statuses {
		used, status := limitUsed(&d.Resolution.Bounds[i]), &d.Statuses[i]
		if status.Source == decision.Unanswered || status.Failure != decision.NoFailure {
			u.Degraded = true
		} else {
			used.Used, used.Remaining, used.Reset = &status.Used, &status.Remaining, status.Reset.Seconds()
			used.ResetAt = time.Unix(used.Reset, 0).UTC().Format(time.RFC3339)
		}
		u.Limits = append(u.Limits, used)
	}
	return u
}

// limitUsed returns a limit without its numbers.
func limitUsed(b *policy.Bound) LimitUsed {
	spec := b.Policy.Limit.Spec()
	used := LimitUsed{
		Name:        b.Policy.Name,
		Description: b.Policy.Description,
		PublicNote:  b.Policy.PublicNote,
		Scope:       b.Policy.Scope.String(),
		Endpoint:    cmp.Or(b.Policy.Endpoint, b.Key.Endpoint),
		Limit:       spec.Burst,
		Quota:       spec.Quantity,
		Window:      policy.WindowOf(spec),
		Unit:        b.Policy.Unit,
		Match:       b.Policy.Settle.Match(),
	}
	if b.Key.Group == policy.ByEndpoint {
		used.Endpoint = b.Key.GroupID
	}
	return used
}

// SetUsage makes the body of a usage the response.
func (r *Response) SetUsage(body []byte) {
	r.answer(200, "application/json", body)
}

// The methods of a route that shows usage.
const usageMethods = "GET, HEAD, OPTIONS"

// SetUsageOptions makes the methods of a route that shows usage the response.
func (r *Response) SetUsageOptions() {
	r.answer(204, "", nil)
	r.text("Allow", usageMethods)
}

// SetUsageMethod makes the problem of a request for usage by another method the response.
func (r *Response) SetUsageMethod() {
	r.problem(405, "Method Not Allowed", "Usage is read by GET or HEAD.")
	r.text("Allow", usageMethods)
}

// SetUsageFault makes the problem of a malformed request for usage the response. detail needs no escaping in JSON.
func (r *Response) SetUsageFault(detail string) { r.problem(400, "Bad Request", detail) }

// problem makes a problem document (RFC 9457) the response.
func (r *Response) problem(status int, title, detail string) {
	r.answer(status, "application/problem+json", fmt.Appendf(nil,
		`{"type":"about:blank","title":"%s","detail":"%s","status":%d,"message":"%s"}`, title, detail, status, title))
}

// answer makes r a response about usage, which no cache keeps.
func (r *Response) answer(status int, contentType string, body []byte) {
	r.Reset()
	r.Usage, r.Status = true, status
	r.Body = append(r.Body, body...)
	if contentType != "" {
		r.text("Content-Type", contentType)
	}
	r.text("Cache-Control", "no-store")
}
