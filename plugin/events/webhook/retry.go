package webhook

import (
	"net/http"
	"strconv"
	"time"
)

const (
	// firstDelay and maxDelay bound the delay after a failed try, which grows fourfold with each.
	firstDelay  = 5 * time.Second
	maxDelay    = 4 * time.Hour
	delayFactor = 4

	// KeepTrying is how long a delivery is tried.
	KeepTrying = 3 * 24 * time.Hour
	// DisableAfter is how long all tries of a webhook may fail before it is disabled.
	DisableAfter = 24 * time.Hour
	// DisableTries is how many tries must have failed then, at least.
	DisableTries = 5
	// OldSecretSigns is how long the secret before a rotation signs too.
	OldSecretSigns = 24 * time.Hour
)

// Backoff returns the delay before the next try of a delivery that has failed a number of times: exponential, with full
// jitter. fraction is a random number from 0 to below 1.
func Backoff(failures int, fraction float64) time.Duration {
	delay := firstDelay
	for i := 1; i < failures && delay < maxDelay; i++ {
		delay *= delayFactor
	}
	return time.Duration(fraction * float64(min(delay, maxDelay)))
}

// RetryAfter returns how long the answer of a receiver wants the sender to wait, from 0 to the longest backoff.
func RetryAfter(status int, header http.Header, now time.Time) time.Duration {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 63); err == nil {
		return time.Duration(min(seconds, uint64(maxDelay/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxDelay)
}
