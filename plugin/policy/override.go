package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// kind selects what an override does, the strongest first.
type kind uint8

const (
	ban kind = iota
	exempt
	customLimit
	multiplier
)

var kindNames = [...]string{Ban, Exempt, CustomLimit, Multiplier}

// target selects what an override applies to, the most specific first.
type target uint8

const (
	onUserEndpoint target = iota
	onUser
	onCredential
	onIP
	onEndpoint
	onTenant
	targets
)

var targetNames = [targets]string{"user+endpoint", "user", "credential", "ip", "endpoint", "tenant"}

// override holds a compiled Override. It is immutable except for derived, a cache. The fields that every request reads
// come first: they share a cache line.
type override struct {
	id       int64
	expires  limit.Micros
	derived  atomic.Pointer[[]derivedPolicy]
	kind     kind
	target   target
	detector bool
	bits     uint8 // of a network
	tenant   string
	policy   string
	endpoint string

	targetName     string // the user, credential or network; "" for a tenant's and an endpoint's
	quantity       int64  // tokens; a multiplier's factor in thousandths
	window         limit.Micros
	burst          int64
	reason, author string
	publicNote     string
}

// derivedPolicy holds a policy and the result of applying an override to it.
type derivedPolicy struct{ base, policy *Policy }

// maxDerived bounds the cache of one override: policies change when configs do, and old ones are useless.
const maxDerived = 64

func (o *override) rowID() int64 { return o.id }

// apply returns base changed by o, or base itself if its algorithm cannot count o's numbers exactly. The first request
// that needs a result derives it; later ones get the cached one.
func (o *override) apply(base *Policy) *Policy {
	cached := o.derived.Load()
	var list []derivedPolicy
	if cached != nil {
		list = *cached
	}
	for i := range list {
		if list[i].base == base {
			return list[i].policy
		}
	}
	if len(list) >= maxDerived {
		list = nil
	}
	p := o.derive(base)
	longer := inserted(list, len(list), derivedPolicy{base, p})
	o.derived.CompareAndSwap(cached, &longer) // if another request was faster, a later one caches this result
	return p
}

