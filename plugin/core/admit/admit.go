// Package admit is the path of a request: facts → identity → policies → buckets → decision → response, in one
// function, [Decider.Admit].
//
// It declares the interfaces that it needs and imports pure packages only. The adapters read facts from a socket and
// store buckets.
package admit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// FactSource reads facts about one request.
type FactSource interface {
	// Read fills the fields of req that facts names and adds them to req.Known, all in one round trip. rules name the
	// headers to read, and may be nil if facts has none. A fact that the request lacks is the field's zero value, not an
	// error.
	Read(ctx context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error
}

// Buckets spends a request's bounds.
type Buckets interface {
	// Take is the Take of store.Store (package plugin/bucket/store), with the same contract.
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
}

// TakeFunc adapts a function to Buckets.
type TakeFunc func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error

// Take calls f.
func (f TakeFunc) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return f(ctx, bounds, statuses)
}

// Observer receives every decision.
type Observer interface {
	// Observe is called once for each decision of Admit. It must not block, and must not keep d or anything that d
	// refers to except strings.
	Observe(d *decision.Decision)
}

// Shares keeps tenants to their fair shares of limits that they share (package plugin/bucket/share).
type Shares interface {
	// Cap sets the statuses of the bounds of d that the tenant's shares deny at an instant, and returns how many bounds
	// are to be taken: none if an enforced one denies. It moves bounds in shadow that its shares would deny behind those
	// to be taken. It must not block.
	Cap(d *decision.Decision, at limit.Micros) (take int)
	// Count counts a decision as demand. It must not block, and must not keep d or anything that d refers to except
	// strings.
	Count(d *decision.Decision)
}

// Reservations keeps what requests have reserved in limits that settle (package plugin/bucket/reservation).
type Reservations interface {
	// Keep is called with the decision of an admitted request. It returns the token by which the log phase settles what
	// was reserved, or "" if there is nothing to settle. It must not keep d or anything that d refers to except strings.
	Keep(d *decision.Decision) string
}

// Decider admits or denies the requests of one plugin config. Its fields are set once, except the policies, which may
// be replaced at any time: a request is decided by the policies in force at its start. It is safe for concurrent use.
type Decider struct {
	Policies  atomic.Pointer[resolve.Plan]
	Now       func() limit.Micros // decides which overrides are in force; nil: there are none
	Elapsed   func() limit.Micros // a monotonic clock that times takes; nil: they are not timed
	Buckets   Buckets
	Shares    Shares // nil: limits with shares are limits as others
	Meta      *Meta  // nil: none
	Renderer  *response.Renderer
	Observers []Observer

	Reservations Reservations // nil: what limits reserve stays charged
	Candidates   Candidates   // nil: an open candidate is enforced for its tenants, and not tried beside others
	Usage        *UsageReader // nil: requests are decided; else they are answered with the usage of their tenants

	FailClosed bool           // on_internal_error: deny what cannot be decided
	AtDenial   identity.Facts // read of each request that is denied, or would be outside shadow mode, for observers
}

// With returns a decider that decides like dr by the given plan, with other buckets. It decides the requests of the
// decision API: they are tried beside no candidate, and the API itself keeps what they reserve.
func (dr *Decider) With(plan *resolve.Plan, buckets Buckets) *Decider {
	next := &Decider{
		Now: dr.Now, Elapsed: dr.Elapsed, Buckets: buckets, Shares: dr.Shares, Meta: dr.Meta, Renderer: dr.Renderer,
		Observers: dr.Observers, FailClosed: dr.FailClosed, AtDenial: dr.AtDenial,
	}
	next.Policies.Store(plan)
	return next
}

// Exchange holds the memory of one request; the next one reuses it. The zero value is ready.
type Exchange struct {
	Request  identity.Request
	Decision decision.Decision
	Response response.Response

	Reservation string // token of what the request has reserved, for the log phase; "": nothing

	tried *otherFacts // of requests under a candidate that needs other facts; nil: none was open yet
}

// exchanges numbers the exchanges of the process.
var exchanges atomic.Uint32

