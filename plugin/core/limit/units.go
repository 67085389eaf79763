package limit

// Units holds the numbers that a limit is compiled to, for a store that does the arithmetic elsewhere: Redis's Lua
// reads them as doubles, in which all of them and all sums of two of their products are exact. The algorithms of this
// package define what they mean together.
//
// The zero value belongs to no limit.
type Units struct {
	// Kind is the algorithm whose state the limit stores: a leaky bucket is stored as a token bucket.
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
