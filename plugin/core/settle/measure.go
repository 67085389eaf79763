package settle

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/jsonwalk"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Answer holds what Kong's log phase answers about a request.
type Answer struct {
	Status int    // of the response, as the client got it; 499: the client closed its connection before
	Source string // of the response: SourceService, SourceExit or SourceError

	// Tried reports whether Kong passed the request to the upstream. It is true where that is unknown: without the log
	// entry, or without its list of tries ([Tried]).
	Tried bool

	Headers map[string]string // values of Needs.Headers; absent: the response had none; "": several
	Shared  map[string]Value  // values of Needs.Shared
	Log     []byte            // Kong's serialized log entry; nil: it was not read

	log *log // of Log; nil: it has not been checked yet
}

// Size returns the length of the texts that the answer holds, in bytes.
func (a *Answer) Size() int {
	size := len(a.Source) + len(a.Log)
	for name, value := range a.Headers {
		size += len(name) + len(value)
	}
	for name, value := range a.Shared {
		size += len(name) + len(value.text)
	}
	return size
}

// Sources of a response, as kong.response.get_source answers.
const (
	SourceService = "service" // the upstream
	SourceExit    = "exit"    // a plugin, or Kong without a route
	SourceError   = "error"   // Kong, because the upstream failed
)

// Value is a value of kong.ctx.shared. The zero value stands for one that is missing, or is neither a number nor a
// text.
type Value struct {
	number   float64
	text     string
	isNumber bool
}

// Number returns the Value of a number.
func Number(n float64) Value { return Value{number: n, isNumber: true} }

// Text returns the Value of a text.
func Text(s string) Value { return Value{text: s} }

// Outcome says whether a request could be measured, and how.
type Outcome uint8

// The outcomes.
const (
	Measured       Outcome = iota // it used what its sources say
	NeverTried                    // it never reached the upstream, or Kong answered for it: it used nothing
	RefundedStatus                // the upstream answered with a status of refund_on: it used nothing
	Unmeasured                    // it is unknown what it used: the reservation stays
)

func (o Outcome) String() string {
	return [...]string{"measured", "never_tried", "refunded_status", "unmeasured"}[o]
}

