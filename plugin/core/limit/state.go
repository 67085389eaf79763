package limit

// State is the stored state of one bucket. The zero value is a bucket that was never spent from.
// It is a plain value: stores copy, encode and compare its fields.
type State struct {
	Algorithm Algorithm // that wrote the numbers; None: nothing was spent yet
	Tag       uint8     // of the limit that wrote them; a token bucket of another rate usually has another tag

	// Spent is, for a token bucket, its debt at the instant At in units of 1/Base token; for windows the tokens
	// spent in the window that starts at At; for a sliding log the sum of its entries.
	Spent int64
	// Previous counts the tokens spent in the window before (sliding window only).
	Previous int64
	// Base is a token bucket's units per token; 1 otherwise.
	Base int64
	// Mark counts what was refunded. It starts from the instant at which the bucket began to count; see refund.go.
	Mark int64
	// At is the instant for which Spent is exact (token bucket), the start of the window (fixed, sliding, calendar
	// window), or the latest instant in the log (sliding log).
	At Micros
	// Length is the length of the window that starts at At (calendar window only).
	Length Micros
	// Log holds the admissions within the window, oldest first (sliding log only).
	Log []Admission
	// Slots holds the requests in flight, by their deadlines (concurrency only; Spent is their number). Where a store
	// reports Spent and the first slot alone, Wait and Status are the same.
	Slots []Slot
}

// Admission is one entry of a sliding log: Cost tokens were spent at the instant At.
type Admission struct {
	At   Micros
	Cost int64
}

// Status describes a state under a limit at one instant.
type Status struct {
	Used      int64  // tokens, rounded up
	Remaining int64  // tokens that can still be spent at once; 0 in the soft zone
	Reset     Micros // when a bucket is full, a window ends, a log is empty or a slot may be free; never before now
	Soft      bool   // usage is above the soft threshold
}

// Advance brings s to the instant now under l: it refills buckets, rotates windows and drops what expired. Call it
// before Wait, Spend and Status. A clock that steps back by no more than [StepBack] changes nothing. A state that is
// further ahead of now is reset.
//
// A state that another limit wrote is converted: what was spent stays spent, in whole tokens (a fraction of a token
// counts as one). Where the algorithm changed, what the old one counted in its window (or as debt) counts in the new
// one as spent at one instant: a bucket's or log's last, otherwise now. The share of a sliding window's previous
// window has no meaning elsewhere and is dropped. A concurrency limit has a bucket of its own, which no other limit
// writes.
func (l *Limit) Advance(s *State, now Micros) {
	if s.ahead(now) || s.Algorithm == CalendarWindow && now >= s.At+s.Length {
		*s = State{}
	}
	written := l.hasWritten(s)
	switch {
	case s.Algorithm == None:
		s.Mark = mark(now)
	case !written:
		s.nextLife() // no refund of what another definition granted
	}
	if s.Tag = l.tag; s.Algorithm != l.kind {
		l.adopt(s, now)
	}
	switch l.kind {
	case TokenBucket:
		l.refill(s, now)
	case FixedWindow:
		l.alignFixed(s, now)
	case SlidingWindow:
		l.alignSliding(s, now)
	case SlidingLog:
		l.expireLog(s, now)
	case CalendarWindow:
		l.alignPeriod(s, now, written)
	case Concurrency:
		s.expireSlots(now)
	}
}

// hasWritten reports whether l, or a limit of the same algorithm and rate or window, wrote s.
func (l *Limit) hasWritten(s *State) bool {
	return s.Algorithm == l.kind && s.Tag == l.tag && (l.kind != TokenBucket || s.Base == l.base)
}

// ahead reports whether s was written by a clock that was further ahead than StepBack.
func (s *State) ahead(now Micros) bool { return s.At > now+StepBack }

// Wait returns the time from now until cost would be admitted if nothing else is spent: 0 if it is admitted now,
// [Never] if cost is above the capacity. It is exact: one microsecond less is denied. Of a concurrency limit it is an
// estimate, and cost a number of slots.
func (l *Limit) Wait(s *State, now Micros, cost int64) Micros {
	switch {
	case cost <= 0 || l.spec.SoftOnly:
		return 0
	case cost > l.Capacity():
		return Never
	}
	switch l.kind {
	case TokenBucket:
		return l.waitBucket(s, now, cost)
	case FixedWindow, CalendarWindow:
		return l.waitFixed(s, now, cost)
	case SlidingWindow:
		return l.waitSliding(s, now, cost)
	case Concurrency:
		return l.waitSlot(s, now, cost)
	default:
		return l.waitLog(s, now, cost)
	}
}

// WaitAfter returns a lower bound for Wait derived from a Status observed at now, or 0 if none follows. A token
// bucket's is short by a tick at most.
//
// In ticks, a debt of D units is paid back after ⌈D ÷ rate⌉, and cost waits ⌈(D − free) ÷ rate⌉, where free is hard −
// cost × base: that is no less than ⌈D ÷ rate⌉ − ⌈free ÷ rate⌉. D is more than (used − 1) × base.
func (l *Limit) WaitAfter(s *Status, now Micros, cost int64) Micros {
	switch {
	case cost <= 0 || l.spec.SoftOnly:
		return 0
	case cost > l.Capacity():
		return Never
	}
	free := l.hard - cost*l.base
	switch {
	case l.kind == TokenBucket && (s.Used-1)*l.base >= free:
		return max(s.Reset-now-Micros(ceilDiv(free, l.rate))*l.tick, 0)
	case l.countsPlainly() && s.Used > free:
		return s.Reset - now
	}
	return 0
}

