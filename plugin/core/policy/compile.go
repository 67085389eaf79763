package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// CompiledPolicy holds a compiled PolicyRow. It is immutable except for variants, a cache.
type CompiledPolicy struct {
	Namespace                         string
	ownMode, ownFailMode, ownAccuracy bool // false: the config's
	Policy
	tenant   string // "": it is for no tenant
	variants cache[Modes]
}

func (r *CompiledPolicy) rowID() int64    { return r.Row }
func (r *CompiledPolicy) pattern() string { return r.Endpoint }

// Variant returns the row's policy under a config with these modes, which apply where the row has none of its own.
// Results are cached: all requests under a config get the same policy.
func (r *CompiledPolicy) Variant(modes Modes) *Policy {
	if r.ownMode {
		modes.Mode = r.Mode
	}
	if r.ownFailMode {
		modes.FailMode = r.FailMode
	}
	if r.ownAccuracy {
		modes.Accuracy = r.Accuracy
	}
	if modes == (Modes{r.Mode, r.FailMode, r.Accuracy}) {
		return &r.Policy
	}
	return r.variants.get(modes, r.derive)
}

func (r *CompiledPolicy) derive(modes Modes) *Policy {
	p := r.Policy
	p.Mode, p.FailMode, p.Accuracy = modes.Mode, modes.FailMode, modes.Accuracy
	p.cacheZones()
	return &p
}

// cache keeps the policies that are derived from a row for a few keys. The first request that needs one derives it.
type cache[K comparable] struct{ atomic.Pointer[[]derived[K]] }

type derived[K comparable] struct {
	from   K
	policy *Policy
}

// maxDerived bounds a cache: policies change when configs do, and old ones are useless.
const maxDerived = 64

func (c *cache[K]) get(from K, derive func(K) *Policy) *Policy {
	cached := c.Load()
	var list []derived[K]
	if cached != nil {
		list = *cached
	}
	for i := range list {
		if list[i].from == from {
			return list[i].policy
		}
	}
	if len(list) >= maxDerived {
		list = nil
	}
	p := derive(from)
	longer := inserted(list, len(list), derived[K]{from, p})
	c.CompareAndSwap(cached, &longer) // if another request was faster, a later one caches this result
	return p
}

// normalized returns the row as it was given, except for spellings that mean the same.
func (r *CompiledPolicy) normalized() PolicyRow {
	spec := r.Limit.Spec()
	out := PolicyRow{
		ID: r.Row,
		Policy: schema.Policy{
			Namespace:  r.Namespace,
			Tier:       r.Tier,
			Tenant:     r.tenant,
			PublicNote: r.PublicNote,
			Limit: schema.Limit{
				Name: r.Name, Scope: r.Scope.String(), Endpoint: r.Endpoint, Description: r.Description,
				Algorithm: spec.Algorithm.String(), Limit: spec.Quantity,
				SoftThresholdPct: spec.SoftPct, HardThresholdPct: spec.HardPct, SoftOnly: spec.SoftOnly,
				Unit: r.Unit, Match: r.Settle.Match(),
			},
		},
	}
	out.SetWindow(WindowOf(spec))
	switch r.match {
	case forUser:
		out.User = r.subject
	case forCredential:
		out.Credential = r.subject
	case forNetwork:
		out.IP = r.subject
	case forAnonymous:
		out.For = schema.ForAnonymous
	case forAll:
		out.For = schema.ForAll
	}
	if isBucket(spec.Algorithm) {
		out.Limit.Burst = spec.Burst
	}
	if r.ownMode {
		out.Limit.Mode = r.Mode.String()
	}
	if r.ownFailMode {
		out.Limit.FailMode = r.FailMode.String()
	}
	if r.ownAccuracy {
		out.Limit.Accuracy = r.Accuracy.String()
	}
	if r.Cost >= 0 {
		out.Limit.Cost = new(r.Cost)
	}
	if r.Settle != nil {
		out.Limit.Settle = r.Settle.Spec()
	}
	if r.Fair != nil {
		out.Limit.Fair = r.Fair.Record
	}
	return out
}

func isBucket(a limit.Algorithm) bool { return a == limit.TokenBucket || a == limit.LeakyBucket }

const defaultNamespace = "default"

var policyField = schema.FieldNamed[schema.Policy]

// Bounds of what a row may say, as package schema declares them.
var (
	maxName = policyField("name").MaxLength        // bytes of a policy's or tier's name
	maxPart = policyField("tenant").MaxLength      // bytes of an identity: longer ones are counted by their hash
	maxNote = policyField("public_note").MaxLength // bytes
	maxCost = policyField("cost").Max

	maxDescription = policyField("description").MaxLength // bytes
	audiences      = policyField("for").OneOf

	maxFactor = schema.FieldNamed[schema.Override]("factor").Max // thousandths
	sources   = schema.FieldNamed[schema.Override]("source").OneOf
)

