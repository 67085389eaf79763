package settle

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// log reads Kong's log entry: JSON that may hold anything that a client, an upstream or a plugin put into it. The entry
// is checked as a whole, and then read in place, without a tree of its values.
type log struct {
	json []byte // valid; nil: the entry is missing, too long, nested too deep or no JSON
	at   int    // offset of what is read next
}

// newLog checks a log entry. json.Valid also bounds the depth.
func newLog(entry []byte) *log {
	if len(entry) > maxLogLength || !json.Valid(entry) {
		return new(log)
	}
	return &log{json: entry}
}

// Tried reports whether Kong may have passed a request to the upstream. It reports false only for a log entry whose
// list of tries is empty. For an entry that has no list, or that cannot be read, it reports true.
func Tried(entry []byte) bool {
	l := newLog(entry)
	if l.json == nil {
		return true
	}
	l.skipSpace()
	if l.json[l.at] != '{' {
		return true
	}
	listed, tried := false, false
	l.eachMember(func(key []byte) {
		if isKey(key, "tries") {
			listed, tried = true, tried || !l.isEmptyNext()
		}
		l.skipValue()
	})
	return tried || !listed
}

// isEmptyNext reports whether an empty list comes next, or an empty object, as Kong may write a list.
func (l *log) isEmptyNext() bool {
	if !l.opens() {
		return false
	}
	next := log{json: l.json, at: l.at + 1}
	next.skipSpace()
	return next.json[next.at] == ']' || next.json[next.at] == '}'
}

// sum returns the sum of the numbers that a path leads to, and reports whether there is a number and all are valid.
// null, and -1 among the latencies, count as no number. If an object on the path has a key twice, there is no sum.
func (l *log) sum(path []string) (float64, bool) {
	if l.json == nil {
		return 0, false
	}
	l.at = 0
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
	s.skipSpace()
	first := s.json[s.at]
	switch {
	case len(path) == 0:
		s.add(first)
	case first == '{':
		s.object(path)
	case first == '[' && path[0] == everyKey:
		s.eachItem(func() { s.value(path[1:]) })
	default:
		s.skipValue()
	}
}

// everyKey is the key of a path that stands for all keys.
const everyKey = "*"

// object adds what the path leads to in the object that comes next. Only keys that lead to a number are compared with
// one another, and there are at most maxNumbers of them.
func (s *sum) object(path []string) {
	var seen [][]byte
	s.eachMember(func(key []byte) {
		all := path[0] == everyKey
		if !all && !isKey(key, path[0]) || s.numbers > maxNumbers {
			s.skipValue()
			return
		}
		before := s.numbers
		s.value(path[1:])
		if all && s.numbers == before {
			return
		}
		key = unescaped(key)
		s.invalid = s.invalid || slices.ContainsFunc(seen, func(other []byte) bool { return bytes.Equal(key, other) })
		seen = append(seen, key)
	})
}

// add adds the number that comes next, whose first byte is given.
func (s *sum) add(first byte) {
	from := s.at
	s.skipValue()
	text := string(s.json[from:s.at])
	if first == 'n' || s.latency && text == "-1" {
		return
	}
	n, ok := parseAmount(text)
	s.total, s.numbers, s.invalid = s.total+n, s.numbers+1, s.invalid || !ok || s.numbers >= maxNumbers
}

// The methods below read valid JSON from l.at on, so they need not check what comes next.

func (l *log) skipSpace() {
	for l.json[l.at] <= ' ' {
		l.at++
	}
}

// opens reports whether an object or a list comes next.
func (l *log) opens() bool { return l.json[l.at] == '{' || l.json[l.at] == '[' }

// eachMember calls visit for each member of the object that comes next. visit must read the value; key is as written,
// without its quotes.
func (l *log) eachMember(visit func(key []byte)) {
	for l.at++; l.more(); {
		from := l.at + 1
		l.skipString()
		key := l.json[from : l.at-1]
		l.skipSpace()
		l.at++ // the colon
		l.skipSpace()
		visit(key)
	}
}

// eachItem calls visit for each item of the list that comes next. visit must read it.
func (l *log) eachItem(visit func()) {
	for l.at++; l.more(); {
		visit()
	}
}

// more advances to the next member or item of the open object or list, or past its end, and reports which.
func (l *log) more() bool {
	for {
		l.skipSpace()
		switch l.json[l.at] {
		case ',':
			l.at++
		case '}', ']':
			l.at++
			return false
		default:
			return true
		}
	}
}

// skipValue advances past the value that comes next, however deep it is.
func (l *log) skipValue() {
	for depth := 0; ; {
		switch l.json[l.at] {
		case '"':
			l.skipString()
		case '{', '[':
			depth++
			l.at++
		case '}', ']':
			depth--
			l.at++
		case ' ', '\t', '\r', '\n', ',', ':':
			l.at++
			continue
		default:
			l.skipWord()
		}
		if depth == 0 {
			return
		}
	}
}

// skipString advances past the string that comes next.
func (l *log) skipString() {
	for l.at++; l.json[l.at] != '"'; l.at++ {
		if l.json[l.at] == '\\' {
			l.at++
		}
	}
	l.at++
}

// skipWord advances past the number, boolean or null that comes next.
func (l *log) skipWord() {
	for l.at < len(l.json) && strings.IndexByte(" \t\r\n,:]}", l.json[l.at]) < 0 {
		l.at++
	}
}

// isKey reports whether a key, as written in JSON, is a name.
func isKey(key []byte, name string) bool {
	return string(key) == name || string(unescaped(key)) == name
}

// unescaped returns a key without its escapes.
func unescaped(key []byte) []byte {
	if bytes.IndexByte(key, '\\') < 0 {
		return key
	}
	var text string
	if err := json.Unmarshal(slices.Concat([]byte(`"`), key, []byte(`"`)), &text); err != nil {
		return key
	}
	return []byte(text)
}
