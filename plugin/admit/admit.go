// Package admit is the path of a request: facts → identity → policies → buckets → decision → response, in one
// function, [Path.Admit].
//
// It declares the three things it needs from outside (facts about the request, buckets to spend from, observers to
// tell) and imports pure packages only. How facts are asked over a socket, and where buckets are kept, are the
// adapters' business.
package admit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// FactSource answers questions about one request.
type FactSource interface {
	// Ask fills the fields of req that facts names and adds them to req.Known, all in one round trip; which headers are
	// meant the rules say, which may be nil where none are. A fact that the request does not have is the field's zero
	// value, not an error.
	Ask(ctx context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error
}

// Buckets spends a request's bounds.
type Buckets interface {
	// Take asks every bound and then spends all of the enforced ones or none, atomically; a shadow bound is spent
	// alone, when the enforced ones admit and it would admit too. statuses has one element for each bound, in the
	// same order, and Take must fill all of them, also where it cannot be told whether there is room: see
	// decision.Failure. An error means that nothing at all could be asked. It must not keep either slice.
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
}

// Observer is told of every decision.
type Observer interface {
	// Observe is called once for each decision of Admit's. It must not block, and must not keep d or anything that d
	// refers to but strings.
	Observe(d *decision.Decision)
}

// Path is how the requests of one plugin config are admitted. Its fields are set once, but for the policies, which may
// be replaced at any time: a request is decided by those of its beginning. It is safe for concurrent use.
type Path struct {
	Policies  atomic.Pointer[policy.Snapshot]
	Now       func() limit.Micros // what tells which overrides hold; nil: there are none
	Elapsed   func() limit.Micros // a clock that never steps, by which the buckets are timed; nil: they are not
	Buckets   Buckets
	Meta      *Meta // nil: none
	Renderer  *response.Renderer
	Observers []Observer

	FailClosed bool // on_internal_error: refuse what cannot be decided
	RequestIDs bool // observers want the id of each request that is denied, or would be in shadow
}

// Exchange is the memory of one request, reused by the next. The zero value is ready.
type Exchange struct {
	Request  identity.Request
	Decision decision.Decision
	Response response.Response
}

// Admit decides one request and leaves the decision and the response in x. An error means that facts or buckets
// failed; x can be answered all the same: it then holds what on_internal_error says (observers are not told of that),
// or the refusal, if it was decided already.
func (p *Path) Admit(ctx context.Context, facts FactSource, x *Exchange) error {
	x.Request.Reset()
	d := &x.Decision
	d.Reset()

	// Who is it? Each answer tells what is still to be asked; nothing is asked that no limit needs.
	policies := p.Policies.Load()
	rules := &policies.Rules
	for missing := rules.Identify(&x.Request, &d.Identity); missing != 0; missing = rules.Identify(&x.Request, &d.Identity) {
		if err := facts.Ask(ctx, missing, rules, &x.Request); err != nil {
			p.Fault(x)
			return fmt.Errorf("ask for facts: %w", err)
		}
	}

	// Does this tenant leave the limiter itself time for others?
	d.Mode, d.PolicyVersion = policies.Mode(), policies.Version()
	wait, err := p.Meta.wait(ctx, &d.Identity)
	if err != nil {
		return errors.Join(fmt.Errorf("take the meta limit: %w", err), p.fault(ctx, facts, x))
	}

	// Which limits apply, and does every one of them have room? All are spent, or none. Where the buckets cannot be
	// reached, each limit's fail mode decides.
	now := read(p.Now)
	policies.ResolveAt(&d.Identity, now, &d.Resolution)
	switch {
	case d.Resolution.Banned:
		d.Ban(now)
	case wait > 0:
		d.DenyOrRecord(decision.MetaLimited, wait)
	case d.Resolution.Exempt:
	case d.Identity.Repeated != "":
		d.DenyOrRecord(decision.HeaderRepeated, 0)
	case d.Identity.TenantDenied:
		d.DenyOrRecord(decision.TenantMissing, 0)
	case d.Identity.UserDenied && d.Resolution.UserWanted:
		d.DenyOrRecord(decision.UserMissing, 0)
	}
	if len(d.Resolution.Bounds) > 0 {
		d.Grow()
		asked := read(p.Elapsed)
		if err := p.Buckets.Take(ctx, d.Resolution.Bounds, d.Statuses); err != nil {
			return errors.Join(fmt.Errorf("take %d bounds: %w", len(d.Statuses), err), p.fault(ctx, facts, x))
		}
		d.Took = read(p.Elapsed) - asked
		d.Combine()
	}

	// What does the client read? Only a refusal needs to know how it speaks; it stands even if that cannot be told.
	grpc, unanswered := p.askAtDenial(ctx, facts, x)
	p.Renderer.Render(d, grpc, &x.Response)

	for _, observer := range p.Observers {
		observer.Observe(d)
	}
	return unanswered
}

// askAtDenial asks for what only a denial needs, and reports whether the request is a gRPC call: that and the id of the
// request, if it is wanted. A denial in shadow needs the id alone.
func (p *Path) askAtDenial(ctx context.Context, facts FactSource, x *Exchange) (grpc bool, err error) {
	d, wanted := &x.Decision, identity.Facts(0)
	if p.RequestIDs && (d.Denied() || d.ShadowDenied) {
		wanted = identity.RequestIDFact
	}
	switch {
	case d.Denied():
		grpc, err = isGRPC(ctx, facts, &x.Request, wanted)
	case wanted != 0:
		if err = facts.Ask(ctx, wanted, nil, &x.Request); err != nil {
			err = fmt.Errorf("ask for the request's id: %w", err)
		}
	}
	d.RequestID = x.Request.ID
	return grpc, err
}

// isGRPC reports whether a request that is denied is a gRPC call. It asks for one fact at a time, because each makes
// the next superfluous for most requests, and for those that are wanted anyway beside the first.
func isGRPC(ctx context.Context, facts FactSource, req *identity.Request, wanted identity.Facts) (bool, error) {
	for {
		call, missing := req.GRPC()
		missing |= wanted &^ req.Known
		if missing == 0 {
			return call, nil
		}
		if err := facts.Ask(ctx, missing, nil, req); err != nil {
			return false, fmt.Errorf("ask whether it is a gRPC call: %w", err)
		}
	}
}

// read is what a clock shows; 0: there is none.
func read(clock func() limit.Micros) limit.Micros {
	if clock == nil {
		return 0
	}
	return clock()
}

// Fault answers a request that could not be decided, as on_internal_error says. It asks nothing more: a gRPC call is
// answered as one if its facts say so already.
func (p *Path) Fault(x *Exchange) {
	call, missing := x.Request.GRPC()
	x.uncounted(decision.InternalFault, p.FailClosed, call && missing == 0, p.Renderer)
}

// fault is Fault where facts can still be asked. The error is that of asking.
func (p *Path) fault(ctx context.Context, facts FactSource, x *Exchange) (err error) {
	if p.FailClosed {
		_, err = isGRPC(ctx, facts, &x.Request, 0)
	}
	p.Fault(x)
	return err
}

// Unconfigured answers a request of a plugin config that cannot be used, as its on_config_fault says. An error means
// that it could not be told whether a denied request is a gRPC call; x holds the answer all the same.
func Unconfigured(ctx context.Context, facts FactSource, refuse bool, x *Exchange) (err error) {
	x.Request.Reset()
	grpc := false
	if refuse {
		grpc, err = isGRPC(ctx, facts, &x.Request, 0)
	}
	x.uncounted(decision.ConfigFault, refuse, grpc, plain)
	return err
}

// plain renders where there is no config to say how.
var plain = response.New(schema.Config{}.WithDefaults(), nil)

func (x *Exchange) uncounted(reason decision.Reason, refuse, grpc bool, renderer *response.Renderer) {
	x.Decision.Reset()
	x.Decision.Reason = reason
	if refuse {
		x.Decision.Deny(reason)
	}
	renderer.Render(&x.Decision, grpc, &x.Response)
}
