package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Settle makes a limit charge what a request really used. The limit takes a reservation when the request arrives, and
// adds or returns the difference when the response has been sent. The plugin tenant-rate-settling does the latter.
//
//kong:patterns settle_source {"patterns": ["^header[.][A-Za-z0-9_-]+$", "^header[.][A-Za-z0-9_-]+[.][A-Za-z0-9_.-]+$", "^log[.][A-Za-z0-9_.*-]+$", "^shared[.][A-Za-z0-9_.-]+$", "^prices$"], "err": "must be header.<Name>, header.<Name>.<key>, log.<path> such as log.ai.*.usage.total_tokens, shared.<name> or prices"}
//kong:check {"mutually_required": ["reserve_header", "reserve_max"]}
type Settle struct {
	// Where the amount is read from after the response, 1 to 8 sources; it is the sum of their values, each times its
	// weight, rounded up. If one of them has no value, the reservation stays. Required.
	Sources []SettleSource `json:"sources" kong:"required,len_min=1,len_max=8"`

	// How many tokens a request takes when it arrives, from 1 to 10^12. Choose what a typical request uses, not the most.
	// Default: the cost of the request.
	//
	// Zero means absent.
	Reserve int64 `json:"reserve,omitempty" kong:"between=1..1000000000000"`

	// Name of a request header that carries the reservation in tokens, such as X-Max-Tokens. It must be listed in
	// trusted_headers. A missing or malformed value counts as reserve, or as the cost of the request without a reserve.
	// Default: no header is read.
	//
	// Empty means absent.
	ReserveHeader string `json:"reserve_header,omitempty" kong:"match=^[A-Za-z0-9_-]+$,len_max=128" kong_err:"must be a header name: letters, digits, dashes or underscores"`

	// The largest reservation in tokens that reserve_header may ask for; a higher value counts as this. From 1 to 10^12
	// tokens. Required beside reserve_header. Default: none.
	//
	// Zero means absent.
	ReserveMax int64 `json:"reserve_max,omitempty" kong:"between=1..1000000000000"`

	// Statuses of the upstream's response after which a request costs nothing: its whole reservation is returned. From 100
	// to 599, at most 32. Default: none; what Kong answers by itself is always returned.
	RefundOn []int64 `json:"refund_on" kong:"required,set,len_max=32" elements:"between=100..599" default:""`

	// How long a reservation waits for the end of its request, in seconds, from 1 to 86400. After that it stays charged.
	// Default: 600 seconds.
	Timeout int64 `json:"timeout,omitempty" kong:"required,between=1..86400" default:"600"`
}

// SettleSource names a value that is known once a response has been sent.
type SettleSource struct {
	// header.<Name> is a header of the response; header.<Name>.<key> the number of a key in a header such as X-Kong-Limit:
	// video=1, image=3, and 0 for what a response does not list; log.<path> a number of Kong's log entry, where * stands
	// for every key, as in log.ai.*.usage.total_tokens, and all that match are added; shared.<name> a value of
	// kong.ctx.shared; prices what the call of a model costs, see llm. Required.
	From string `json:"from,omitempty" kong:"required,match_any=settle_source,len_max=256"`

	// How many tokens one unit of the value counts, from 1 to 10^6. Default: 1 token.
	Weight int64 `json:"weight,omitempty" kong:"required,between=1..1000000" default:"1"`
}

// Defaults of a Settle, for values that Parse has not filled in.
const (
	SettleTimeout = 600 // seconds
	SettleWeight  = 1
)

// LargeReservePct is the part of a limit, in percent, above which a constant reservation is probably too large.
const LargeReservePct = 25

// MaxReserveHeaders is the largest number of different headers that carry reservations under one config.
const MaxReserveHeaders = 4

// MaxSettlePath is the largest number of keys in the path of a log source.
const MaxSettlePath = 16

// StatusClientClosed is the status that Kong logs for a client that closed its connection before the response.
const StatusClientClosed = 499

// JSON returns s as JSON, which ParseSettle reads.
func (s *Settle) JSON() string { return recordJSON(s) }

func recordJSON(record any) string {
	raw, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("schema: a record cannot be encoded: %v", err)) // it holds only strings and integers
	}
	return string(raw)
}

// ParseSettle reads the JSON of a Settle and fills in its defaults. The paths of faults begin with settle. A Settle
// with faults lacks the values that have them.
func ParseSettle(raw []byte) (*Settle, []Fault) {
	return parseRecord[Settle](raw, "settle")
}

// Equal reports whether two records are the same; nil is one without settling.
func (s *Settle) Equal(other *Settle) bool {
	if s == nil || other == nil {
		return s == other
	}
	return reflect.DeepEqual(s.WithDefaults(), other.WithDefaults())
}

// WithDefaults returns s with its defaults, and with the statuses in ascending order, each once.
func (s Settle) WithDefaults() Settle {
	n := s
	n.Sources = slices.Clone(s.Sources)
	for i := range n.Sources {
		if n.Sources[i].Weight == 0 {
			n.Sources[i].Weight = SettleWeight
		}
	}
	n.RefundOn = slices.Compact(slices.Sorted(slices.Values(s.RefundOn)))
	if n.Timeout == 0 {
		n.Timeout = SettleTimeout
	}
	return n
}