// Admit decides one request and stores the decision and the response in x. An error means that facts or buckets failed;
// x holds a response all the same: the one of on_internal_error, which observers do not receive, or the denial if it
// was decided before.
func (dr *Decider) Admit(ctx context.Context, source FactSource, x *Exchange) error {
	x.Request.Reset()
	x.Reservation = ""
	d := &x.Decision
	d.Reset()
	if d.Exchange == 0 {
		d.Exchange = exchanges.Add(1)
	}
	if dr.Usage != nil {
		return dr.answerUsage(ctx, source, x)
	}

	// Who is it?
	policies := dr.Policies.Load()
	rules := &policies.Rules
	if err := Identify(ctx, source, rules, &x.Request, &d.Identity); err != nil {
		dr.Fault(x)
		return err
	}
	// Is a candidate open? It replaces the policies of an assigned tenant; other requests are only tried under it.
	trial := dr.trial(ctx, source, policies.Candidate(), x)

	// Is this tenant within meta_limit, which protects the limiter itself?
	d.Mode, d.PolicyVersion = policies.Mode(), policies.Version()
	wait, err := dr.Meta.wait(ctx, &d.Identity)
	if err != nil {
		return errors.Join(fmt.Errorf("take the meta limit: %w", err), dr.readAndFault(ctx, source, x))
	}

	// Which limits apply, and does every one have room? All are spent, or none. Where a store does not answer, each
	// limit's fail mode decides.
	now := readClock(dr.Now)
	if trial.Enforced {
		trial.Candidate.ResolveAt(&d.Identity, now, &d.Resolution)
	} else {
		policies.ResolveAt(&d.Identity, now, &d.Resolution)
	}
	checkIdentity(d, now, wait)
	if len(d.Resolution.Bounds) > 0 {
		if err := dr.take(ctx, d, now); err != nil {
			return errors.Join(err, dr.readAndFault(ctx, source, x))
		}
		if d.Resolution.Settles && !d.Denied() && dr.Reservations != nil {
			x.Reservation = dr.Reservations.Keep(d)
		}
	}
	d.RecordExemption()

	// What does the client read? Only a denial must know whether the request is gRPC; it stands even if that is unknown.
	grpc, unanswered := dr.readAtDenial(ctx, source, rules, x)
	dr.Renderer.Render(d, grpc, &x.Response)

	for _, observer := range dr.Observers {
		observer.Observe(d)
	}
	if trial.Candidate != nil && dr.Candidates != nil {
		trial.At, trial.Reservation = now, x.Reservation
		dr.Candidates.Offer(trial, d)
	}
	return unanswered
}

// Identify reads the facts that rules need, in rounds, and identifies the request. Each round returns the facts that
// are still needed; no fact is read that no limit needs.
func Identify(
	ctx context.Context, source FactSource, rules *identity.Rules, req *identity.Request, id *identity.Identity,
) error {
	for {
		missing := rules.Identify(req, id)
		if missing == 0 {
			return nil
		}
		if err := source.Read(ctx, missing, rules, req); err != nil {
			return fmt.Errorf("read facts: %w", err)
		}
	}
}

// checkIdentity denies a resolved request for what is not a matter of its bounds. wait is the wait of the meta limit.
func checkIdentity(d *decision.Decision, now, wait limit.Micros) {
	switch {
	case d.Resolution.Banned:
		d.Ban(now)
	case wait > 0:
		d.DenyOrRecord(decision.MetaLimited, wait)
	case d.Identity.Repeated != "": // before exemptions: without its identity no ban of the request is found
		d.DenyOrRecord(decision.HeaderRepeated, 0)
	case d.Resolution.Exempt:
	case d.Resolution.Preflight:
	case d.Identity.TenantDenied:
		d.DenyOrRecord(decision.TenantMissing, 0)
	case d.Identity.UserDenied && d.Resolution.UserRequired:
		d.DenyOrRecord(decision.UserMissing, 0)
	case d.Resolution.Unpriced:
		d.DenyOrRecord(decision.ModelUnpriced, 0)
	}
}

// take spends the bounds of a request, and combines their statuses. A request whose tenant has used its share of one
// spends nothing.
func (dr *Decider) take(ctx context.Context, d *decision.Decision, now limit.Micros) error {
	d.Grow()
	n, started, fair := len(d.Statuses), readClock(dr.Elapsed), d.Resolution.Fair && dr.Shares != nil
	if fair {
		n = dr.Shares.Cap(d, now)
	}
	if n > 0 {
		if err := dr.Buckets.Take(ctx, d.Resolution.Bounds[:n], d.Statuses[:n]); err != nil {
			return fmt.Errorf("take %d bounds: %w", n, err)
		}
	}
	d.Took = readClock(dr.Elapsed) - started
	if d.Combine(); fair {
		dr.Shares.Count(d)
	}
	return nil
}

