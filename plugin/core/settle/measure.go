package settle

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Answer holds what Kong's log phase answers about a request.
type Answer struct {
	Status int    // of the response, as the client got it; 499: the client closed its connection before
	Source string // of the response: SourceService, SourceExit or SourceError

	// Tried reports whether Kong passed the request to the upstream. It is true where that is unknown: without the log
	// entry, or without its list of tries ([Log.Tried]).
	Tried bool

	Headers map[string]string // values of Needs.Headers; absent: the response had none; "": several
	Shared  map[string]string // values of Needs.Shared: texts, and numbers as JSON writes them; "": neither
	Log     Log               // nil: it was not read
}

// Size returns the length of the texts that the answer holds, in bytes.
func (a *Answer) Size() int {
	size := len(a.Source)
	for key, value := range a.Log {
		size += len(key) + len(value)
	}
	for name, value := range a.Headers {
		size += len(name) + len(value)
	}
	for name, value := range a.Shared {
		size += len(name) + len(value)
	}
	return size
}

// Sources of a response, as kong.response.get_source answers.
const (
	SourceService = "service" // the upstream
	SourceExit    = "exit"    // a plugin, or Kong without a route
	SourceError   = "error"   // Kong, because the upstream failed
)

// Outcome says whether a request could be measured, and how.
type Outcome uint8

// The outcomes.
const (
	Measured   Outcome = iota // it used what its sources say
	Refunded                  // it used nothing: Kong answered for it, or the upstream with a status of refund_on
	Unmeasured                // it is unknown what it used: the reservation stays
	Streamed                  // as Unmeasured, because Kong counts the tokens of streamed answers wrongly
)

// Measure returns the tokens that a request used, from 0 to MaxActual, or the millionths of a US dollar that its call
// costs. They have no meaning if it is Unmeasured or Streamed. A call that the rule does not match used nothing.
func (r *Rule) Measure(a *Answer, call Call) (actual int64, outcome Outcome) {
	switch {
	case !a.Tried, a.Source == SourceExit, a.Source == SourceError:
		return 0, Refunded
	case a.Source != SourceService, a.Status == schema.StatusClientClosed:
		return 0, Unmeasured
	case r.RefundOn(a.Status):
		return 0, Refunded
	}
	if !r.ByPrices() {
		actual, call.Outcome = r.count(a)
	}
	return r.Charge(&call, actual, r.ByPrices())
}

// count returns the sum of the rule's sources.
func (r *Rule) count(a *Answer) (int64, Outcome) {
	if slices.ContainsFunc(r.sources, func(s source) bool { return s.isCountedByKong() }) && a.Log.streamed() {
		return 0, Streamed
	}
	total := 0.0
	for i := range r.sources {
		value, ok := r.sources[i].read(a)
		if !ok {
			return 0, Unmeasured
		}
		total += value * r.sources[i].weight
	}
	return roundUp(total), Measured
}

// Charge returns what a call costs: 0 if the rule does not match it, its price for a limit in money, and else these
// tokens. Without a price, or a name that it must match, it is Unmeasured.
func (r *Rule) Charge(call *Call, tokens int64, inMoney bool) (actual int64, outcome Outcome) {
	switch matches, known := r.match.Matches(call.Model, call.Provider); {
	case !known, matches && inMoney && call.Outcome == Measured && !call.Priced:
		return 0, Unmeasured
	case !matches:
		return 0, Measured
	case inMoney:
		return call.MicroUSD, call.Outcome
	}
	return tokens, call.Outcome
}

// roundUp returns a sum as whole tokens. Kong writes numbers with 14 digits, so what a sum has beyond 15 digits is
// noise: it must not round a whole number up.
func roundUp(total float64) int64 {
	const noise = 1e-15
	return int64(math.Ceil(min(total, MaxActual) * (1 - noise)))
}

// read returns the value of the source, and reports whether there is a valid one.
func (s *source) read(a *Answer) (float64, bool) {
	switch value, sent := a.Headers[s.name]; {
	case s.kind == fromLog:
		return a.Log.sum(s.path)
	case s.key != "":
		return listedAmount(value, s.key, sent)
	}
	return parseAmount(s.readText(a))
}