// isName reports whether text can name a policy or a namespace, which goes into headers and keys as it is.
func isName(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return text != "" && len(text) <= maxName
}

// isNote reports whether tenants can be shown text as it is.
func isNote(text string) bool {
	return len(text) <= maxNote && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// compileLimit compiles a limit by itself: all of it except its endpoint's place among others.
func compileLimit(config schema.Limit) (Policy, error) {
	algorithm, err := limit.ParseAlgorithm(cmp.Or(config.Algorithm, schema.AlgorithmTokenBucket))
	if err != nil {
		return Policy{}, &limit.FieldError{Field: "algorithm", Problem: err.Error()}
	}
	spec := limit.Spec{
		Algorithm: algorithm,
		Quantity:  config.Limit,
		Burst:     config.Burst,
		SoftPct:   config.SoftThresholdPct,
		HardPct:   config.HardThresholdPct,
		SoftOnly:  config.SoftOnly,
	}
	if config.Period == "" {
		spec.Window = windowMicros(config.WindowSize + config.MaxDuration) // of which it has one
	} else if spec.Calendar, err = CompileCalendar(config); err != nil {
		return Policy{}, err
	}
	compiled, err := limit.New(spec)
	if err != nil {
		return Policy{}, err
	}
	scope, ok := ScopeOf(config.Scope)
	if !ok {
		return Policy{}, &limit.FieldError{Field: "scope", Problem: fmt.Sprintf("unknown scope %q", config.Scope)}
	}
	p := Policy{
		Description: config.Description,
		Name:        config.Name,
		Scope:       scope,
		Endpoint:    config.Endpoint,
		Limit:       compiled,
		Unit:        config.Unit,
		Mode:        parseEnum[Mode](modeNames[:], config.Mode),
		FailMode:    parseEnum[FailMode](failModeNames[:], config.FailMode),
		Accuracy:    parseEnum[Accuracy](accuracyNames[:], config.Accuracy),
		Cost:        -1,
		Pattern:     -1,
	}
	if config.Cost != nil {
		p.Cost = *config.Cost
	}
	if config.Settle != nil {
		if p.Settle, err = settle.New(*config.Settle, config.Match); err != nil {
			return Policy{}, err
		}
	}
	if config.Fair != nil {
		spec := compiled.Spec()
		rate := float64(spec.Quantity) * float64(limit.Second) / float64(spec.Window)
		p.Fair = &Fair{Record: config.Fair, Rate: rate, Capacity: float64(compiled.Capacity())}
	}
	p.Quota = p.quotaItem()
	p.cacheZones()
	return p, nil
}

// CompileCalendar returns the calendar of a limit that has a period. Errors are as of calendar.New.
func CompileCalendar(config schema.Limit) (*calendar.Calendar, error) {
	period, _ := calendar.ParsePeriod(config.Period) // New says which there are
	a := cmp.Or(config.Anchor, &schema.Anchor{})
	anchor := calendar.Anchor{
		Month: int(a.Month), Day: int(a.Day), Weekday: schema.WeekdayNumber(a.Weekday), Hour: int(a.Hour),
	}
	return calendar.New(period, anchor, config.TimeZone)
}

// WindowOf returns what a limit counts over, as its configuration has it. An anchor is absent where periods have their
// natural start.
func WindowOf(spec limit.Spec) schema.Window {
	switch c := spec.Calendar; {
	case spec.Algorithm == limit.Concurrency:
		return schema.Window{MaxDuration: int64(spec.Window / limit.Second)}
	case c == nil:
		return schema.Window{WindowSize: int64(spec.Window / limit.Second)}
	default:
		window := schema.Window{Period: c.Period().String(), TimeZone: c.Zone()}
		if a := c.Anchor(); a != (calendar.Anchor{}) {
			window.Anchor = &schema.Anchor{
				Month: int64(a.Month), Day: int64(a.Day), Weekday: schema.Weekday(a.Weekday), Hour: int64(a.Hour),
			}
		}
		return window
	}
}

// windowMicros returns a window in microseconds. A window that is too long for a limit stays too long: the product does
// not wrap around.
func windowMicros(seconds int64) limit.Micros {
	return limit.Micros(min(max(seconds, -1), int64(limit.MaxWindow/limit.Second)+1)) * limit.Second
}

// quotaItem returns the policy's item of the RateLimit-Policy field, without the length of a calendar's period. The
// registry of its units has requests, bytes and requests at once; micro-usd is one of its own. A limit that settles
// anything else has no item.
func (p *Policy) quotaItem() string {
	unit := ""
	spec := p.Limit.Spec()
	switch {
	case p.Limit.IsConcurrency(): // without a window: none bounds what is in flight
		return fmt.Sprintf(`%q;q=%d;qu="concurrent-requests"`, p.Name, spec.Quantity)
	case p.Unit == schema.UnitUSD:
		unit = `;qu="micro-usd"`
	case p.Settle == nil:
	case p.Settle.CountsBytes():
		unit = `;qu="content-bytes"`
	default:
		return ""
	}
	item := strconv.Quote(p.Name) + ";q=" + strconv.FormatInt(spec.Quantity, 10) + unit + ";w="
	if spec.Calendar == nil {
		item += strconv.FormatInt(int64(spec.Window/limit.Second), 10)
	}
	return item
}

// compileRow compiles one policy of a database; nil: it has faults. Of a row that compiles, whether its endpoint goes
// with others is found when they are compiled together.
func compileRow(in *PolicyRow) *CompiledPolicy {
	p, err := compileLimit(in.Limit)
	if err != nil || !in.valid(&p) {
		return nil
	}
	p.Tier, p.Row, p.PublicNote = in.Tier, in.ID, in.PublicNote
	if p.match, p.subject = in.match(); p.match == forNetwork {
		prefix, _ := ParseNetwork(p.subject) // it is valid
		p.subject = networkText(prefix)
	}
	return &CompiledPolicy{
		Policy: p, Namespace: cmp.Or(in.Namespace, defaultNamespace), tenant: in.Tenant,
		ownMode: in.Limit.Mode != "", ownFailMode: in.Limit.FailMode != "", ownAccuracy: in.Limit.Accuracy != "",
	}
}

// valid reports whether a node can use a row, whose limit is p. It accepts some rows that Faults rejects, and is
// cheaper.
func (in *PolicyRow) valid(p *Policy) bool {
	l := &in.Limit
	return (in.Namespace == "" || isName(in.Namespace)) && isName(l.Name) && len(in.Tier) <= maxName &&
		len(in.Tenant) <= maxPart && in.hasTarget() &&
		isAmong(modeNames[:], l.Mode) && isAmong(failModeNames[:], l.FailMode) && isAmong(accuracyNames[:], l.Accuracy) &&
		isNote(in.PublicNote) && isNote(l.Description) && len(l.Description) <= maxDescription &&
		(l.Settle == nil || p.settles(l)) && (l.Fair == nil || p.divides(l)) &&
		(l.Cost == nil || *l.Cost >= 0 && *l.Cost <= maxCost && (l.SoftOnly || p.Cost <= p.Limit.Capacity()))
}

// hasTarget reports whether what the row applies to can be looked up. Most rows are for a tier or a tenant alone.
func (in *PolicyRow) hasTarget() bool {
	if in.User+in.Credential+in.IP+in.For == "" {
		return (in.Tier == "") != (in.Tenant == "")
	}
	return len(in.User) <= maxPart && len(in.Credential) <= maxPart && isAddress(in.IP) &&
		isAmong(audiences, in.For) && len(in.TargetFaults()) == 0
}

// isAmong reports whether value is one of an enum's, or absent.
func isAmong(values []string, value string) bool {
	return value == "" || slices.Contains(values, value)
}

// ParseNetwork parses the address of an override: an IPv4 address stands for itself, an IPv6 address for its /64, which
// is one client, and a network for all of its addresses.
func ParseNetwork(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("must be a network, such as 192.0.2.0/24 or 2001:db8::/48: got %q", text)
		}
		if bits := prefix.Bits() - 96; bits >= 0 && prefix.Addr().Is4In6() {
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), bits)
		}
		return prefix.Masked(), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("must be an address or a network, such as 192.0.2.1 or 2001:db8::/48: got %q", text)
	}
	if addr = addr.Unmap().WithZone(""); addr.Is4() {
		return addr.Prefix(32)
	}
	return addr.Prefix(64)
}

// networkText formats a network: a single IPv4 address has no length.
func networkText(prefix netip.Prefix) string {
	if prefix.Addr().Is4() && prefix.IsSingleIP() {
		return prefix.Addr().String()
	}
	return prefix.String()
}

// CompileLimit compiles a limit of a config by itself: all of it except its endpoint's place among others. tier is the
// tier that the limit belongs to, audience the requests that it is for (schema.ForAnonymous, or "").
func CompileLimit(l schema.Limit, config *schema.Config, tier, audience string) (*Policy, error) {
	p, err := compileLimit(l)
	if err != nil {
		return nil, err
	}
	modes := ModesOf(&schema.Config{
		Mode: cmp.Or(l.Mode, config.Mode), FailMode: cmp.Or(l.FailMode, config.FailMode),
		Accuracy: cmp.Or(l.Accuracy, config.Accuracy),
	})
	p.Mode, p.FailMode, p.Accuracy = modes.Mode, modes.FailMode, modes.Accuracy
	if p.Tier = tier; audience == schema.ForAnonymous {
		p.match = forAnonymous
	}
	return &p, nil
}
