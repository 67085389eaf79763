package spec

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// check compares every answer with the promises.
func (c *course) check(s *storm) {
	s.t.Helper()
	for _, l := range s.lanes {
		c.checkAnswers(s, l)
	}
	for _, mode := range modes {
		c.checkBounds(s, mode)
	}
	if !c.kills {
		c.checkWaits(s)
	}
}

// checkAnswers checks each answer of a lane alone, and that the load went on.
func (c *course) checkAnswers(s *storm, l lane) {
	s.t.Helper()
	during, wrong := 0, map[string]int{}
	for _, one := range s.samples[l] {
		within := one.Answered >= c.begun && one.Sent <= c.recovered
		if within {
			during++
		}
		if fault := c.faultOf(&one, l, within); fault != "" {
			wrong[fault]++
		}
	}
	for fault, n := range wrong {
		s.t.Errorf("%+v: %d of %d answers: %s", l, n, len(s.samples[l]), fault)
	}
	if during < connectionsPerLane {
		s.t.Errorf("%+v: %d answers in the disaster: the load stopped", l, during)
	}
}

// faultOf returns the fault of an answer, or "". within means that it may have been decided in the disaster.
func (c *course) faultOf(one *sample, l lane, within bool) string {
	spared := c.harmless || l.bystander || l.node > 0 // only the first node is cut off
	switch {
	case one.byRedis():
		return ""
	case c.kills && one.Status == 500 && within:
		return ""
	case spared:
		return fmt.Sprintf("%d without Redis, which was reachable", one.Status)
	case !within:
		return fmt.Sprintf("%d without Redis, before the disaster or after the recovery", one.Status)
	case !one.Degraded:
		return fmt.Sprintf("%d without X-RateLimit-Degraded", one.Status)
	case l.mode == "open" && one.Status == 200:
		return ""
	case l.mode == "local" && (one.Status == 200 || one.Status == 429):
		return ""
	case l.mode != "closed" || one.Status != 503:
		return fmt.Sprintf("%d without Redis", one.Status)
	case !strings.HasSuffix(one.Type, "#temporary-reduced-capacity"):
		return "a 503 of the type " + one.Type
	case one.RetryAfter < 1:
		return fmt.Sprintf("a 503 with Retry-After: %d", one.RetryAfter)
	}
	return ""
}

// checkBounds checks that Redis admitted no more than the limit, and each node without Redis no more than its share.
func (c *course) checkBounds(s *storm, mode string) {
	s.t.Helper()
	shared := s.admitted(func(l lane, one *sample) bool { return l.mode == mode && !l.bystander && one.byRedis() })
	if over := excess(shared, chaosLimit, chaosLimit); over > float64(c.refills*chaosLimit) {
		s.t.Errorf("%s: Redis admitted %.1f more than the limit and %d full buckets", mode, over, c.refills)
	}
	again := slices.DeleteFunc(shared, func(a admission) bool { return a.Sent < c.recovered })
	if over := excess(again, chaosLimit, chaosLimit); over > 0 {
		s.t.Errorf("%s: after the recovery Redis admitted %.1f more than the limit", mode, over)
	}
	if mode != "local" {
		return
	}
	share := float64(max(1, chaosShare/len(s.nodes)))
	for i := range s.nodes {
		alone := s.admitted(func(l lane, one *sample) bool { return l.mode == mode && l.node == i && one.Degraded })
		if over := excess(alone, share, share); over > 0 {
			s.t.Errorf("local: node %d admitted %.1f more than its share of %v a second", i, over, share)
		}
	}
}

// admitted returns the admitted requests for which matches returns true, in the order of their answers.
func (s *storm) admitted(matches func(lane, *sample) bool) []admission {
	var all []admission
	for l, samples := range s.samples {
		for _, one := range samples {
			if one.Status == 200 && matches(l, &one) {
				all = append(all, admission{Sent: one.Sent, Answered: one.Answered, Tokens: 1})
			}
		}
	}
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.Answered, b.Answered) })
	return all
}

