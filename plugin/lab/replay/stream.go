package replay

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

const (
	// sortWindow is how far apart requests may stand in the order of a log that start at the same time. Logs are
	// written when requests end.
	sortWindow = 600 * limit.Second
	// defaultWaiting bounds how many requests are sorted at once, about 300 bytes each.
	defaultWaiting = 1 << 20
	// lookahead is how many requests of a log behind one are read to judge whether its time is wrong.
	lookahead = 1000
	// shownProblems is how many lines that hold no request are shown.
	shownProblems = 5
)

// Stream merges logs, and sorts their requests by the time at which they started.
type Stream struct {
	logs     []*source
	waiting  int
	progress func()

	sorted []*Request   // by their times
	newest limit.Micros // of the requests that were read
	last   limit.Micros // of the requests that have left
	read   int64

	counts Counts
}

type source struct {
	*Log

	ahead  []*Request   // that were read: the next one, and those behind it by which its time is judged
	newest limit.Micros // of the requests that were the next one
	ended  bool         // all of the log was read
}

func (l *source) readAhead(n int) {
	for len(l.ahead) < n && !l.ended {
		if r := l.next(); r != nil {
			l.ahead = append(l.ahead, r)
		} else {
			l.ended = true
		}
	}
}

// Counts holds what a stream has read.
type Counts struct {
	Lines    int64     `json:"lines"`
	Requests int64     `json:"requests"` // that it has yielded
	Unparsed int64     `json:"unparsed"` // lines that hold no request
	Late     int64     `json:"late"`     // requests that stand too far behind later ones to be sorted; they are left out
	Problems []Problem `json:"problems"` // of the first lines that hold no request
	Gap      Gap       `json:"longest_gap"`
	Broken   []Problem `json:"broken"` // logs that break off, with the line to resume at
}

// Gap is a time without requests.
type Gap struct {
	From    limit.Micros `json:"-"`
	Seconds float64      `json:"seconds"`
}

// StreamOptions configures a stream. Zero fields have defaults.
type StreamOptions struct {
	Waiting  int    // 0: defaultWaiting
	Progress func() // called now and then while logs are read; nil: nothing is
}

// NewStream returns the requests of logs, in the order of their times.
func NewStream(logs []*Log, o StreamOptions) *Stream {
	if o.Waiting == 0 {
		o.Waiting = defaultWaiting
	}
	if o.Progress == nil {
		o.Progress = func() {}
	}
	s := &Stream{waiting: o.Waiting, progress: o.Progress}
	for _, l := range logs {
		l.problem = s.problem
		l.broken = func(p Problem) { s.counts.Broken = append(s.counts.Broken, p) }
		s.logs = append(s.logs, &source{Log: l})
	}
	return s
}

func (s *Stream) problem(p Problem) {
	if len(s.counts.Problems) < shownProblems {
		s.counts.Problems = append(s.counts.Problems, p)
	}
}

// Counts returns what the stream has read so far.
func (s *Stream) Counts() Counts {
	counts := s.counts
	counts.Problems = append([]Problem{}, counts.Problems...)
	counts.Broken = append([]Problem{}, counts.Broken...)
	for _, l := range s.logs {
		counts.Lines += l.Lines()
		counts.Unparsed += l.Unparsed
	}
	return counts
}

// Each calls visit with each request, until it returns an error or ctx ends. A log that breaks off is counted, and the
// others are read on.
func (s *Stream) Each(ctx context.Context, visit func(*Request) error) error {
	for _, l := range s.logs {
		s.prepare(l)
	}
	for l := s.earliest(); l != nil; l = s.earliest() {
		if s.read%1024 == 0 {
			if s.progress(); ctx.Err() != nil {
				return ctx.Err()
			}
		}
		s.push(l.ahead[0])
		l.ahead = l.ahead[1:]
		s.prepare(l)
		for len(s.sorted) > s.waiting || len(s.sorted) > 0 && s.sorted[0].At <= s.newest-sortWindow {
			if err := s.pop(visit); err != nil {
				return err
			}
		}
	}
	for len(s.sorted) > 0 {
		if err := s.pop(visit); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// earliest returns the log whose next request started first; nil: all have ended.
func (s *Stream) earliest() (first *source) {
	for _, l := range s.logs {
		if len(l.ahead) > 0 && (first == nil || l.ahead[0].At < first.ahead[0].At) {
			first = l
		}
	}
	return first
}

// prepare reads the next request of a log. It leaves out those whose time is wrong: the log would wait for the end of
// all others, and its later requests would seem late.
func (s *Stream) prepare(l *source) {
	l.readAhead(1)
	for len(l.ahead) > 0 && l.ahead[0].At > l.newest+sortWindow && l.isAhead() {
		s.counts.Late++
		l.ahead = l.ahead[1:]
	}
	if len(l.ahead) > 0 {
		l.newest = max(l.newest, l.ahead[0].At)
	}
}

// isAhead reports whether most of the requests behind the next one started before it by more than the window. After a
// time without requests only a few did, such as those that took long.
func (l *source) isAhead() bool {
	l.readAhead(1 + lookahead)
	next, behind, earlier := l.ahead[0], l.ahead[1:], 0
	for _, r := range behind {
		if r.At < next.At-sortWindow {
			earlier++
		}
	}
	return 2*earlier > len(behind)
}

// push adds a request to those that are sorted, behind those of its time. Logs are nearly sorted, so its place is near
// the end.
func (s *Stream) push(r *Request) {
	s.read++
	if r.At < s.last {
		s.counts.Late++
		return
	}
	s.newest = max(s.newest, r.At)
	place := len(s.sorted)
	for place > 0 && s.sorted[place-1].At > r.At {
		place--
	}
	s.sorted = slices.Insert(s.sorted, place, r)
}

func (s *Stream) pop(visit func(*Request) error) error {
	r := s.sorted[0]
	s.sorted = s.sorted[1:]
	if gap := float64(r.At-s.last) / 1e6; s.last > 0 && gap > s.counts.Gap.Seconds {
		s.counts.Gap = Gap{s.last, gap}
	}
	s.last = r.At
	s.counts.Requests++
	return visit(r)
}
