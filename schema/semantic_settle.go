package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// settleFaults returns the faults of the settling of l that Kong's schema language cannot express.
func (l locatedLimit) settleFaults() []Fault {
	s, path := l.Settle, docpath.Member(l.path, "settle")
	if s == nil {
		return nil
	}
	faults := findings(append(l.cannotSettle(), sourceFaults(s.Sources, docpath.Member(path, "sources"))...))
	if ceiling := l.ceiling(); s.Reserve > ceiling && l.inRange() {
		faults.add(docpath.Member(path, "reserve"),
			"is %d tokens, but the limit can never hold more than %d: every request would be denied", s.Reserve, ceiling)
	}
	if i := slices.Index(s.RefundOn, StatusClientClosed); i >= 0 {
		faults.add(docpath.Item(docpath.Member(path, "refund_on"), i),
			"must not be %d, the status of a client that closes its connection: closing early would be free", StatusClientClosed)
	}
	return faults
}

// cannotSettle returns the faults of a limit that settles and cannot. In Kong's schema language they would be
// conditions on a field of settle, which Kong reports as a fault of every limit without settle.
func (l locatedLimit) cannotSettle() []Fault {
	var faults findings
	if !l.isTokenBucket() && l.Algorithm != AlgorithmFixedWindow {
		faults.add(docpath.Member(l.path, "algorithm"), "must be token_bucket or fixed_window beside settle, because only "+
			"these can charge a request afterwards, got %q", docpath.Shorten(l.Algorithm))
	}
	if l.SoftOnly {
		faults.add(docpath.Member(l.path, "soft_only"), "must not be true beside settle, because a limit that never denies "+
			"keeps no budget: to try a limit, set mode to shadow, got true")
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
func (l locatedLimit) settleWarnings() []Warning {
	s, path := l.Settle, docpath.Member(l.path, "settle")
	if s == nil {
		return nil
	}
	var warnings findings
	ceiling := l.ceiling()
	if capacity := l.Capacity(); 100*s.Reserve > LargeReservePct*capacity && s.ReserveHeader == "" {
		warnings.add(docpath.Member(path, "reserve"), "is %d tokens of %d: so %d requests at once use up the limit, "+
			"whatever they cost in the end; reserve what a typical request uses", s.Reserve, capacity, ceiling/s.Reserve)
	}
	if s.ReserveMax > ceiling {
		warnings.add(docpath.Member(path, "reserve_max"), "is %d tokens, but the limit can never hold more than %d: a "+
			"request whose %s asks for more is always denied", s.ReserveMax, ceiling, s.ReserveHeader)
	}
	if s.Reserve > 0 && l.Cost != nil {
		warnings.add(docpath.Member(l.path, "cost"), "is ignored beside settle.reserve")
	}
	if l.Accuracy == AccuracyLeased {
		warnings.add(docpath.Member(l.path, "accuracy"), "is ignored: a limit that settles is exact")
	}
	return warnings
}