// excess returns the number of tokens above a bucket with this rate, per second, and burst, in the worst interval. An
// admission counts in an interval only if all of it lies there. Of many admissions 5,000 begin an interval.
func excess(all []admission, rate, burst float64) float64 {
	worst := 0.0
	for i := 0; i < len(all); i += 1 + len(all)/5000 {
		count := 0.0
		for _, a := range all[answeredFrom(all, all[i].Sent):] {
			if a.Sent >= all[i].Sent {
				count += a.Tokens
				worst = max(worst, count-a.Above-burst-rate*(a.Answered-all[i].Sent).Seconds())
			}
		}
	}
	return worst
}

// answeredFrom returns the index of the first admission that was answered at an instant or later.
func answeredFrom(all []admission, at time.Duration) int {
	i, _ := slices.BinarySearchFunc(all, at,
		func(a admission, at time.Duration) int { return cmp.Compare(a.Answered, at) })
	return i
}

// checkWaits checks how many requests waited for Redis: those in flight when it went away, those that opened the
// breaker, and probes. No request may hang, and a bystander's do not wait: most are quick, also on a busy machine.
func (c *course) checkWaits(s *storm) {
	s.t.Helper()
	for l, samples := range s.samples {
		slow := 0
		for _, one := range samples {
			took := one.Answered - one.Sent
			if most := c.timeout + chaosCeiling; took > most {
				s.t.Errorf("%+v: a request took %v, more than %v", l, took, most)
			}
			if took >= chaosTimeout*3/4 {
				slow++
			}
		}
		if l.bystander && 2*slow > len(samples) {
			s.t.Errorf("%+v: %d of %d requests waited", l, slow, len(samples))
		}
	}
	for i, n := range s.nodes {
		const metric = "rate_limiter_fallback_activations_total"
		now, most := n.scrape(), c.mostUnanswered(s.connections(i))
		if got := now.sum(metric, `reason="redis_timeout"`) + now.sum(metric, `reason="redis_lost"`); got > float64(most) {
			s.t.Errorf("node %d: %v requests waited for an answer that did not come, at most %d may", i, got, most)
		}
	}
}

// leeway is the number of goroutines or files by which a plugin may grow in a disaster, such as connections in the
// pool.
const leeway = 64

// checkGrowth checks that goroutines, open files and memory of a process return to their numbers before.
func checkGrowth(t testing.TB, scrape func() numbers, before numbers) {
	t.Helper()
	const moreMemory = 64 << 20
	for metric, more := range map[string]float64{
		"go_goroutines": leeway, "process_open_fds": leeway, "process_resident_memory_bytes": moreMemory,
	} {
		await.That(t, fmt.Sprintf("%s to be at most %v again", metric, before[metric]+more), func() bool {
			now, ok := scrape()[metric]
			return ok && now <= before[metric]+more
		})
	}
}

// checkTotals checks that the metrics equal the answers that clients got. It also checks that admissions without Redis
// were charged or written off, except those that Redis may have charged at once.
func (c *course) checkTotals(s *storm) {
	s.t.Helper()
	for i, n := range s.nodes {
		unverified, denied := 0, 0
		for l, samples := range s.samples {
			for _, one := range samples {
				switch {
				case l.node != i || !one.Degraded:
				case one.Status == 200:
					unverified++
				case one.Status == 503:
					denied++
				}
			}
		}
		var last numbers
		defer func() {
			if s.t.Failed() {
				s.t.Logf("node %d: clients got %d admissions and %d denials without Redis; the metrics:\n%s",
					i, unverified, denied, last)
			}
		}()
		await.That(s.t, "the metrics to equal the answers", func() bool {
			last = n.scrape()
			return last.sum("rate_limiter_unverified_total") == float64(unverified) &&
				last.sum("rate_limiter_unavailable_total") == float64(denied) &&
				last.sum("rate_limiter_degraded") == 0
		})
		least := float64(unverified - c.mostUnanswered(s.connections(i)))
		await.That(s.t, "admissions without Redis to be charged or written off", func() bool {
			last = n.scrape()
			return last.sum("rate_limiter_reconciled_tokens_total") >= least
		})
		if got := last.sum("rate_limiter_reconciled_tokens_total"); got > float64(unverified) {
			s.t.Errorf("node %d: %v tokens charged or written off, and %d admitted without Redis", i, got, unverified)
		}
	}
}

