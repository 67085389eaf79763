package outage

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// mostBefore is until when, after a server is back, its charges start: nodes must not all come at once.
	mostBefore = 500 * time.Millisecond
	// batch is how many buckets are charged at once, and between is the pause before the next.
	batch   = 32
	between = 10 * time.Millisecond
	// chargeTimeout bounds each call of a reconciliation; the store has a shorter one for a healthy server.
	chargeTimeout = time.Second
)

// reconcileUntil charges what is due, each time that it may be possible, until ctx ends.
func (s *Store) reconcileUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.chargeNow:
		}
		if !pause(ctx, rand.N(mostBefore)) {
			return
		}
		s.reconcile(ctx)
	}
}

// pause waits, and tells whether ctx has not ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// reconcile charges what is in the ledger, once, and reports. What cannot be charged yet stays there.
func (s *Store) reconcile(ctx context.Context) {
	recovered := s.recovered.Swap(false)
	for i, debts := range slices.Collect(slices.Chunk(s.ledger.drain(), batch)) {
		if i > 0 && !pause(ctx, between) {
			for _, d := range debts {
				s.ledger.keep(d, s.now())
			}
			continue
		}
		var all sync.WaitGroup
		for _, d := range debts {
			all.Go(func() { s.charge(ctx, d) })
		}
		all.Wait()
	}
	level := slog.LevelInfo
	switch {
	case recovered:
	case s.Degraded():
		return // the outage that goes on has one report, at its end
	default:
		level = slog.LevelDebug // a few failures that opened no breaker are not worth a line
	}
	if report, ok := s.ledger.report(); ok {
		s.tell(level, "reconciled what was admitted while the shared store was away", report)
	}
}

func (s *Store) tell(level slog.Level, message string, r Report) {
	var sum Tally
	var policies []any
	for name, t := range r.Policies {
		sum.add(t, 1)
		policies = append(policies, slog.Group(name, "unverified", t.Unverified, "charged", t.Charged, "written_off", t.WrittenOff,
			"unknown", t.Unknown, "denied_locally", t.DeniedLocally, "denied_closed", t.DeniedClosed))
	}
	s.log.Log(context.Background(), level, message, "start", r.Start, "end", r.End, "unverified", sum.Unverified,
		"charged", sum.Charged, "written_off", sum.WrittenOff, "unknown", sum.Unknown, "denied_locally", sum.DeniedLocally,
		"denied_closed", sum.DeniedClosed, "pending", r.Pending, slog.Group("policies", policies...))
}

// outcome is what a call for one bucket has come to.
type outcome uint8

const (
	answered outcome = iota // and spent, if the status admits
	away                    // nothing was spent: worth trying again when the server is back
	lost                    // nobody knows, or nobody ever will
)

// charge charges one debt: what is due of it, up to a full bucket. Where another node was faster, it is tried once more
// with what is left then.
func (s *Store) charge(ctx context.Context, d *debt) {
	status, got := s.take(ctx, d, 0)
	if got == lost && status.Failure.MayHaveSpent() {
		got = away // there was nothing to spend
	}
	for range 2 {
		if got != answered {
			break
		}
		cost := min(d.due(s.now()), d.policy.Limit.Capacity()-status.Used)
		if cost <= 0 {
			break
		}
		if status, got = s.take(ctx, d, cost); got == answered && status.Admits() {
			s.ledger.settle(d, cost)
			return
		}
	}
	if got == away {
		s.ledger.keep(d, s.now())
		return
	}
	s.ledger.settle(d, 0)
}

// take takes cost from the shared bucket of a debt; 0 reads it.
func (s *Store) take(ctx context.Context, d *debt, cost int64) (decision.Status, outcome) {
	ctx, cancel := context.WithTimeout(ctx, chargeTimeout)
	defer cancel()
	bounds := [1]policy.Bound{{Policy: d.policy, Key: d.key, Cost: cost}}
	var statuses [1]decision.Status
	if err := s.shared.Take(ctx, bounds[:], statuses[:]); err != nil {
		s.log.Error("a bucket cannot be charged", "policy", d.policy.Name, "error", err)
		return statuses[0], lost
	}
	status := statuses[0]
	switch {
	case status.Source != decision.Unanswered:
		return status, answered
	case status.Failure.MayHaveSpent() || status.Failure == decision.WrongType:
		return status, lost
	default:
		return status, away
	}
}

// abandon writes off what is left at the end.
func (s *Store) abandon() {
	for _, d := range s.ledger.drain() {
		s.ledger.settle(d, 0)
	}
	if report, ok := s.ledger.report(); ok {
		s.tell(slog.LevelWarn, "ends before what was admitted while the shared store was away could be charged", report)
	}
}
