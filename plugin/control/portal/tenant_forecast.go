package portal

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// quotaUse is what is used of a limit, and how fast.
type quotaUse struct {
	Capacity  int64 // tokens that can be spent at once
	Used      int64 // tokens
	Limit     int64 // tokens that a window allows
	Window    int64 // seconds
	Algorithm string
	Reset     time.Time // when the window ends
	Rate      float64   // tokens spent per second lately
}

// exhaustedAt returns the instant at which nothing is left if tokens are spent at the same rate from now on, or the
// zero time if the limit lasts: until its window ends, or for good, because it refills as fast. What a bucket refills,
// and what leaves a sliding window if it was spent evenly, is subtracted from the rate.
func (q *quotaUse) exhaustedAt(now time.Time) time.Time {
	left := float64(q.Capacity - q.Used)
	if left <= 0 {
		return now
	}
	if q.Window <= 0 {
		return time.Time{}
	}
	rate := q.Rate
	switch q.Algorithm {
	case "token_bucket", "leaky_bucket":
		rate -= float64(q.Limit) / float64(q.Window)
	case "sliding_window", "sliding_log":
		rate -= float64(q.Used) / float64(q.Window)
	}
	if rate <= 0 || left/rate >= float64(q.Window) {
		return time.Time{}
	}
	at := now.Add(time.Duration(left / rate * float64(time.Second))).Truncate(time.Second)
	if q.Algorithm == "fixed_window" && !q.Reset.IsZero() && !at.Before(q.Reset) {
		return time.Time{}
	}
	return at
}

// rateOf returns how many tokens of a limit were spent per second, given requests by endpoint in a span. The limit of
// requests without an endpoint of their own leaves out those that another limit of its name covers.
func rateOf(l *answers.LimitInForce, all []answers.LimitInForce, uses []answers.UsageRow, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	covered := map[string]bool{}
	for i := range all {
		if all[i].Policy == l.Policy && all[i].Endpoint != "" {
			covered[all[i].Endpoint] = true
		}
	}
	var admitted int64
	for _, u := range uses {
		endpoint := orZero(u.Endpoint)
		if l.Endpoint == endpoint && l.Endpoint != "" || l.Endpoint == "" && !covered[endpoint] {
			admitted += u.Admitted
		}
	}
	return float64(admitted*max(l.Cost, 1)) / span.Seconds()
}