// chaosRow has the effects of one disaster on one route.
type chaosRow struct {
	disaster, mode   string
	requests, errors int // in the disaster and until the recovery
	worst, recovery  time.Duration
	over             float64 // tokens above the limit, in the worst interval
}

// report returns a row for each fail mode. A recovery lasts until the last decision without Redis and the first
// admission by Redis.
func (c *course) report(s *storm) (rows []chaosRow) {
	for _, mode := range modes {
		row := chaosRow{disaster: c.name, mode: mode}
		last, first := c.ended, time.Duration(0)
		for l, samples := range s.samples {
			if l.mode != mode || l.bystander {
				continue
			}
			for _, one := range samples {
				switch {
				case !one.byRedis():
					last = max(last, one.Answered)
				case one.Status == 200 && one.Sent >= c.ended && (first == 0 || one.Answered < first):
					first = one.Answered
				}
				if one.Answered >= c.begun && one.Sent <= c.recovered {
					row.requests++
					row.worst = max(row.worst, one.Answered-one.Sent)
					if one.Status >= 500 {
						row.errors++
					}
				}
			}
		}
		row.recovery = max(last, first) - c.ended
		row.over = excess(s.admitted(func(l lane, _ *sample) bool { return l.mode == mode && !l.bystander }), chaosLimit,
			chaosLimit)
		rows = append(rows, row)
	}
	return rows
}

// chaosTable has the rows of each disaster.
type chaosTable [][]chaosRow

func (c chaosTable) publish(t *testing.T) {
	t.Helper()
	var text strings.Builder
	text.WriteString("| disaster | fail mode | requests | 5xx | worst latency | over-admission | recovery |\n|---|---|--:|--:|--:|--:|--:|\n")
	for _, r := range slices.Concat(c...) {
		fmt.Fprintf(&text, "| %s | %s | %d | %d | %v | %.0f | %v |\n",
			r.disaster, r.mode, r.requests, r.errors, r.worst.Round(time.Millisecond), r.over,
			r.recovery.Round(time.Millisecond))
	}
	t.Logf("tokens above a limit of %d/s with a burst of %[1]d; read_timeout %v", chaosLimit, chaosTimeout)
	publish(t, text.String())
}

// publish logs a table, and adds it to the file that CHAOS_TABLE names.
func publish(t *testing.T, table string) {
	t.Helper()
	t.Log("\n" + table)
	name := os.Getenv("CHAOS_TABLE")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = file.WriteString(table + "\n")
	require.NoError(t, errors.Join(err, file.Close()))
}

func TestChaosCountsAdmissionsAboveABucket(t *testing.T) {
	at := func(sent, answered int) admission {
		return admission{
			Sent: time.Duration(sent) * time.Millisecond, Answered: time.Duration(answered) * time.Millisecond, Tokens: 1,
		}
	}
	for name, c := range map[string]struct {
		all  []admission
		want float64
	}{
		"nothing":                       {nil, 0},
		"the burst at once":             {[]admission{at(0, 0), at(0, 0), at(0, 0)}, 0},
		"one more":                      {[]admission{at(0, 0), at(0, 0), at(0, 0), at(0, 0)}, 1},
		"one more after its refill":     {[]admission{at(0, 0), at(0, 0), at(0, 0), at(100, 100)}, 0},
		"one more at half its refill":   {[]admission{at(0, 0), at(0, 0), at(0, 0), at(50, 50)}, 0.5},
		"one more, perhaps at its time": {[]admission{at(0, 0), at(0, 0), at(0, 0), at(0, 100)}, 0},
		"two after a pause": {[]admission{
			at(0, 0), at(900, 900), at(900, 900), at(900, 900), at(900, 900),
			at(900, 900),
		}, 2},
		"one that spends two more than the burst": {[]admission{{Tokens: 5}}, 2},
		"two more, of which one is allowed":       {[]admission{{Tokens: 5, Above: 1}}, 1},
		"one more before one that is allowed":     {[]admission{{Tokens: 4}, {Tokens: 1, Above: 9}}, 1},
	} {
		if got := excess(c.all, 10, 3); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%s: %v above a burst of 3 and 10 a second, want %v", name, got, c.want)
		}
	}
}