// readAtDenial reads the facts that only a denial needs: whether the request is a gRPC call, which it reports, and
// those that observers want. A denial in shadow needs the latter alone.
func (dr *Decider) readAtDenial(
	ctx context.Context, source FactSource, rules *identity.Rules, x *Exchange,
) (grpc bool, err error) {
	d, wanted := &x.Decision, identity.Facts(0)
	if d.Denied() || d.ShadowDenied {
		wanted = dr.AtDenial &^ x.Request.Known
	}
	switch {
	case d.Denied():
		grpc, err = isGRPC(ctx, source, &x.Request, wanted)
	case wanted != 0:
		if err = source.Read(ctx, wanted, nil, &x.Request); err != nil {
			err = fmt.Errorf("read the facts of a denial: %w", err)
		}
	}
	d.RequestID = x.Request.ID
	if wanted&identity.IPFact != 0 && x.Request.IP != "" {
		d.Identity.IP = rules.AddressOf(x.Request.IP)
	}
	return grpc, err
}

// isGRPC reports whether a denied request is a gRPC call. It reads the facts in two rounds at most, because the first
// makes the second superfluous for most requests; the wanted facts go along with the first.
func isGRPC(ctx context.Context, source FactSource, req *identity.Request, wanted identity.Facts) (bool, error) {
	for {
		call, missing := req.GRPC()
		missing |= wanted &^ req.Known
		if missing == 0 {
			return call, nil
		}
		if err := source.Read(ctx, missing, nil, req); err != nil {
			return false, fmt.Errorf("read whether it is a gRPC call: %w", err)
		}
	}
}

// readClock returns the time of a clock, 0 if there is no clock.
func readClock(clock func() limit.Micros) limit.Micros {
	if clock == nil {
		return 0
	}
	return clock()
}

// Fault answers a request that could not be decided, as on_internal_error says. It reads no more facts: a gRPC call is
// answered as one if the known facts say so.
func (dr *Decider) Fault(x *Exchange) {
	call, missing := x.Request.GRPC()
	x.answerUncounted(decision.InternalFault, dr.FailClosed, call && missing == 0, dr.Renderer)
}

// readAndFault reads whether the request is a gRPC call, and then calls Fault. It returns the error of reading.
func (dr *Decider) readAndFault(ctx context.Context, source FactSource, x *Exchange) (err error) {
	if dr.FailClosed {
		_, err = isGRPC(ctx, source, &x.Request, 0)
	}
	dr.Fault(x)
	return err
}

// Unconfigured answers a request of a plugin config that cannot be used, as its on_config_fault says. An error means
// that the facts that identify a gRPC call could not be read; x holds the answer all the same.
func Unconfigured(ctx context.Context, source FactSource, deny bool, x *Exchange) (err error) {
	x.Request.Reset()
	grpc := false
	if deny {
		grpc, err = isGRPC(ctx, source, &x.Request, 0)
	}
	x.answerUncounted(decision.ConfigFault, deny, grpc, plain())
	return err
}

// UnconfiguredFault answers a request of such a config if it could not be handled. It reads no facts, as
// [Decider.Fault].
func UnconfiguredFault(deny bool, x *Exchange) {
	decider := Decider{Renderer: plain(), FailClosed: deny}
	decider.Fault(x)
}

// plain renders responses for requests without a usable config. It is made when it is needed: that takes 4 ms.
var plain = sync.OnceValue(func() *response.Renderer { return response.New(schema.Config{}.WithDefaults(), nil) })

// answerUncounted answers a request that no limit counts.
func (x *Exchange) answerUncounted(reason decision.Reason, deny, grpc bool, renderer *response.Renderer) {
	x.Decision.Reset()
	x.Reservation = ""
	x.Decision.Reason = reason
	if deny {
		x.Decision.Deny(reason)
	}
	renderer.Render(&x.Decision, grpc, &x.Response)
}
