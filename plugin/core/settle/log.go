package settle

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/jsonwalk"
)

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
