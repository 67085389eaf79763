package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// row is a compiled Row. It is immutable but for what it remembers.
type row struct {
	namespace                         string
	ownMode, ownFailMode, ownAccuracy bool // false: the config's
	Policy
	tenant   string // "": it is Policy.Tier's
	variants atomic.Pointer[[]*Policy]
}

func (r *row) key() int64 { return r.Row }

// under is the row's policy under a config that says these, which it takes where it has none of its own. What is made
// for a config is remembered, so that requests get the same policy again.
func (r *row) under(mode Mode, failMode FailMode, accuracy Accuracy) *Policy {
	if r.ownMode {
		mode = r.Mode
	}
	if r.ownFailMode {
		failMode = r.FailMode
	}
	if r.ownAccuracy {
		accuracy = r.Accuracy
	}
	if mode == r.Mode && failMode == r.FailMode && accuracy == r.Accuracy {
		return &r.Policy
	}
	known := r.variants.Load()
	var list []*Policy
	if known != nil {
		list = *known
	}
	for _, p := range list {
		if p.Mode == mode && p.FailMode == failMode && p.Accuracy == accuracy {
			return p
		}
	}
	p := r.Policy
	p.Mode, p.FailMode, p.Accuracy = mode, failMode, accuracy
	longer := with(list, len(list), &p)       // at most one for each that configs can say
	r.variants.CompareAndSwap(known, &longer) // where another request was first, the next one remembers
	return &p
}

// plain is the row as it was given, but for spellings that mean the same.
func (r *row) plain() Row {
	spec := r.Limit.Spec()
	out := Row{ID: r.Row, Namespace: r.namespace, Tier: r.Tier, Tenant: r.tenant, PublicNote: r.PublicNote, Limit: schema.Limit{
		Name: r.Name, Scope: r.Scope.String(), Endpoint: r.Endpoint,
		Algorithm: spec.Algorithm.String(), Limit: spec.Quantity, WindowSize: int64(spec.Window / limit.Second),
		SoftThresholdPct: spec.SoftPct, HardThresholdPct: spec.HardPct, SoftOnly: spec.SoftOnly,
	}}
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
		cost := r.Cost
		out.Limit.Cost = &cost
	}
	return out
}

func isBucket(a limit.Algorithm) bool { return a == limit.TokenBucket || a == limit.LeakyBucket }

// faultList collects what is wrong with one row.
type faultList struct {
	table, key string
	list       []Fault
}

func (f *faultList) add(field, format string, args ...any) {
	f.list = append(f.list, Fault{f.table, f.key, field, fmt.Sprintf(format, args...)})
}

// err adds an error; joined ones apart, and those about a field under its name.
func (f *faultList) err(field string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			f.err(field, e)
		}
		return
	}
	if about := new(limit.FieldError); errors.As(err, &about) {
		f.add(about.Field, "%s", about.Problem)
		return
	}
	f.add(field, "%s", err)
}

// Bounds of what a row may say, as in the plugin's own config.
const (
	maxName          = 64   // bytes of a policy's or tier's name
	maxPart          = 128  // bytes of an identity: longer ones are counted by their hash
	maxNote          = 1024 // bytes
	maxCost          = 1_000_000_000
	defaultNamespace = "default"
)

// with are the faults of a row, if it has any: then what is wrong with its endpoint by itself is one of them. Of a row
// without others that is found when the endpoint is compared with those of other rows.
func (f *faultList) with(endpoint string) []Fault {
	if len(f.list) > 0 && endpoint != "" {
		if _, err := ParsePattern(endpoint); err != nil {
			f.add("endpoint", "%s", err)
		}
	}
	return f.list
}

// name checks the name of a policy or a namespace, which goes into headers and keys as it is.
func (f *faultList) name(field, name string) {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
	ok := name != "" && len(name) <= maxName
	for i := range len(name) {
		ok = ok && strings.IndexByte(letters, name[i]) >= 0
	}
	if !ok {
		f.add(field, "must be 1 to %d letters, digits, dots, dashes or underscores, got %q", maxName, name)
	}
}

// part checks the name of somebody, as requests are identified by it.
func (f *faultList) part(field, name string) {
	if len(name) > maxPart {
		f.add(field, "has %d bytes, but nobody is identified by more than %d: write the hash that metrics and events show", len(name), maxPart)
	}
}

// note checks what tenants read about a row.
func (f *faultList) note(text string) {
	if len(text) > maxNote || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		f.add("public_note", "must have at most %d bytes, without control characters", maxNote)
	}
}

// tier checks the name of a tier, or none.
func (f *faultList) tier(field, name string) {
	if len(name) > maxName {
		f.add(field, "must have at most %d bytes, got %d", maxName, len(name))
	}
}

// compileRow compiles one policy of a database; r is nil if there are faults. Whether its endpoint makes sense and goes
// with others is not looked at, but beside other faults the former is.
func compileRow(in Row) (r *row, faults []Fault) {
	f := faultList{table: inPolicies, key: strconv.FormatInt(in.ID, 10)}
	in.Namespace = first(in.Namespace, defaultNamespace)
	f.name("namespace", in.Namespace)
	f.name("name", in.Limit.Name)
	f.part("tenant", in.Tenant)
	if (in.Tier == "") == (in.Tenant == "") {
		f.add("match", "must be a tier or a tenant, and not both: got tier %q and tenant %q", in.Tier, in.Tenant)
	}
	f.tier("tier", in.Tier)
	f.oneOf("mode", in.Limit.Mode, "", schema.ModeEnforce, schema.ModeShadow, schema.ModeLog)
	f.oneOf("fail_mode", in.Limit.FailMode, "", schema.FailOpen, schema.FailClosed, schema.FailLocal)
	f.oneOf("accuracy", in.Limit.Accuracy, "", schema.AccuracyLeased, schema.AccuracyExact)
	f.note(in.PublicNote)
	p, err := compileLimit(in.Limit)
	switch {
	case err != nil:
		f.err("limit", err)
	case in.Limit.Cost != nil && (*in.Limit.Cost < 0 || *in.Limit.Cost > maxCost):
		f.add("cost", "must be between 0 and %d, got %d", maxCost, *in.Limit.Cost)
	case p.Cost > p.Limit.Capacity() && !in.Limit.SoftOnly:
		f.add("cost", "is %d tokens, but the limit can never hold more than %d: every request would be refused", p.Cost, p.Limit.Capacity())
	}
	if faults = f.with(in.Limit.Endpoint); len(faults) > 0 {
		return nil, faults
	}
	p.Tier, p.Row, p.PublicNote = in.Tier, in.ID, in.PublicNote
	return &row{
		Policy: p, namespace: in.Namespace, tenant: in.Tenant,
		ownMode: in.Limit.Mode != "", ownFailMode: in.Limit.FailMode != "", ownAccuracy: in.Limit.Accuracy != "",
	}, nil
}

func (f *faultList) oneOf(field, value string, known ...string) {
	for _, k := range known {
		if value == k {
			return
		}
	}
	f.add(field, "unknown %s %q", field, value)
}

// network is what the address of an override stands for: an IPv4 address for itself, an IPv6 address for its /64, which
// is one client, and a network for all of its addresses.
func network(text string) (netip.Prefix, error) {
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

// networkText is a network as people write it: a single IPv4 address has no length.
func networkText(prefix netip.Prefix) string {
	if prefix.Addr().Is4() && prefix.IsSingleIP() {
		return prefix.Addr().String()
	}
	return prefix.String()
}