// readText returns the text of the source, or "" without a valid one.
func (s *source) readText(a *Answer) string {
	switch s.kind {
	case fromHeader:
		return a.Headers[s.name]
	case fromShared:
		return a.Shared[s.name]
	default:
		return a.Log.text(s.path)
	}
}

// listedAmount returns the number of a key in a header such as "video=1, image=3". What a response does not list is 0;
// a header that came more than once, which reads as "", and a key that is in it twice have no value.
func listedAmount(header, key string, sent bool) (amount float64, ok bool) {
	if !sent {
		return 0, true
	}
	found := false
	for item := range strings.SplitSeq(header, ",") {
		name, number, _ := strings.Cut(item, "=")
		if strings.TrimSpace(name) != key {
			continue
		}
		if amount, ok = parseAmount(strings.TrimSpace(number)); !ok || found {
			return 0, false
		}
		found = true
	}
	return amount, header != ""
}

// maxAmount bounds the value of a source. Above it a float64 cannot hold every whole number.
const maxAmount = 1 << 53

// maxDigits bounds the length of a number that is a text, in bytes.
const maxDigits = 64

// parseAmount reads a number as JSON writes it. It reports false for any other text, and if the number is no amount.
func parseAmount(text string) (float64, bool) {
	if text == "" || len(text) > maxDigits || text[0] < '0' || text[0] > '9' || !json.Valid([]byte(text)) {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && n <= maxAmount
}

// Log holds Kong's log entry by its keys: JSON that may hold anything that a client, an upstream or a plugin put into
// it. What no rule reads is not decoded.
type Log map[string]json.RawMessage

// ParseLog reads a log entry, of which it keeps nothing. It returns an empty Log for one that is too long, nested too
// deep or no JSON.
func ParseLog(entry []byte) (l Log) {
	if len(entry) > maxLogLength || json.Unmarshal(entry, &l) != nil {
		return nil
	}
	return l
}

// Tried reports whether Kong may have passed the request to the upstream. It reports false only if the list of tries is
// empty, which Kong may write as an object. Without a list it reports true.
func (l Log) Tried() bool { return string(l["tries"]) != "[]" && string(l["tries"]) != "{}" }

func (l Log) streamed() bool {
	kind := l.text([]string{"response", "headers", "content-type"})
	return strings.HasPrefix(strings.ToLower(kind), "text/event-stream")
}

// maxNumbers bounds how many values one path may lead to.
const maxNumbers = 256

// sum returns the sum of the numbers that a path leads to, and reports whether there is a number and all are valid.
// null, and -1 among the latencies, count as no number.
func (l Log) sum(path []string) (total float64, ok bool) {
	numbers := 0
	ok = l.walk(path, func(text string) bool {
		if text == "-1" && path[0] == "latencies" {
			return true
		}
		n, valid := parseAmount(text)
		total, numbers = total+n, numbers+1
		return valid && numbers <= maxNumbers
	})
	return total, ok && numbers > 0
}

// text returns the text that a path leads to; "": there is none, it is another value, or there are several that differ.
func (l Log) text(path []string) (text string) {
	first, values := "", 0
	if l.walk(path, func(value string) bool {
		first, values = cmp.Or(first, value), values+1
		return value == first && values <= maxNumbers
	}) {
		_ = json.Unmarshal([]byte(first), &text) // which leaves it empty if the value is no text
	}
	return text
}

// everyKey is the key of a path that stands for all keys.
const everyKey = "*"

// walk calls visit with each value but null that a path leads to, until visit returns false, as walk then does.
func (l Log) walk(path []string, visit func(text string) bool) bool {
	if path[0] != everyKey {
		return walk(l[path[0]], path[1:], visit)
	}
	for _, value := range l {
		if !walk(value, path[1:], visit) {
			return false
		}
	}
	return true
}

// walk does for a value what walk of a log does.
func walk(text json.RawMessage, path []string, visit func(text string) bool) bool {
	var object Log
	var list []json.RawMessage
	switch {
	case len(text) == 0 || string(text) == "null":
	case len(path) == 0:
		return visit(string(text))
	case json.Unmarshal(text, &object) == nil:
		return object.walk(path, visit)
	case path[0] == everyKey && json.Unmarshal(text, &list) == nil:
		return !slices.ContainsFunc(list, func(item json.RawMessage) bool { return !walk(item, path[1:], visit) })
	}
	return true
}
