package limit

// alignFixed starts a new window when the stored one is over. Windows are aligned to the Unix epoch.
func (l *Limit) alignFixed(s *State, now Micros) {
	l.alignStart(s)
	if start := now - now%l.spec.Window; start > s.At {
		s.At, s.Spent = start, 0
		s.nextLife()
	}
}

// alignStart moves the start of a window of another length to the start of l's window that contains it.
func (l *Limit) alignStart(s *State) {
	if off := s.At % l.spec.Window; off != 0 {
		s.At -= off
		s.nextLife()
	}
}

func (l *Limit) waitFixed(s *State, now Micros, cost int64) Micros {
	if s.Spent <= l.hard-cost {
		return 0
	}
	return l.end(s) - now
}

// countsPlainly reports whether l counts what is spent in a window and forgets it at the end.
func (l *Limit) countsPlainly() bool { return l.kind == FixedWindow || l.kind == CalendarWindow }

// end returns the end of a window that counts plainly.
func (l *Limit) end(s *State) Micros {
	if l.kind == CalendarWindow {
		return s.At + s.Length
	}
	return s.At + l.spec.Window
}

// The calendar window is a fixed window whose windows are periods of different lengths, so a state has the length of
// its own. It counts until that has passed, whatever calendar divides time by then: what was spent in it is carried
// over to the period of another zone, anchor or unit, and to one that other zone data bounds.

// zoneDrift is by how much the bounds of a period can differ between versions of the zone data.
const zoneDrift = 3 * 3600 * Second

// alignPeriod moves a state that counts to the period that contains now. Written reports whether l's definition, but
// maybe not its zone data, wrote the state. Then an earlier period is that of a clock that has stepped back, or of
// other zone data. A later one is the next period if it begins where the state's ends, and else the same one.
func (l *Limit) alignPeriod(s *State, now Micros, written bool) {
	start, end := l.PeriodAt(now)
	left := s.At + s.Length - start
	switch {
	case !written || start == s.At:
		s.At, s.Length = start, end-start
	case start > s.At:
		if left <= zoneDrift {
			s.Spent = 0
		}
		s.At, s.Length = start, end-start
		s.nextLife()
	default:
		s.Length = max(s.Length, end-s.At)
	}
}

// WindowAt returns the length of the window of l that contains an instant. For the instant 0, which stands for an
// unknown one, it is the longest.
func (l *Limit) WindowAt(now Micros) Micros {
	if l.spec.Calendar == nil || now <= 0 {
		return l.spec.Window
	}
	start, end := l.PeriodAt(now)
	return end - start
}

// PeriodAt returns the start and the end of the window of l that contains an instant: a period of its calendar, or else
// one of the windows that are aligned to the Unix epoch.
func (l *Limit) PeriodAt(now Micros) (start, end Micros) {
	if l.spec.Calendar == nil {
		start = now - now%l.spec.Window
		return start, start + l.spec.Window
	}
	from, to := l.spec.Calendar.Window(int64(now))
	return Micros(from), Micros(to)
}

// The sliding window is the two-window approximation: what was spent in the window before counts by the share of it
// that a window ending now still covers. Usage is counted in units of 1/ticks token, so the share is exact.

// alignSliding rotates the windows when the current one is over.
func (l *Limit) alignSliding(s *State, now Micros) {
	l.alignStart(s)
	start := now - now%l.spec.Window
	if start > s.At {
		s.nextLife()
	}
	switch {
	case start <= s.At:
	case start == s.At+l.spec.Window:
		s.At, s.Previous, s.Spent = start, s.Spent, 0
	default:
		s.At, s.Previous, s.Spent = start, 0, 0
	}
	s.Previous = min(s.Previous, l.mostCounted())
}

// mostCounted returns the most of a window that is multiplied, or stored in 6 bytes. A lowered limit can find more;
// that much denies the whole window in any case.
func (l *Limit) mostCounted() int64 { return min(MaxProduct/l.ticks, 1<<48-1) }

// weighted returns the usage of s at now in units: previous × (ticks − elapsed) + current × ticks.
func (l *Limit) weighted(s *State, now Micros) int64 {
	return s.Previous*(l.ticks-l.elapsed(s, now)) + min(s.Spent, l.mostCounted())*l.ticks
}

// elapsed returns the ticks of the current window that have passed; 0 when the clock stepped back before it.
func (l *Limit) elapsed(s *State, now Micros) int64 {
	return int64(max(now-s.At, 0) / l.tick)
}