// Spend takes cost tokens. Wait must have returned 0 for the same now and cost. Of a concurrency limit it takes
// nothing: use [Limit.Acquire].
func (l *Limit) Spend(s *State, now Micros, cost int64) {
	if cost <= 0 {
		return
	}
	if cost > l.Capacity() { // SoftOnly: more than is counted
		cost = l.Capacity()
	}
	switch l.kind {
	case TokenBucket:
		s.Spent = min(s.Spent+cost*l.base, l.hard)
	case SlidingLog:
		l.appendLog(s, cost)
	case Concurrency:
	default:
		s.Spent = min(s.Spent+cost, MaxProduct)
	}
}

// Status returns the numbers of s at now that clients read.
func (l *Limit) Status(s *State, now Micros) Status {
	used, reset := l.usage(s, now)
	status := Status{Used: ceilDiv(used, l.base), Reset: max(reset, now), Soft: used > l.soft}
	if !status.Soft && used < l.size {
		status.Remaining = (l.size - used) / l.base
	}
	return status
}

// Expiry returns an instant, in whole seconds, from which s means no more than the zero State does: a store may drop it
// then.
func (l *Limit) Expiry(s *State, now Micros) Micros {
	_, reset := l.usage(s, now)
	if l.kind == SlidingWindow {
		reset += l.spec.Window // the window counts in the next one too
	}
	if n := len(s.Slots); n > 0 {
		reset = s.Slots[n-1].Deadline
	}
	reset = max(reset, s.At) // s.At is later than now when the clock has stepped back
	return reset + (Second-reset%Second)%Second
}

// usage returns what is used of l, in units of 1/base token, and the instant when it resets.
func (l *Limit) usage(s *State, now Micros) (int64, Micros) {
	switch l.kind {
	case TokenBucket:
		return s.Spent, s.At + Micros(ceilDiv(s.Spent, l.rate))*l.tick
	case FixedWindow, CalendarWindow:
		return s.Spent, l.end(s)
	case SlidingWindow:
		return l.weighted(s, now), s.At + l.spec.Window
	case Concurrency:
		return s.Spent, now + l.waitSlot(s, now, l.hard-s.Spent+1) // when one slot more is free
	default:
		return s.Spent, l.logReset(s, now)
	}
}

// adopt converts a state of another algorithm (or of none) to l's.
func (l *Limit) adopt(s *State, now Micros) {
	tokens, at := s.tokens(), now
	switch {
	case s.Algorithm == TokenBucket:
		at = s.At
	case len(s.Log) > 0:
		at = s.Log[len(s.Log)-1].At
	}
	*s = State{Algorithm: l.kind, Base: 1, At: at, Tag: s.Tag, Mark: s.Mark}
	switch l.kind {
	case TokenBucket:
		s.Base = l.base
		s.At -= at % l.tick
		s.Spent = l.debt(tokens)
	case Concurrency:
		s.At = 0
	case SlidingLog:
		if s.Spent = tokens; tokens > 0 {
			s.Log = []Admission{{At: at, Cost: s.Spent}}
		}
	default:
		s.Spent = min(tokens, MaxProduct)
	}
}

// tokens returns what s counts as spent in its window or bucket, in whole tokens.
func (s *State) tokens() int64 {
	if s.Algorithm == TokenBucket {
		return ceilDiv(s.Spent, max(s.Base, 1))
	}
	return s.Spent
}

// The token bucket. A bucket's debt is what it lacks to be full, in units of 1/base token, where rate/base is the
// reduced fraction of tokens per tick: a tick refills exactly rate units and a token costs exactly base units. It is
// the same arithmetic as GCRA, whose theoretical arrival time is At + Spent ÷ rate ticks.

// refill reduces the debt by what the ticks since s.At refilled.
func (l *Limit) refill(s *State, now Micros) {
	if s.Base != l.base {
		s.Spent = l.debt(s.tokens())
		s.Base = l.base
	}
	s.Spent = min(s.Spent, l.maxDebt)   // a limit of the same base and a higher rate may have stored more
	if off := s.At % l.tick; off != 0 { // written in finer ticks: round up, so that no refill is counted twice
		s.At += l.tick - off
	}
	at := now / l.tick * l.tick
	if at <= s.At {
		return
	}
	elapsed := int64((at - s.At) / l.tick)
	// Clamped to the time to full before multiplying, so that the product stays in bounds.
	if elapsed >= ceilDiv(s.Spent, l.rate) {
		s.Spent = 0
	} else {
		s.Spent -= elapsed * l.rate
	}
	s.At = at
}

// debt returns tokens in units, bounded by maxDebt: a state written under a larger limit may hold more.
func (l *Limit) debt(tokens int64) int64 {
	return min(tokens, l.maxDebt/l.base) * l.base
}

func (l *Limit) waitBucket(s *State, now Micros, cost int64) Micros {
	missing := s.Spent - (l.hard - cost*l.base)
	if missing <= 0 {
		return 0
	}
	return s.At + Micros(ceilDiv(missing, l.rate))*l.tick - now
}
