package limit

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
