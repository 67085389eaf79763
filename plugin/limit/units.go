package limit

// Units are the numbers that a limit is compiled to, for a store that does the arithmetic elsewhere: Redis's Lua reads
// them as doubles, in which all of them and all sums of two of their products are exact. They decide nothing by
// themselves; what they mean together is written down in this package's algorithms.
//
// The zero value is no limit's.
type Units struct {
	// Kind is the algorithm whose state the limit keeps: a leaky bucket is kept as a token bucket.
	Kind Algorithm
	// Tick is the resolution in which time is read: 1 µs, 1 ms or 1 s.
	Tick Micros
	// Ticks is the window in ticks.
	Ticks int64
	// Rate is how many units a token bucket gets back per tick; 0 for other kinds.
	Rate int64
	// Base is how many units a token has: Rate/Base is a token bucket's reduced fraction of tokens per tick. It is
	// Ticks for a sliding window, and 1 for other kinds.
	Base int64
	// Hard is the usage in units above which a request is denied; for a limit that only warns, the most that is
	// remembered.
	Hard int64
	// Step is in how many ticks a token is refilled, rounded up: the mark of a token bucket counts so many as one. 0 for
	// other kinds.
	Step int64
	// Tag has 4 bits of the limit's definition.
	Tag uint8
}

// Units are the numbers that l was compiled to.
func (l *Limit) Units() Units {
	return Units{Kind: l.kind, Tick: l.tick, Ticks: l.ticks, Rate: l.rate, Base: l.base, Hard: l.hard, Step: l.step, Tag: l.tag}
}
