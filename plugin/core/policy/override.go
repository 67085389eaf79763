package policy

import (
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// kind selects what an override does, the strongest first.
type kind uint8

const (
	ban kind = iota
	exempt
	customLimit
	multiplier
	topUp
)

var kindNames = [...]string{
	schema.KindBan, schema.KindExempt, schema.KindCustomLimit, schema.KindMultiplier, schema.KindTopUp,
}

// target selects what an override applies to, the most specific first.
type target uint8

const (
	onUserEndpoint target = iota
	onUser
	onCredential
	onIP
	onTag
	onEndpoint
	onTenant
	onEndpointOfAll // an endpoint in requests of all tenants
	targets
)

var targetNames = [targets]string{
	"user+endpoint", "user", "credential", "ip", "tag", "endpoint", "tenant", "endpoint of all tenants",
}

// CompiledOverride holds a compiled Override. It is immutable except for derived, a cache. The fields that every
// request reads come first: they share a cache line.
type CompiledOverride struct {
	ID       int64
	Starts   limit.Micros   // 0: it has begun
	Expires  limit.Micros   // 0: never
	derived  cache[*Policy] // by base
	kind     kind
	target   target
	Detector bool
	bits     uint8 // of a network
	Tenant   string
	policy   string
	endpoint string

	targetName     string // the user, credential, network or tag; "" for a tenant's and an endpoint's
	quantity       int64  // tokens, of a top-up those that it adds; a multiplier's factor in thousandths
	window         limit.Micros
	burst          int64
	reason, author string
	publicNote     string
}

func (o *CompiledOverride) rowID() int64    { return o.ID }
func (o *CompiledOverride) pattern() string { return o.endpoint }

// apply returns base changed by o, or base itself if its algorithm cannot count o's numbers exactly. The first request
// that needs a result derives it; later ones get the cached one.
func (o *CompiledOverride) apply(base *Policy) *Policy {
	return o.derived.get(base, o.derive)
}

func (o *CompiledOverride) derive(base *Policy) *Policy {
	spec := base.Limit.Spec()
	switch o.kind {
	case customLimit:
		spec = o.withCustomLimit(spec)
	case topUp:
		spec.Quantity, spec.Burst = min(spec.Quantity+o.quantity, limit.MaxQuantity), 0
	default:
		spec = scaled(spec, o.quantity)
	}
	compiled, err := limit.New(spec)
	if seconds := int64(spec.Window / limit.Second); err != nil && o.kind == multiplier && spec.Quantity > seconds {
		// A whole number of tokens per second needs no fine fraction, so nearly every such limit can be counted.
		spec.Quantity -= spec.Quantity % seconds
		compiled, err = limit.New(spec)
	}
	if err != nil {
		return base
	}
	return base.withLimit(compiled)
}

// withCustomLimit returns a spec with o's numbers; its algorithm and thresholds stay, and so does a calendar or the
// longest duration of concurrency.
func (o *CompiledOverride) withCustomLimit(spec limit.Spec) limit.Spec {
	spec.Quantity, spec.Burst = o.quantity, 0
	if o.window > 0 && spec.Calendar == nil && spec.Algorithm != limit.Concurrency {
		spec.Window = o.window
	}
	if isBucket(spec.Algorithm) {
		spec.Burst = o.burst
	}
	return spec
}

// MostOf returns the largest quantity that an algorithm can count.
func MostOf(a limit.Algorithm) int64 {
	switch a {
	case limit.SlidingLog:
		return limit.MaxLogQuantity
	case limit.Concurrency:
		return limit.MaxSlots
	default:
		return limit.MaxQuantity
	}
}

// scaled returns a spec times factor ÷ 1000: rounded down, at least 1, at most what its algorithm can count. Thresholds
// are percentages, so they scale with it. A leaky bucket without a burst stays without.
func scaled(spec limit.Spec, factor int64) limit.Spec {
	most := MostOf(spec.Algorithm)
	times := func(n int64) int64 { return min(max(n*factor/1000, 1), most) }
	spec.Quantity = times(spec.Quantity)
	switch {
	case !isBucket(spec.Algorithm):
		spec.Burst = 0
	case spec.Algorithm != limit.LeakyBucket || spec.Burst > 1:
		spec.Burst = times(spec.Burst)
	}
	return spec
}

// ActiveAt reports whether o is in force at an instant: from starts on, and before expires.
func (o *CompiledOverride) ActiveAt(now limit.Micros) bool { return isActive(o.Starts, o.Expires, now) }

// isActive reports whether an instant is between a start and an end; 0 is no bound.
func isActive(starts, expires, now limit.Micros) bool {
	return (starts == 0 || starts <= now) && (expires == 0 || now < expires)
}

// IsBan reports whether o bans the requests that it covers.
func (o *CompiledOverride) IsBan() bool { return o.kind == ban }

// IsExemption reports whether o lifts all limits from the requests that it covers.
func (o *CompiledOverride) IsExemption() bool { return o.kind == exempt }

// IsTopUp reports whether o adds to a limit until its period ends.
func (o *CompiledOverride) IsTopUp() bool { return o.kind == topUp }

// TargetText returns what kind of thing o applies to, in words: "user+endpoint", "tenant".
func (o *CompiledOverride) TargetText() string { return targetNames[o.target] }

// Covers reports whether o changes the limit of a bound. An override that names a policy changes that policy. One that
// names none changes the limits with buckets of its target alone. So a user's factor does not change the limit of the
// whole tenant, and a tenant's does not change shared limits. A top-up changes a calendar limit of its policy, if that
// has buckets of its target.
func (o *CompiledOverride) Covers(b *Bound) bool {
	switch {
	case o.policy != "" && o.policy != b.Policy.Name:
		return false
	case o.kind == topUp && b.Policy.Limit.Calendar() == nil:
		return false
	case o.policy != "" && o.kind != topUp:
		return true
	}
	byEndpoint := b.Key.Endpoint != "" && b.Key.Group == ByTenant
	switch o.target {
	case onUserEndpoint:
		return b.Key.Kind == KindUser && byEndpoint
	case onUser:
		return b.Key.Kind == KindUser
	case onCredential:
		return b.Key.Kind == KindCredential
	case onIP:
		return b.Key.Kind == KindIP || b.Key.Group == ByIP
	case onTag, onEndpointOfAll:
		return false // they exempt, and change no limit
	case onEndpoint:
		return byEndpoint
	default:
		return b.Key.Group == ByTenant
	}
}

// Normalized returns the override as it was given, except for spellings that mean the same.
func (o *CompiledOverride) Normalized() Override {
	out := Override{ID: o.ID, Override: schema.Override{
		Kind: kindNames[o.kind], Tenant: o.Tenant, Endpoint: o.endpoint, Policy: o.policy,
		Reason: o.reason, Author: o.author, PublicNote: o.publicNote, Permanent: o.Expires == 0,
		Source: schema.SourceCommercial,
	}}
	if o.Starts != 0 {
		out.StartsAt, out.Source = time.UnixMicro(int64(o.Starts)).UTC(), schema.SourceScheduled
	}
	if o.Expires != 0 {
		out.ExpiresAt = time.UnixMicro(int64(o.Expires)).UTC()
	}
	switch o.target {
	case onUser, onUserEndpoint:
		out.User = o.targetName
	case onCredential:
		out.Credential = o.targetName
	case onIP:
		out.IP = o.targetName
	case onTag:
		out.Tag = o.targetName
	default:
	}
	switch o.kind {
	case customLimit:
		out.Limit, out.WindowSize, out.Burst = o.quantity, int64(o.window/limit.Second), o.burst
	case multiplier:
		out.Factor = schema.Factor(o.quantity)
	case topUp:
		out.Amount = o.quantity
	default:
	}
	if o.Detector {
		out.Source = schema.SourceDetector
	}
	return out
}

// compileOverride compiles one override of a database; nil: it has faults. Of an override that compiles, whether its
// endpoint goes with others is found when they are compiled together.
func compileOverride(in Override) *CompiledOverride {
	o := &CompiledOverride{
		ID: in.ID, kind: kind(slices.Index(kindNames[:], in.Kind)), Detector: in.Source == schema.SourceDetector,
		Tenant: in.Tenant, endpoint: in.Endpoint, policy: in.Policy,
		reason: in.Reason, author: in.Author, publicNote: in.PublicNote,
		Starts: micros(in.StartsAt), Expires: micros(in.ExpiresAt),
	}
	if !in.valid() || !o.setTarget(in) {
		return nil
	}
	switch o.kind {
	case customLimit:
		o.quantity, o.window, o.burst = in.Limit, windowMicros(in.WindowSize), in.Burst
	case multiplier:
		o.quantity = int64(in.Factor)
	case topUp:
		o.quantity = in.Amount
	default:
	}
	return o
}

// valid reports whether a node can use a row, apart from its address. It accepts some rows that OverrideFaults rejects,
// and is cheaper.
func (in *Override) valid() bool {
	if in.Kind == schema.KindCustomLimit {
		if _, err := limit.New(customSpec(in.Override)); err != nil {
			return false
		}
	}
	return len(in.Conflicts()) == 0 && slices.Contains(kindNames[:], in.Kind) && isAmong(sources, in.Source) &&
		len(in.Tenant) <= maxPart && len(in.User) <= maxPart && len(in.Credential) <= maxPart && len(in.Tag) <= maxPart &&
		(in.Policy == "" || isName(in.Policy)) && isNote(in.PublicNote) &&
		(in.Kind != schema.KindMultiplier || in.Factor >= 1 && int64(in.Factor) <= maxFactor) &&
		(in.Kind != schema.KindTopUp || in.Amount >= 1 && in.Amount <= limit.MaxQuantity && !in.ExpiresAt.IsZero()) &&
		(in.Kind != schema.KindExempt || CheckExemptable(in.Endpoint) == nil)
}

// setTarget sets the target of o from a valid row. It reports false if that is an address that does not parse.
func (o *CompiledOverride) setTarget(in Override) bool {
	switch {
	case in.Credential != "":
		o.target, o.targetName = onCredential, in.Credential
	case in.IP != "":
		prefix, err := ParseNetwork(in.IP)
		if err != nil {
			return false
		}
		o.target, o.targetName, o.bits = onIP, networkText(prefix), uint8(max(prefix.Bits(), 0))
	case in.Tag != "":
		o.target, o.targetName = onTag, in.Tag
	case in.User != "" && in.Endpoint != "":
		o.target, o.targetName = onUserEndpoint, in.User
	case in.User != "":
		o.target, o.targetName = onUser, in.User
	case in.Endpoint != "" && in.Tenant == "":
		o.target = onEndpointOfAll
	case in.Endpoint != "":
		o.target = onEndpoint
	default:
		o.target = onTenant
	}
	return true
}
