package limit

// ExhaustedAfter returns how long the tokens left of a bucket last if so many are spent per second from now on, or 0 if
// they last for a whole window. What a bucket refills, and what leaves a sliding window if the used tokens were spent
// evenly, is subtracted from the rate. Requests in flight have no such rate: a concurrency limit has 0.
func (s *Spec) ExhaustedAfter(used, left int64, rate float64) Micros {
	if s.Algorithm == Concurrency {
		return 0
	}
	seconds := float64(s.Window / Second)
	switch s.Algorithm {
	case TokenBucket, LeakyBucket:
		rate -= float64(s.Quantity) / seconds
	case SlidingWindow, SlidingLog:
		rate -= float64(used) / seconds
	}
	if rate <= 0 || left <= 0 || float64(left)/rate >= seconds {
		return 0
	}
	return Micros(float64(left) / rate * float64(Second))
}
