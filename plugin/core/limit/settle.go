package limit

// Settlements replace what a request reserved when it was admitted by what it really cost, which may be known long
// after. A request that reserved R tokens and cost A gets R − A back where that is above 0, by the rules of refunds.
// Otherwise A − R is charged, even where the bucket has no room: then it owes more than its capacity, and admits
// nothing until that is paid back. A request that is not settled yet is in flight.
//
// In any interval the A of the requests that were admitted in it are, in sum, at most the limit's bound and what those
// in flight at its last admission cost beyond their R. Where no request costs more than it reserved, the bound itself
// holds.
//
// For a proof for a token bucket, let d be the debt, and e the debt of a bucket that never saw the returned tokens:
// from it each request took min(A, R) at its admission, or R if it is never settled, and what it cost beyond that when
// it was settled. Charges raise both alike, so e ≤ d by the proof in refund.go. Let t be the last admission of the
// interval. Then e at t is no less than what was taken in the interval less what refilled in it, and d at t is within
// the capacity. Of a request that was admitted in the interval at least A was taken by then, or min(A, R) if it was in
// flight. So all these A, less the excess of those in flight, are within the capacity and the refill.
//
// A fixed window counts at its last admission the A of the requests that were admitted and settled in it, the R of
// those in flight, and what was charged for earlier ones. All of that is within its quantity. So the promise is of one
// aligned window, as the limit's bound is. What a window owes at its end is forgiven.
//
// A charge after the end of the window in which its request was admitted counts in the window that counts now. The
// earlier count is gone, and a dropped charge would make answers free that end after their window. A refund after that
// end is dropped, because the reserved tokens ended with the window.
//
// So the sum of all that is settled is the sum of all A within one window, or as long as a token bucket could not have
// been full without what was returned. Otherwise a request is charged min(A, R) at least.
//
// Where the limit was changed in between, the state belongs to the new limit. The old one must neither refill it nor
// end its window: that would forget what the new one has counted. So a charge is dropped then, as a refund is. States
// have 4 bits of their limit's definition, so of changes that keep the algorithm and the base 1 in 16 goes unnoticed.
//
// A debt ends where a wait for it would be longer than MaxProduct microseconds, a window's count at MaxProduct tokens,
// and the debt of a limit that only warns at its capacity. What a charge has beyond that is cut off.

// Settle replaces the reserved tokens of a take by the actual ones. It returns the change in the units of
// [State.Spent]: above 0 what was charged, below 0 what came back, as far as that is certain to be missing still, see
// [Limit.Refund]. It needs no [Limit.Advance]. Where nothing changes s is unchanged. Settle it once: a second call
// charges or refunds again.
//
// Of a concurrency limit the slot of the take is released, whatever the request cost.
//
// Charges are made by limits for which [Limit.Settles] reports true.
func (l *Limit) Settle(s *State, now Micros, reserved, actual int64, r Receipt) (change int64) {
	reserved, actual = max(reserved, 0), max(actual, 0)
	if l.kind == Concurrency {
		return -s.releaseSlot(now, r)
	}
	if actual > reserved {
		return l.charge(s, now, actual-reserved)
	}
	return -l.Refund(s, now, min(reserved, l.Capacity())-actual, r)
}

// Settles reports whether requests of the limit can cost more than they reserved: of a token bucket, a leaky one
// included, or a fixed window. A sliding window or log would count the excess at the wrong instant.
func (l *Limit) Settles() bool { return l.kind == TokenBucket || l.countsPlainly() }

// charge takes tokens whether or not there is room, and returns how many units these are. A state of another limit
// stays as it is, unless it is from the future, which Advance resets.
func (l *Limit) charge(s *State, now Micros, tokens int64) int64 {
	if !l.Settles() || !l.hasWritten(s) && s.Algorithm != None && !s.ahead(now) {
		return 0
	}
	after, ceiling := *s, l.ceiling()
	l.Advance(&after, now)
	units := min(min(tokens, ceiling/l.base)*l.base, ceiling-after.Spent)
	if units <= 0 {
		return 0
	}
	after.Spent += units
	*s = after
	return units
}

// ceiling returns the most usage that a charge leaves.
func (l *Limit) ceiling() int64 {
	if l.kind == TokenBucket && l.spec.SoftOnly {
		return l.hard
	}
	return l.maxDebt
}
