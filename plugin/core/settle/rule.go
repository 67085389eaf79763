// Package settle measures what a request really used, once its response has been sent.
//
// A limit that settles takes a reservation when a request arrives. Afterwards a [Rule], compiled from the limit's
// settle record, turns what Kong's log phase answers about the request ([Answer]) into the tokens that it used and an
// [Outcome]. What cannot be measured keeps its reservation: else a client that closes its connections early would use
// the upstream for free.
//
// The package has no clock and does no I/O. Reading the answers is the job of package phase, and charging the
// difference the job of a store.
package settle

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Rule holds a compiled schema.Settle. It is immutable.
type Rule struct {
	spec    schema.Settle // with its defaults; reserve_header as HTTP spells it
	match   *schema.Match // nil: all requests
	sources []source
	needs   Needs
}

// maxLogLength bounds a log entry that is read, in bytes.
const maxLogLength = 1 << 20

// MaxActual bounds the amounts that Measure returns, in tokens. It returns a larger one as MaxActual.
const MaxActual = 1_000_000_000_000

// New compiles a record, with or without its defaults, of a limit that counts the calls of match; nil: all requests.
// The error is a *limit.FieldError: the first fault that package schema finds, or the path of a log that has no values.
func New(s schema.Settle, match *schema.Match) (*Rule, error) {
	record, faults := schema.ParseSettle([]byte(s.JSON()))
	if len(faults) > 0 {
		return nil, &limit.FieldError{Field: faults[0].Path, Problem: faults[0].Message}
	}
	r := &Rule{spec: record.WithDefaults(), match: match}
	r.spec.ReserveHeader = textproto.CanonicalMIMEHeaderKey(s.ReserveHeader)
	for i, declared := range r.spec.Sources {
		parsed := parseSource(declared)
		if len(parsed.path) > schema.MaxSettlePath || slices.Contains(parsed.path, "") {
			problem := fmt.Sprintf("must have 1 to %d keys, none of them empty", schema.MaxSettlePath)
			return nil, &limit.FieldError{Field: fmt.Sprintf("settle.sources[%d].from", i), Problem: problem}
		}
		r.sources = append(r.sources, parsed)
		r.needs = r.needs.Union(parsed.needs)
	}
	return r, nil
}

// Spec returns the record that the rule was compiled from, with its defaults. The caller must not change it.
func (r *Rule) Spec() *schema.Settle { return &r.spec }

// Match returns the calls that the rule counts; nil: all requests, or r is nil. The caller must not change it.
func (r *Rule) Match() *schema.Match {
	if r == nil {
		return nil
	}
	return r.match
}

// Timeout returns how long a reservation waits for the end of its request. After that it stays charged.
func (r *Rule) Timeout() limit.Micros { return limit.Micros(r.spec.Timeout) * limit.Second }

// RefundOn reports whether a request costs nothing after a status of the upstream's response.
func (r *Rule) RefundOn(status int) bool { return slices.Contains(r.spec.RefundOn, int64(status)) }

// ReserveHeader returns the name of the request header that carries the reservation, as HTTP spells it, or "".
func (r *Rule) ReserveHeader() string { return r.spec.ReserveHeader }

// Reserve returns the reservation of a request in tokens. It is the number in the request's header (wanted; 0: none),
// at most reserve_max; or else the rule's reserve; or else the cost of the request.
func (r *Rule) Reserve(wanted, cost int64) int64 {
	switch {
	case wanted > 0 && r.spec.ReserveMax > 0:
		return min(wanted, r.spec.ReserveMax)
	case r.spec.Reserve > 0:
		return r.spec.Reserve
	}
	return cost
}

// CountsBytes reports whether the rule counts bytes, each as one token: its sources are sizes of Kong's log alone.
func (r *Rule) CountsBytes() bool {
	return !slices.ContainsFunc(r.spec.Sources, func(s schema.SettleSource) bool {
		return s.Weight != 1 || s.From != "log.request.size" && s.From != "log.response.size"
	})
}

// NeedsCalls reports whether the rule must know the call of a request.
func (r *Rule) NeedsCalls() bool { return r.match != nil || r.ByPrices() }

// ByPrices reports whether the rule settles to what calls cost.
func (r *Rule) ByPrices() bool { return r.sources[0].kind == fromPrices }

// Needs returns what must be read of a request's end to measure it, beside the needs of its [Calls].
func (r *Rule) Needs() Needs { return r.needs }

// Needs lists what must be read in Kong's log phase, beside the status and the source of the response. Names are
// sorted, each once. Needs are immutable.
type Needs struct {
	Log     bool     // Kong's serialized log entry
	Headers []string // of the response, in lower case
	Shared  []string // keys of kong.ctx.shared
}

// Union returns the needs of both.
func (n Needs) Union(other Needs) Needs {
	return Needs{
		Log:     n.Log || other.Log,
		Headers: mergeNames(n.Headers, other.Headers),
		Shared:  mergeNames(n.Shared, other.Shared),
	}
}

// mergeNames returns the names of both lists, sorted, each once.
func mergeNames(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// source describes a place from which a value is read.
type source struct {
	kind   sourceKind
	name   string   // of a header or a shared value
	key    string   // of a header that lists numbers by key; "": the header is a number
	path   []string // of a value of the log
	weight float64
	needs  Needs
}

type sourceKind uint8

const (
	fromHeader sourceKind = iota
	fromLog
	fromShared
	fromPrices
)

func parseSource(s schema.SettleSource) source {
	kind, name, _ := strings.Cut(s.From, ".")
	parsed := source{name: name, weight: float64(s.Weight)}
	switch kind {
	case "header":
		header, key, _ := strings.Cut(name, ".")
		parsed.kind, parsed.name, parsed.key = fromHeader, strings.ToLower(header), key
		parsed.needs.Headers = []string{parsed.name}
	case "shared":
		parsed.kind, parsed.needs.Shared = fromShared, []string{name}
	case schema.SourcePrices:
		parsed.kind = fromPrices
	default:
		parsed.kind, parsed.path, parsed.needs.Log = fromLog, strings.Split(name, "."), true
	}
	return parsed
}