// waitSliding solves previous × (ticks − e) ≤ room for the smallest e, in this window or in the next, where what is
// current now will be the previous.
func (l *Limit) waitSliding(s *State, now Micros, cost int64) Micros {
	current := min(s.Spent, l.mostCounted())
	at, previous, room := s.At, s.Previous, l.hard-(cost+current)*l.ticks
	if room >= 0 && previous*(l.ticks-l.elapsed(s, now)) <= room {
		return 0
	}
	if room < 0 {
		at, previous, room = at+l.spec.Window, current, l.hard-cost*l.ticks
	}
	e := l.ticks - room/previous
	return at + Micros(e)*l.tick - now
}

// The sliding log stores each admission for one window, so it is exact. An admission at t no longer counts at
// t + window.

// expireLog drops the admissions that a window ending now no longer covers. The log keeps the latest instant it was
// used: what expired then must stay expired when the clock steps back.
func (l *Limit) expireLog(s *State, now Micros) {
	s.At = max(s.At, now)
	for len(s.Log) > 0 && s.Log[0].At <= s.At-l.spec.Window {
		s.dropOldest()
	}
}

func (s *State) dropOldest() {
	s.Spent -= s.Log[0].Cost
	if s.Log = s.Log[1:]; len(s.Log) == 0 {
		s.Log = nil
	}
}

// logReset returns the instant when the last admission of the log expires.
func (l *Limit) logReset(s *State, now Micros) Micros {
	if len(s.Log) == 0 {
		return now
	}
	return s.Log[len(s.Log)-1].At + l.spec.Window
}

func (l *Limit) waitLog(s *State, now Micros, cost int64) Micros {
	missing := s.Spent - (l.hard - cost)
	if missing <= 0 {
		return 0
	}
	for _, a := range s.Log {
		if missing -= a.Cost; missing <= 0 {
			return a.At + l.spec.Window - now
		}
	}
	return Never // not reached: without its entries the log is empty, and cost is within the capacity
}

// appendLog adds an admission, at the latest instant of the log.
func (l *Limit) appendLog(s *State, cost int64) {
	if n := len(s.Log); n > 0 && s.Log[n-1].At >= s.At {
		s.Log[n-1].Cost += cost
	} else {
		s.Log = append(s.Log, Admission{At: s.At, Cost: cost})
	}
	s.Spent += cost
	// A log that never denies would grow without end: it drops the oldest beyond what it must count.
	for l.spec.SoftOnly && s.Spent > l.hard {
		if excess := s.Spent - l.hard; excess < s.Log[0].Cost {
			s.Log[0].Cost -= excess
			s.Spent -= excess
		} else {
			s.dropOldest()
		}
	}
}

// Units holds the numbers that a limit is compiled to, for a store that does the arithmetic elsewhere: Redis's Lua
// reads them as doubles, in which all of them and all sums of two of their products are exact. The algorithms of this
// package define what they mean together.
//
// The zero value belongs to no limit.
type Units struct {
	// Kind is the algorithm whose state the limit stores: a leaky bucket is stored as a token bucket, and a fixed window
	// with a calendar as a calendar window.
	Kind Algorithm
	// Tick is the resolution in which time is read: 1 µs, 1 ms or 1 s.
	Tick Micros
	// Ticks is the window in ticks.
	Ticks int64
	// Rate is the number of units that a token bucket refills per tick; 0 for other kinds.
	Rate int64
	// Base is the number of units in a token: Rate/Base is a token bucket's reduced fraction of tokens per tick. It is
	// Ticks for a sliding window, and 1 for other kinds.
	Base int64
	// Hard is the usage in units above which a request is denied; for a limit that only warns, the most that is
	// counted.
	Hard int64
	// Ceiling is the most usage in units that a charge leaves, see settle.go.
	Ceiling int64
	// Step is the number of ticks that refill a token, rounded up: the mark of a token bucket counts that many as one. 0
	// for other kinds.
	Step int64
	// Tag has 4 bits of the limit's definition.
	Tag uint8
}

// Units returns the numbers that l was compiled to.
func (l *Limit) Units() Units {
	return Units{
		Kind: l.kind, Tick: l.tick, Ticks: l.ticks, Rate: l.rate, Base: l.base, Hard: l.hard, Ceiling: l.ceiling(),
		Step: l.step, Tag: l.tag,
	}
}
