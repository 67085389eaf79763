// Package envoy answers Envoy's global rate limit protocol, envoy.service.ratelimit.v3, with the decisions that the
// plugin makes: by the same policies, and from the same buckets.
//
// A [Mapping] reads from each descriptor of a call whom the request is from. All descriptors of a call are one decision
// of package admit: all spend, or none. A descriptor whose hits_addend is 0 spends nothing: it is over its limit if a
// request of the usual cost would be. The protocol has no call that settles or releases what an earlier one took.
package envoy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

const (
	maxDescriptors = 100
	maxEntries     = 32         // of a descriptor
	maxText        = 64<<10 - 1 // bytes of a key or a value: Envoy's longest header has 60 KiB
)

// Options configures a Server. All fields but TLS are required.
type Options struct {
	Listen  string      // host:port
	TLS     *tls.Config // nil: callers connect in plain text
	Mapping Mapping
	Decider *admit.Decider // its policies are compiled for callers
	Peeker  admit.Peeker   // reads what the decider's buckets would answer
	// Ready reports whether the policies in force are loaded. Until then calls are answered with UNAVAILABLE.
	Ready   func() bool
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// ShouldRateLimit decides about the descriptors of a call. A call that is malformed, late or early is an error; then
// nothing was spent, and failure_mode_deny of the proxy decides.
func (s *Server) ShouldRateLimit(ctx context.Context, call *rls.RateLimitRequest) (a *rls.RateLimitResponse, _ error) {
	defer func() {
		if cause := recover(); cause != nil { // it would end the process
			s.answered.WithLabelValues("panic").Inc()
			a = s.fault(call, fmt.Errorf("panic: %v\n%s", cause, debug.Stack()))
		}
	}()
	a, err := s.answer(ctx, call)
	s.count(a, err)
	return a, err
}

// fault answers a call about which nothing could be decided.
func (s *Server) fault(call *rls.RateLimitRequest, why error) *rls.RateLimitResponse {
	s.Log.Error("decide a call of Envoy: on_internal_error applies", "error", why)
	whole := new(admit.Exchange)
	s.Decider.Fault(whole)
	answer := s.answerOf(call, whole, false)
	for _, of := range answer.Statuses {
		s.setStatus(of, &whole.Decision)
	}
	return answer
}

func (s *Server) answer(ctx context.Context, call *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	if err := checkCall(call); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	mapped, known := s.Mapping[call.GetDomain()]
	if !known {
		s.ignored.WithLabelValues(ignoredDomain).Inc()
		return unlimited(call), nil
	}
	if !s.Ready() {
		return nil, status.Error(codes.Unavailable, admit.WarmingUp)
	}
	joint := s.memory.Get().(*admit.Joint)
	defer s.memory.Put(joint)
	places, err := s.readParts(call, mapped, joint)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if len(places) == 0 {
		return unlimited(call), nil
	}
	// The deadline is of the answer: if it ended a call of Redis, that would count as one that Redis was too slow for.
	whole, err := s.Decider.AdmitAll(context.WithoutCancel(ctx), s.Peeker, joint)
	if errors.Is(err, admit.ErrTooMany) {
		return nil, status.Error(codes.InvalidArgument, "descriptors: "+err.Error())
	}
	if err != nil {
		return s.fault(call, err), nil
	}
	answer := s.answerOf(call, whole, mapped.draftHeaders)
	for i, place := range places {
		s.setStatus(answer.Statuses[place], &joint.Parts[i].Decision)
	}
	return answer, nil
}

// checkCall returns an error that names the field of a call that is malformed.
func checkCall(call *rls.RateLimitRequest) error {
	switch n := len(call.GetDescriptors()); {
	case call.GetDomain() == "":
		return fmt.Errorf("domain: is required: set it in the rate limit filter of Envoy")
	case n == 0:
		return fmt.Errorf("descriptors: at least one is required")
	case n > maxDescriptors:
		return fmt.Errorf("descriptors: %d, must be at most %d", n, maxDescriptors)
	case call.GetHitsAddend() > identity.MaxCallerCost:
		return fmt.Errorf("hits_addend: %d, must be at most %d", call.GetHitsAddend(), int64(identity.MaxCallerCost))
	}
	for i, d := range call.GetDescriptors() {
		if err := checkDescriptor(d); err != nil {
			return fmt.Errorf("descriptors[%d].%w", i, err)
		}
	}
	return nil
}

func checkDescriptor(d *common.RateLimitDescriptor) error {
	switch {
	case len(d.GetEntries()) == 0:
		return fmt.Errorf("entries: at least one is required")
	case len(d.GetEntries()) > maxEntries:
		return fmt.Errorf("entries: %d, must be at most %d", len(d.GetEntries()), maxEntries)
	case d.GetHitsAddend().GetValue() > identity.MaxCallerCost:
		return fmt.Errorf("hits_addend: %d, must be at most %d", d.GetHitsAddend().GetValue(), int64(identity.MaxCallerCost))
	case d.GetIsNegativeHits():
		return fmt.Errorf("is_negative_hits: nothing is given back by this protocol: reserve and settle by the decision API")
	}
	for i, e := range d.GetEntries() {
		if n := max(len(e.GetKey()), len(e.GetValue())); n > maxText {
			return fmt.Errorf("entries[%d]: its key or value has %d bytes, must be at most %d", i, n, maxText)
		}
	}
	return nil
}

// readParts fills j with the descriptors of a call of which something is mapped, and returns their places in the call.
func (s *Server) readParts(call *rls.RateLimitRequest, d *domain, j *admit.Joint) (places []int, err error) {
	n := len(call.GetDescriptors())
	parts := slices.Grow(j.Parts[:0], n)[:n] // keeps the memory of earlier calls
	for i, descriptor := range call.GetDescriptors() {
		p := &parts[len(places)]
		p.Asks, p.Beside = false, nil
		if !d.read(descriptor, &p.Facts) {
			s.ignored.WithLabelValues(ignoredDescriptor).Inc()
			continue
		}
		p.Facts.Cost = int64(call.GetHitsAddend())
		if hits := descriptor.GetHitsAddend(); hits != nil {
			p.Facts.Cost, p.Asks = int64(hits.GetValue()), hits.GetValue() == 0
		}
		switch limit := descriptor.GetLimit(); {
		case limit == nil:
		case !d.overridesLimit:
			s.ignored.WithLabelValues(ignoredLimit).Inc()
		default:
			if p.Beside, err = limitOf(call.GetDomain(), descriptor, p.Facts.Cost); err != nil {
				return nil, fmt.Errorf("descriptors[%d].limit: %w", i, err)
			}
		}
		places = append(places, i)
	}
	j.Parts = parts[:len(places)]
	return places, nil
}

// unlimited returns an answer that admits a call, with no limit for any descriptor.
func unlimited(call *rls.RateLimitRequest) *rls.RateLimitResponse {
	statuses := make([]rls.RateLimitResponse_DescriptorStatus, len(call.GetDescriptors())) // one allocation
	answer := &rls.RateLimitResponse{
		OverallCode: rls.RateLimitResponse_OK, Statuses: make([]*rls.RateLimitResponse_DescriptorStatus, len(statuses)),
	}
	for i := range statuses {
		statuses[i].Code = rls.RateLimitResponse_OK
		answer.Statuses[i] = &statuses[i]
	}
	return answer
}