// Describe returns s in words: what it reserves, in the unit of its limit, and what it settles to.
func (s *Settle) Describe(unit string) string {
	n := s.WithDefaults()
	terms := make([]string, len(n.Sources))
	for i, source := range n.Sources {
		if terms[i] = source.From; source.Weight != SettleWeight {
			terms[i] = fmt.Sprintf("%d × %s", source.Weight, source.From)
		}
	}
	reserved := "the request's cost"
	if s.Reserve > 0 {
		reserved = Amount(s.Reserve, unit)
	}
	if s.ReserveHeader != "" {
		reserved = fmt.Sprintf("the number in %s, at most %s, or else %s", s.ReserveHeader, Amount(s.ReserveMax, unit),
			reserved)
	}
	text := fmt.Sprintf("reserves %s, settles to %s", reserved, strings.Join(terms, " + "))
	if len(n.RefundOn) > 0 {
		text += ", or to 0 after status " + strings.ReplaceAll(strings.Trim(fmt.Sprint(n.RefundOn), "[]"), " ", ", ")
	}
	return text
}

// settleFaults returns the faults of the settling of l that Kong's schema language cannot express.
func (l LocatedLimit) settleFaults() []Fault {
	s, path := l.Settle, docpath.Member(l.Path, "settle")
	if s == nil {
		return nil
	}
	// In Kong's schema language the next two would be conditions on a field of settle, which Kong reports as a fault of
	// every limit without settle.
	faults := findings(sourceFaults(s.Sources, docpath.Member(path, "sources")))
	if !l.isTokenBucket() && l.Algorithm != AlgorithmFixedWindow {
		faults.add(docpath.Member(l.Path, "algorithm"), "must be token_bucket or fixed_window beside settle, because only "+
			"these can charge a request afterwards, got %q", docpath.Shorten(l.Algorithm))
	}
	if l.SoftOnly {
		faults.add(docpath.Member(l.Path, "soft_only"), "must not be true beside settle, because a limit that never denies "+
			"keeps no budget: to try a limit, set mode to shadow, got true")
	}
	if ceiling := l.ceiling(); s.Reserve > ceiling && l.inRange() {
		faults.add(docpath.Member(path, "reserve"),
			"is %s, but the limit can never hold more than %s: every request would be denied", Amount(s.Reserve, l.Unit),
			Amount(ceiling, l.Unit))
	}
	if i := slices.Index(s.RefundOn, StatusClientClosed); i >= 0 {
		faults.add(docpath.Item(docpath.Member(path, "refund_on"), i),
			"must not be %d, the status of a client that closes its connection: closing early would be free", StatusClientClosed)
	}
	return faults
}

// sourceFaults returns the faults of sources: malformed paths, and sources that read the same value.
func sourceFaults(sources []SettleSource, path string) []Fault {
	var faults findings
	first := map[string]int{}
	for i, source := range sources {
		at := docpath.Member(docpath.Item(path, i), "from")
		if problem := pathProblem(source.From); problem != "" {
			faults.add(at, "%s", problem)
			continue
		}
		if isPrices(source) && (len(sources) > 1 || source.Weight > SettleWeight) {
			faults.add(at, "must be the only source where it is prices, and without a weight: the prices are its weights")
			continue
		}
		reads := source.From
		if strings.HasPrefix(reads, "header.") {
			reads = strings.ToLower(reads)
		}
		if other, ok := first[reads]; ok && reads != "" {
			faults.add(at, "is read by sources[%d] too: give one of them both weights", other)
			continue
		}
		first[reads] = i
	}
	return faults
}

// reservationSource is where the plugin itself keeps the token of a request's reservation.
const reservationSource = "shared.trl"

// pathProblem returns what is wrong with the name of a shared source or the path of a log source, or "".
func pathProblem(source string) string {
	if source == reservationSource {
		return "must not be shared.trl, where the plugin keeps its reservation: use another name"
	}
	path, ok := strings.CutPrefix(source, "log.")
	if !ok {
		return ""
	}
	keys := strings.Split(path, ".")
	switch {
	case len(keys) > MaxSettlePath:
		return fmt.Sprintf("must have at most %d keys, has %d", MaxSettlePath, len(keys))
	case slices.Contains(keys, ""):
		return "must have a key between every two dots, such as log.response.size"
	case slices.ContainsFunc(keys, func(key string) bool { return key != "*" && strings.Contains(key, "*") }):
		return "must have * as a whole key, such as log.ai.*.usage.total_tokens"
	}
	return ""
}

// settleWarnings returns warnings of the settling of l that is probably not what its author expects.
func (l LocatedLimit) settleWarnings() []Warning {
	s, path := l.Settle, docpath.Member(l.Path, "settle")
	if s == nil {
		return nil
	}
	var warnings findings
	ceiling := l.ceiling()
	if capacity := l.Capacity(); 100*s.Reserve > LargeReservePct*capacity && s.ReserveHeader == "" {
		warnings.add(docpath.Member(path, "reserve"), "is %s of %s: so %d requests at once use up the limit, "+
			"whatever they cost in the end; reserve what a typical request uses", Amount(s.Reserve, l.Unit),
			Amount(capacity, l.Unit), ceiling/s.Reserve)
	}
	if s.ReserveMax > ceiling {
		warnings.add(docpath.Member(path, "reserve_max"), "is %s, but the limit can never hold more than %s: a "+
			"request whose %s asks for more is always denied", Amount(s.ReserveMax, l.Unit), Amount(ceiling, l.Unit),
			s.ReserveHeader)
	}
	if s.Reserve > 0 && l.Cost != nil {
		warnings.add(docpath.Member(l.Path, "cost"), "is ignored beside settle.reserve")
	}
	if l.Accuracy == AccuracyLeased {
		warnings.add(docpath.Member(l.Path, "accuracy"), "is ignored: a limit that settles is exact")
	}
	return warnings
}
