package replay

import (
	"container/heap"
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
	logs     []*Log
	waiting  int
	progress func()

	newestOf []limit.Micros // of the requests of each log that were read
	heads    []*Request     // the next request of each log; nil: it has ended
	behind   [][]*Request   // the requests behind a head that were read to judge the head's time
	ended    []bool         // all of a log was read
	heap     requestHeap
	free     []*Request
	newest   limit.Micros // of the requests that were read
	last     limit.Micros // of the requests that have left
	read     int64

	counts Counts
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
	s := &Stream{
		logs: logs, waiting: o.Waiting, progress: o.Progress,
		newestOf: make([]limit.Micros, len(logs)), heads: make([]*Request, len(logs)),
		behind: make([][]*Request, len(logs)), ended: make([]bool, len(logs)),
	}
	for _, l := range logs {
		l.free, l.problem = s.newRequest, s.problem
		l.broken = func(p Problem) { s.counts.Broken = append(s.counts.Broken, p) }
	}
	return s
}

// newRequest returns empty memory for a request.
func (s *Stream) newRequest() *Request {
	last := len(s.free) - 1
	if last < 0 {
		return new(Request)
	}
	r := s.free[last]
	s.free = s.free[:last]
	r.reset()
	return r
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

// Each calls visit with each request, until it returns an error or ctx ends. visit must not keep the request. A log
// that breaks off is counted, and the others are read on.
func (s *Stream) Each(ctx context.Context, visit func(*Request) error) error {
	for i := range s.logs {
		s.advance(i)
	}
	for i := s.earliest(); i >= 0; i = s.earliest() {
		if s.read%1024 == 0 {
			if s.progress(); ctx.Err() != nil {
				return ctx.Err()
			}
		}
		r := s.heads[i]
		s.advance(i)
		s.push(r)
		for len(s.heap) > s.waiting || len(s.heap) > 0 && s.heap[0].At <= s.newest-sortWindow {
			if err := s.pop(visit); err != nil {
				return err
			}
		}
	}
	for len(s.heap) > 0 {
		if err := s.pop(visit); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// earliest returns the index of the log whose next request started first; -1: all have ended.
func (s *Stream) earliest() int {
	first := -1
	for i, r := range s.heads {
		if r != nil && (first < 0 || r.At < s.heads[first].At) {
			first = i
		}
	}
	return first
}

// advance reads the next request of a log. It leaves out those whose time is wrong: the log would wait for the end of
// all others, and its later requests would seem late.
func (s *Stream) advance(i int) {
	r := s.following(i)
	for r != nil && r.At > s.newestOf[i]+sortWindow && s.isAhead(i, r.At) {
		s.counts.Late++
		s.free = append(s.free, r)
		r = s.following(i)
	}
	if s.heads[i] = r; r != nil {
		s.newestOf[i] = max(s.newestOf[i], r.At)
	}
}

// isAhead reports whether most of the next requests of a log started before an instant by more than the window. After a
// time without requests only a few did, such as those that took long.
func (s *Stream) isAhead(i int, at limit.Micros) bool {
	for len(s.behind[i]) < lookahead {
		r := s.next(i)
		if r == nil {
			break
		}
		s.behind[i] = append(s.behind[i], r)
	}
	earlier := 0
	for _, r := range s.behind[i] {
		if r.At < at-sortWindow {
			earlier++
		}
	}
	return 2*earlier > len(s.behind[i])
}

// following returns the request of a log that follows its head. At the end of the log it returns nil.
func (s *Stream) following(i int) *Request {
	if len(s.behind[i]) == 0 {
		return s.next(i)
	}
	r := s.behind[i][0]
	s.behind[i] = s.behind[i][1:]
	return r
}

// next reads a request of a log. At the end of the log it returns nil.
func (s *Stream) next(i int) *Request {
	if s.ended[i] {
		return nil
	}
	r := s.logs[i].next()
	s.ended[i] = r == nil
	return r
}

// push adds a request to those that are sorted.
func (s *Stream) push(r *Request) {
	s.read++
	r.place = s.read
	if r.At < s.last {
		s.counts.Late++
		s.free = append(s.free, r)
		return
	}
	s.newest = max(s.newest, r.At)
	heap.Push(&s.heap, r)
}

// pop visits the earliest request.
func (s *Stream) pop(visit func(*Request) error) error {
	r := heap.Pop(&s.heap).(*Request)
	if gap := float64(r.At-s.last) / 1e6; s.last > 0 && gap > s.counts.Gap.Seconds {
		s.counts.Gap = Gap{s.last, gap}
	}
	s.last = r.At
	s.counts.Requests++
	err := visit(r)
	s.free = append(s.free, r)
	return err
}

// requestHeap orders requests by time, and those of one time by their places.
type requestHeap []*Request

// Len implements heap.Interface.
func (h requestHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h requestHeap) Less(i, j int) bool {
	return h[i].At < h[j].At || h[i].At == h[j].At && h[i].place < h[j].place
}

// Swap implements heap.Interface.
func (h requestHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *requestHeap) Push(r any) { *h = append(*h, r.(*Request)) }

// Pop implements heap.Interface.
func (h *requestHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = slices.Delete(*h, last, last+1)
	return r
}
