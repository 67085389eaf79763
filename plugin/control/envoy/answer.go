package envoy

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const day = 86400 * limit.Second

// windows are the lengths of Envoy's units, by their numbers. A month and a year of a calendar have these units too.
var windows = map[rls.RateLimitResponse_RateLimit_Unit]limit.Micros{
	rls.RateLimitResponse_RateLimit_SECOND: limit.Second,
	rls.RateLimitResponse_RateLimit_MINUTE: 60 * limit.Second,
	rls.RateLimitResponse_RateLimit_HOUR:   3600 * limit.Second,
	rls.RateLimitResponse_RateLimit_DAY:    day,
	rls.RateLimitResponse_RateLimit_WEEK:   7 * day,
	rls.RateLimitResponse_RateLimit_MONTH:  30 * day,
	rls.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

// unitOf returns the unit of a limit's window; UNKNOWN: Envoy has none.
func unitOf(l *limit.Limit) rls.RateLimitResponse_RateLimit_Unit {
	if c := l.Calendar(); c != nil {
		number := rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(c.Period().String())]
		return rls.RateLimitResponse_RateLimit_Unit(number)
	}
	for unit, window := range windows {
		if window == l.Spec().Window && !l.IsConcurrency() {
			return unit
		}
	}
	return rls.RateLimitResponse_RateLimit_UNKNOWN
}

// answerOf returns the answer to a call, but for the statuses of its descriptors.
func (s *Server) answerOf(call *rls.RateLimitRequest, whole *admit.Exchange, draft bool) *rls.RateLimitResponse {
	answer := unlimited(call)
	if whole.Decision.Denied() {
		answer.OverallCode = rls.RateLimitResponse_OVER_LIMIT
		answer.RawBody = bytes.Clone(whole.Response.Body) // its memory is used again
	}
	answer.ResponseHeadersToAdd = s.headersOf(whole, draft)
	return answer
}

// setStatus sets the answer about one descriptor: its own limit that binds.
func (s *Server) setStatus(out *rls.RateLimitResponse_DescriptorStatus, d *decision.Decision) {
	if d.Denied() {
		out.Code = rls.RateLimitResponse_OVER_LIMIT
	}
	shown := s.Decider.Renderer.Binding(d)
	if shown < 0 {
		return
	}
	b, status := &d.Resolution.Bounds[shown], &d.Statuses[shown]
	out.CurrentLimit = &rls.RateLimitResponse_RateLimit{
		Name: b.Policy.Name, RequestsPerUnit: clamp(b.Policy.Limit.Spec().Burst), Unit: unitOf(&b.Policy.Limit),
	}
	out.LimitRemaining = clamp(status.Remaining)
	out.DurationUntilReset = durationpb.New(time.Duration(untilReset(status)) * time.Microsecond)
}

// untilReset returns the time until the bucket is full again or its window ends.
func untilReset(s *decision.Status) limit.Micros { return max(s.ResetAt()-s.Now, 0) }

func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// headersOf returns the headers that the client reads: those of the policies, or with draft those that Envoy itself
// writes.
func (s *Server) headersOf(whole *admit.Exchange, draft bool) (headers []*core.HeaderValue) {
	if draft {
		headers = s.draft(&whole.Decision)
	}
	for _, h := range whole.Response.Headers {
		if !draft || h.Name == "Content-Type" || h.Name == "Retry-After" {
			headers = append(headers, &core.HeaderValue{Key: strings.ToLower(h.Name), Value: string(h.Value)})
		}
	}
	return headers
}

// draft returns the headers of draft-polli-ratelimit-headers-03, as Envoy writes them: the limit that binds, then
// limits with their windows in seconds, up to the first beyond 1 KiB; and the time until the reset in seconds.
func (s *Server) draft(d *decision.Decision) []*core.HeaderValue {
	shown := s.Decider.Renderer.Binding(d)
	if shown < 0 {
		return nil
	}
	binding := &d.Statuses[shown]
	limits := strconv.AppendInt(nil, d.Resolution.Bounds[shown].Policy.Limit.Spec().Burst, 10)
	for i := range d.Statuses {
		b, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if b.Enforced() && status.Source != decision.Unanswered && s.Decider.Renderer.Shows(b) && len(limits) < 1<<10 {
			window := b.Policy.Limit.WindowAt(status.Now).Seconds()
			limits = fmt.Appendf(limits, `, %d;w=%d;name="%s"`, b.Policy.Limit.Spec().Burst, window, b.Policy.Name)
		}
	}
	return []*core.HeaderValue{
		{Key: "x-ratelimit-limit", Value: string(limits)},
		{Key: "x-ratelimit-remaining", Value: strconv.FormatInt(binding.Remaining, 10)},
		{Key: "x-ratelimit-reset", Value: strconv.FormatInt(untilReset(binding).Seconds(), 10)},
	}
}

// limitOf returns the limit that a descriptor states for itself, for a cost. Its bucket belongs to the descriptor and
// the window: it is that of a tenant whose name no client can choose. A name is hashed if it has this form or is longer
// than 128 bytes, and here 32 are hashed.
func limitOf(domain string, d *common.RateLimitDescriptor, cost int64) (*policy.Bound, error) {
	stated := d.GetLimit()
	window, known := windows[rls.RateLimitResponse_RateLimit_Unit(stated.GetUnit())]
	if !known {
		return nil, fmt.Errorf("unit: %s, must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR", stated.GetUnit())
	}
	if n := stated.GetUnitMultiplier(); n != nil {
		window *= min(limit.Micros(n.GetValue()), limit.MaxWindow/window+1) // limit.New denies what is longer
	}
	l, err := limit.Nothing(window)
	if quantity := int64(stated.GetRequestsPerUnit()); quantity > 0 {
		l, err = limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity, Window: window})
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %d", domain, window)
	for _, e := range d.GetEntries() {
		fmt.Fprintf(sum, " %q=%q", e.GetKey(), e.GetValue())
	}
	p := &policy.Policy{Name: "descriptor", Scope: policy.Tenant, Accuracy: policy.Exact, Cost: -1, Pattern: -1, Limit: l}
	hash := sha256.Sum256(sum.Sum(nil))
	key := policy.Key{Policy: p.Name, Group: policy.ByTenant, GroupID: fmt.Sprintf("sha256:%x", hash)}
	return &policy.Bound{Policy: p, Key: key, Cost: max(cost, 1)}, nil
}
