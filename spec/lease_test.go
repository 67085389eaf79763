package spec

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

func TestSoakFourProcessesOnOneRedisNeverExceedAnyAlgorithmsBound(t *testing.T) {
	t.Parallel()
	f := onSocket(t, redistest.Single(t))
	members := f.joinAll(4)
	awaitTurn(t)
	const limit = 300 // a second: a third of the load
	for _, b := range []bound{
		{algorithm: "token_bucket", burst: limit},
		{algorithm: "leaky_bucket"},
		{algorithm: "fixed_window"},
		{algorithm: "sliding_window"},
		{algorithm: "sliding_log"},
	} {
		b.limit, b.window = limit, time.Second
		tr := f.offer(by(b.algorithm), steady(3*limit))
		for _, m := range members {
			tr.to(m, m.open(`"accuracy":"exact",`, b.config()), 8)
		}
		tr.awaitDenials(t, 100)
		// Most of the limit must be used. A bucket without burst admits one request at a time, and on a busy machine requests
		// come together.
		mostUnder := 60.0
		if b.algorithm == "leaky_bucket" {
			mostUnder = 90
		}
		b.check(t, tr.lastFor(soak.For(t, time.Second)), mostUnder)
	}
}

// admission is one admitted request: it was decided at some instant from Sent to Answered.
type admission struct {
	Sent, Answered time.Duration
	Tokens         float64 // that it spent
	Above          float64 // tokens that an interval that ends with it may have above the limit
}

// bound is a limit whose promise is compared with the admissions. An admission was decided at some instant from when
// it was sent to when it was answered, so it counts in an interval only if all of it lies there.
type bound struct {
	algorithm string
	limit     int // per window
	window    time.Duration
	burst     int    // of a token bucket
	others    string // settings of the limit, as JSON, each with a comma before
}

// yearly returns a quota that does not refill while a spec runs.
func yearly(quota int) bound {
	return bound{algorithm: "fixed_window", limit: quota, window: 31_536_000 * time.Second}
}

// config returns the limit as JSON of a plugin config.
func (b bound) config() string {
	others := b.others
	if b.burst > 0 {
		others += fmt.Sprintf(`,"burst":%d`, b.burst)
	}
	return fmt.Sprintf(`{"name":"l","scope":"tenant","algorithm":%q,"limit":%d,"window_size":%d%s}`, b.algorithm, b.limit,
		int(b.window.Seconds()), others)
}

func (b bound) rate() float64 { return float64(b.limit) / b.window.Seconds() }

// admitted returns the admitted requests in the order of their answers.
func admitted(samples []sample) []admission {
	var all []admission
	for i := range samples {
		if one := &samples[i]; one.Status == http.StatusOK {
			all = append(all, admission{Sent: one.Sent, Answered: one.Answered, Tokens: 1})
		}
	}
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.Answered, b.Answered) })
	return all
}

// over returns the number of admissions above the limit, in the worst interval or window.
func (b bound) over(samples []sample) float64 {
	all, most := admitted(samples), 0
	switch b.algorithm {
	case "token_bucket", "leaky_bucket":
		return excess(all, b.rate(), float64(max(b.burst, 1)))
	case "sliding_log":
		most = b.longest(all)
	default:
		for _, n := range b.windows(all) {
			most = max(most, n)
		}
	}
	return float64(max(most-b.limit, 0))
}

// longest returns the most admissions in an interval of a window that begins when one of them was sent.
func (b bound) longest(all []admission) (most int) {
	for _, first := range all {
		n := 0
		for _, a := range all[answeredFrom(all, first.Sent):] {
			if a.Answered >= first.Sent+b.window {
				break
			}
			if a.Sent >= first.Sent {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// windows returns the number of admissions in each window, by its start.
func (b bound) windows(all []admission) map[time.Duration]int {
	count := map[time.Duration]int{}
	for _, a := range all {
		if at := a.Sent.Truncate(b.window); at == a.Answered.Truncate(b.window) {
			count[at]++
		}
	}
	return count
}

// ideal returns the number of these requests that an ideal limiter admits: a bucket, or fixed windows.
func (b bound) ideal(samples []sample) int {
	sent := make([]time.Duration, len(samples))
	for i := range samples {
		sent[i] = samples[i].Sent
	}
	slices.Sort(sent)
	n, count := 0, map[time.Duration]int{}
	burst := float64(max(b.burst, 1))
	tokens, before := burst, time.Duration(0)
	for _, at := range sent {
		if b.algorithm == "fixed_window" {
			if w := at.Truncate(b.window); count[w] < b.limit {
				count[w]++
				n++
			}
			continue
		}
		tokens = min(tokens+b.rate()*(at-before).Seconds(), burst)
		if before = at; tokens >= 1 {
			tokens--
			n++
		}
	}
	return n
}

// under returns the percentage by which the admissions are fewer than those of the ideal limiter.
func (b bound) under(samples []sample) float64 {
	ideal := b.ideal(samples)
	return 100 * float64(ideal-counted(samples, http.StatusOK)) / float64(max(ideal, 1))
}

// check fails the test if an interval exceeds the limit, or the admissions are fewer than the ideal ones by more than
// mostUnder percent.
func (b bound) check(t testing.TB, samples []sample, mostUnder float64) {
	t.Helper()
	over, under := b.over(samples), b.under(samples)
	t.Logf("%s: %d requests, %d admitted: %.2g over, %.2f %% under",
		b.algorithm, len(samples), counted(samples, http.StatusOK), over, under)
	if over > 1e-6 {
		t.Errorf("%s: %.1f requests were admitted above %d per %v, in the worst interval",
			b.algorithm, over, b.limit, b.window)
	}
	if under > mostUnder {
		t.Errorf("%s: %.2f %% fewer requests were admitted than the limit allows, at most %g %% may be",
			b.algorithm, under, mostUnder)
	}
}