// Measure returns the tokens that a request used, from 0 to MaxActual. They have no meaning if it is Unmeasured.
func (r *Rule) Measure(a *Answer) (actual int64, outcome Outcome) {
	switch {
	case !a.Tried, a.Source == SourceExit, a.Source == SourceError:
		return 0, NeverTried
	case a.Source != SourceService, a.Status == schema.StatusClientClosed:
		return 0, Unmeasured
	case r.RefundOn(a.Status):
		return 0, RefundedStatus
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

// roundUp returns a sum as whole tokens. Kong writes numbers with 14 digits, so what a sum has beyond 15 digits is
// noise: it must not round a whole number up.
func roundUp(total float64) int64 {
	const noise = 1e-15
	return int64(math.Ceil(min(total, MaxActual) * (1 - noise)))
}

// read returns the value of the source, and reports whether there is a valid one.
func (s *source) read(a *Answer) (float64, bool) {
	switch s.kind {
	case fromHeader:
		value, sent := a.Headers[s.name]
		if s.key != "" {
			return listedAmount(value, s.key, sent)
		}
		return parseAmount(value)
	case fromShared:
		return a.Shared[s.name].amount()
	default:
		return a.document().sum(s.path)
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

// document returns the log entry, which is checked once however many sources read it.
func (a *Answer) document() *log {
	if a.log == nil {
		a.log = newLog(a.Log)
	}
	return a.log
}

func (v Value) amount() (float64, bool) {
	if v.isNumber {
		return v.number, isAmount(v.number)
	}
	return parseAmount(v.text)
}

// maxAmount bounds the value of a source. Above it a float64 cannot hold every whole number.
const maxAmount = 1 << 53

// isAmount reports whether a number can be the value of a source. NaN cannot.
func isAmount(n float64) bool { return n >= 0 && n <= maxAmount }

// maxDigits bounds the length of a number that is a text, in bytes.
const maxDigits = 64

// parseAmount reads a number as JSON writes it. It reports false for any other text, and if the number is no amount.
func parseAmount(text string) (float64, bool) {
	if text == "" || len(text) > maxDigits || text[0] < '0' || text[0] > '9' || !json.Valid([]byte(text)) {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && isAmount(n)
}

// log reads Kong's log entry: JSON that may hold anything that a client, an upstream or a plugin put into it. The entry
// is checked as a whole, and then read in place, without a tree of its values.
type log struct {
	jsonwalk.Cursor // without a text: the entry is missing, too long, nested too deep or no JSON
}

// newLog checks a log entry. json.Valid also bounds the depth.
func newLog(entry []byte) *log {
	if len(entry) > maxLogLength || !json.Valid(entry) {
		return new(log)
	}
	return &log{jsonwalk.Cursor{Text: entry}}
}

// Tried reports whether Kong may have passed a request to the upstream. It reports false only for a log entry whose
// list of tries is empty. For an entry that has no list, or that cannot be read, it reports true.
func Tried(entry []byte) bool {
	l := newLog(entry)
	if l.Text == nil {
		return true
	}
	l.SkipSpace()
	if l.Text[l.At] != '{' {
		return true
	}
	listed, tried := false, false
	l.EachMember(func(key []byte) {
		if jsonwalk.IsKey(key, "tries") {
			listed, tried = true, tried || !l.isEmptyNext()
		}
		l.SkipValue()
	})
	return tried || !listed
}

// isEmptyNext reports whether an empty list comes next, or an empty object, as Kong may write a list.
func (l *log) isEmptyNext() bool {
	if first := l.Text[l.At]; first != '{' && first != '[' {
		return false
	}
	next := jsonwalk.Cursor{Text: l.Text, At: l.At + 1}
	next.SkipSpace()
	return next.Text[next.At] == ']' || next.Text[next.At] == '}'
}

// sum returns the sum of the numbers that a path leads to, and reports whether there is a number and all are valid.
// null, and -1 among the latencies, count as no number. If an object on the path has a key twice, there is no sum.
func (l *log) sum(path []string) (float64, bool) {
	if l.Text == nil {
		return 0, false
	}
	l.At = 0
	s := sum{log: l, latency: path[0] == "latencies"}
	s.value(path)
	return s.total, s.numbers > 0 && !s.invalid
}

// maxNumbers bounds how many numbers one path may lead to.
const maxNumbers = 256

// sum adds the numbers at the end of a path.
type sum struct {
	*log
	latency bool
	total   float64
	numbers int
	invalid bool
}

// value adds what the path leads to in the value that comes next.
func (s *sum) value(path []string) {
	s.SkipSpace()
	first := s.Text[s.At]
	switch {
	case len(path) == 0:
		s.add(first)
	case first == '{':
		s.object(path)
	case first == '[' && path[0] == everyKey:
		s.EachItem(func() { s.value(path[1:]) })
	default:
		s.SkipValue()
	}
}

// everyKey is the key of a path that stands for all keys.
const everyKey = "*"

// object adds what the path leads to in the object that comes next. Only keys that lead to a number are compared with
// one another, and there are at most maxNumbers of them.
func (s *sum) object(path []string) {
	var seen [][]byte
	s.EachMember(func(key []byte) {
		all := path[0] == everyKey
		if !all && !jsonwalk.IsKey(key, path[0]) || s.numbers > maxNumbers {
			s.SkipValue()
			return
		}
		before := s.numbers
		s.value(path[1:])
		if all && s.numbers == before {
			return
		}
		key = jsonwalk.Unescaped(key)
		s.invalid = s.invalid || slices.ContainsFunc(seen, func(other []byte) bool { return bytes.Equal(key, other) })
		seen = append(seen, key)
	})
}

// add adds the number that comes next, whose first byte is given.
func (s *sum) add(first byte) {
	from := s.At
	s.SkipValue()
	text := string(s.Text[from:s.At])
	if first == 'n' || s.latency && text == "-1" {
		return
	}
	n, ok := parseAmount(text)
	s.total, s.numbers, s.invalid = s.total+n, s.numbers+1, s.invalid || !ok || s.numbers >= maxNumbers
}