func (o *override) derive(base *Policy) *Policy {
	spec := base.Limit.Spec()
	if o.kind == customLimit {
		spec = o.withCustomLimit(spec)
	} else {
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
	p := *base
	p.Limit, p.quota = compiled, quotaItem(p.Name, compiled.Spec())
	return &p
}

// withCustomLimit returns a spec with o's numbers; its algorithm and thresholds stay.
func (o *override) withCustomLimit(spec limit.Spec) limit.Spec {
	spec.Quantity, spec.Burst = o.quantity, 0
	if o.window > 0 {
		spec.Window = o.window
	}
	if isBucket(spec.Algorithm) {
		spec.Burst = o.burst
	}
	return spec
}

// scaled returns a spec times factor ÷ 1000: rounded down, at least 1, at most what its algorithm can count. Thresholds
// are percentages, so they scale with it. A leaky bucket without a burst stays without.
func scaled(spec limit.Spec, factor int64) limit.Spec {
	most := int64(limit.MaxQuantity)
	if spec.Algorithm == limit.SlidingLog {
		most = limit.MaxLogQuantity
	}
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

// activeAt reports whether o has not expired at an instant; at expires itself it has.
func (o *override) activeAt(now limit.Micros) bool { return o.expires == 0 || now < o.expires }

// covers reports whether o changes the limit of a bound. An override that names a policy changes that policy. One that
// names none changes the limits with buckets of its target alone. So a user's factor does not change the limit of the
// whole tenant, and a tenant's does not change shared limits.
func (o *override) covers(b *Bound) bool {
	if o.policy != "" {
		return o.policy == b.Policy.Name
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
	case onEndpoint:
		return byEndpoint
	default:
		return b.Key.Group == ByTenant
	}
}

// normalized returns the override as it was given, except for spellings that mean the same.
func (o *override) normalized() Override {
	out := Override{
		ID: o.id, Kind: kindNames[o.kind], Tenant: o.tenant, Endpoint: o.endpoint, Policy: o.policy,
		Reason: o.reason, Author: o.author, PublicNote: o.publicNote, ExpiresAt: o.expires, Source: Commercial,
	}
	switch o.target {
	case onUser, onUserEndpoint:
		out.User = o.targetName
	case onCredential:
		out.Credential = o.targetName
	case onIP:
		out.IP = o.targetName
	default:
	}
	switch o.kind {
	case customLimit:
		out.Limit, out.WindowSize, out.Burst = o.quantity, int64(o.window/limit.Second), o.burst
	case multiplier:
		out.Factor = o.quantity
	default:
	}
	if o.detector {
		out.Source = Detector
	}
	return out
}

// compileOverride compiles one override of a database; o is nil if there are faults. The endpoint's syntax is checked
// here only if the override has other faults; otherwise the builder checks it.
func compileOverride(in Override) (o *override, faults []Fault) {
	f := faultList{table: inOverrides, key: strconv.FormatInt(in.ID, 10)}
	o = &override{
		id: in.ID, tenant: in.Tenant, endpoint: in.Endpoint, policy: in.Policy,
		reason: in.Reason, author: in.Author, publicNote: in.PublicNote, expires: in.ExpiresAt,
	}
	if i := slices.Index(kindNames[:], in.Kind); i >= 0 {
		o.kind = kind(i)
	} else {
		f.add("kind", "must be ban, exempt, custom_limit or multiplier, got %q", in.Kind)
	}
	f.oneOf("source", in.Source, "", Commercial, Detector)
	o.detector = in.Source == Detector
	o.setTarget(in, &f)
	o.setNumbers(in, &f)
	for _, text := range [...]struct{ field, value string }{{"reason", in.Reason}, {"author", in.Author}} {
		if strings.TrimSpace(text.value) == "" {
			f.add(text.field, "must be given")
		}
	}
	f.note(in.PublicNote)
	if in.ExpiresAt < 0 {
		f.add("expires_at", "must be an instant, or 0 for a permanent one, got %d", in.ExpiresAt)
	}
	if in.Policy != "" {
		f.name("policy", in.Policy)
	}
	if faults = f.with(in.Endpoint); len(faults) > 0 {
		return nil, faults
	}
	return o, nil
}

// setTarget sets the target of o. It checks each name that is given, also if there are too many.
func (o *override) setTarget(in Override, f *faultList) {
	f.part("tenant", in.Tenant)
	f.part("user", in.User)
	f.part("credential", in.Credential)
	var prefix netip.Prefix
	if in.IP != "" {
		var err error
		if prefix, err = network(in.IP); err != nil {
			f.add("ip", "%s", err)
		}
	}
	named := 0
	for _, name := range [...]string{in.User, in.Credential, in.IP} {
		if name != "" {
			named++
		}
	}
	switch {
	case named > 1 || (in.Endpoint != "" && (in.Credential != "" || in.IP != "")):
		f.add("target", "must be one of tenant, user, endpoint, user and endpoint, credential, ip")
	case in.Credential != "":
		o.target, o.targetName = onCredential, in.Credential
	case in.IP != "":
		o.target, o.targetName, o.bits = onIP, networkText(prefix), uint8(max(prefix.Bits(), 0))
	case in.Tenant == "":
		f.add("tenant", "must be given: only a credential or an address can be a target without one")
	case in.User != "" && in.Endpoint != "":
		o.target, o.targetName = onUserEndpoint, in.User
	case in.User != "":
		o.target, o.targetName = onUser, in.User
	case in.Endpoint != "":
		o.target = onEndpoint
	default:
		o.target = onTenant
	}
}

// setNumbers sets and checks the numbers of o's kind, and adds a fault for those of other kinds.
func (o *override) setNumbers(in Override, f *faultList) {
	limited := in.Limit != 0 || in.WindowSize != 0 || in.Burst != 0
	switch {
	case o.kind != customLimit && limited:
		f.add("limit", "only a custom_limit has a limit, a window or a burst")
	case o.kind != multiplier && in.Factor != 0:
		f.add("factor", "only a multiplier has a factor")
	case (o.kind == ban || o.kind == exempt) && in.Policy != "":
		f.add("policy", "a ban or an exemption applies to all policies: leave it out")
	}
	if o.detector && (o.kind == exempt || o.kind == customLimit || in.Factor >= 1000) {
		f.add("source", "a detector may only ban or scale down (a factor below 1000)")
	}
	switch o.kind {
	case customLimit:
		if in.Policy == "" {
			f.add("policy", "a custom_limit must name the policy that it changes")
		}
		o.quantity, o.window, o.burst = in.Limit, windowMicros(in.WindowSize), in.Burst
		spec := limit.Spec{Algorithm: limit.TokenBucket, Quantity: in.Limit, Window: o.window, Burst: in.Burst}
		if in.WindowSize == 0 {
			spec.Window = limit.Second // the policy's own takes its place
		}
		if _, err := limit.New(spec); err != nil {
			f.err("limit", err)
		}
	case multiplier:
		if o.quantity = in.Factor; in.Factor < 1 || in.Factor > MaxFactor {
			f.add("factor", "must be between 1 and %d thousandths, got %d", MaxFactor, in.Factor)
		}
	default:
	}
}
