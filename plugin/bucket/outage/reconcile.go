package outage

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// mostBefore is until when, after a server is back, its charges start: nodes must not all come at once.
	mostBefore = 500 * time.Millisecond
	// batch is how many buckets one call charges, and between is the pause before the next: requests come first. A
	// hundred thousand are charged in a few seconds.
	batch   = 64
	between = 2 * time.Millisecond
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
	for i, debts := range slices.Collect(slices.Chunk(s.ledger.drain(s.now()), batch)) {
		if i > 0 && !pause(ctx, between) {
			for _, d := range debts {
				s.ledger.keep(d, s.now())
			}
			continue
		}
		s.charge(ctx, debts)
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
		s.tell(level, "reconciled what was admitted while Redis was away", report)
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

// charge is one bucket's part of a call that charges several.
type charge struct {
	debt   *debt
	cost   int64 // 0 reads what is used
	status decision.Status
}

// charge charges debts: what is due of each, up to a full bucket. Where another node was faster, it is tried once more
// with what is left then.
func (s *Store) charge(ctx context.Context, debts []*debt) {
	charges := make([]charge, len(debts))
	for i, d := range debts {
		charges[i].debt = d
	}
	for range 3 { // to read, to charge, and once more
		if len(charges) == 0 {
			return
		}
		s.take(ctx, charges)
		open := charges[:0]
		for i := range charges {
			if !s.finish(&charges[i]) {
				open = append(open, charges[i])
			}
		}
		charges = open
	}
	for i := range charges {
		s.ledger.settle(charges[i].debt, 0)
	}
}

// finish settles or keeps a debt by the answer to its charge, or else sets what the next one costs. It reports whether
// there is no next one.
func (s *Store) finish(c *charge) bool {
	d, failure := c.debt, c.status.Failure
	switch {
	case c.status.Charged:
		s.ledger.settle(d, c.cost)
	case c.status.Source != decision.Unanswered:
		if c.cost = min(d.due(s.now()), d.policy.Limit.Capacity()-c.status.Used); c.cost > 0 {
			return false
		}
		s.ledger.settle(d, 0)
	case failure == decision.NoFailure, failure == decision.WrongType, failure.MayHaveSpent() && c.cost > 0:
		s.ledger.settle(d, 0) // the outcome is unknown, or no try can change it
	default:
		s.ledger.keep(d, s.now()) // nothing was spent: worth another try when the server is back
	}
	return true
}

// take takes the costs of charges from their shared buckets, each alone.
func (s *Store) take(ctx context.Context, charges []charge) {
	limited, cancel := context.WithTimeout(ctx, chargeTimeout)
	defer cancel()
	bounds, statuses := make([]policy.Bound, len(charges)), make([]decision.Status, len(charges))
	for i := range charges {
		c := &charges[i]
		alone := *c.debt.policy
		alone.Mode = policy.Shadow // of a batch of shadow bounds each is granted, or not, alone
		bounds[i] = policy.Bound{Policy: &alone, Key: c.debt.key, Cost: c.cost}
	}
	err := s.shared.Take(limited, bounds, statuses)
	switch {
	case err == nil:
	case len(charges) > 1: // one of them cannot be asked, and nothing was spent
		s.take(ctx, charges[:len(charges)/2])
		s.take(ctx, charges[len(charges)/2:])
		return
	default:
		s.log.Error("charging a bucket after an outage failed", "policy", bounds[0].Policy.Name, "error", err)
		clear(statuses)
	}
	for i := range charges {
		charges[i].status = statuses[i]
	}
}

// abandon writes off what is left at the end.
func (s *Store) abandon() {
	for _, d := range s.ledger.empty() {
		s.ledger.settle(d, 0)
	}
	if report, ok := s.ledger.report(); ok {
		s.tell(slog.LevelWarn, "ending before all that was admitted while Redis was away could be charged", report)
	}
}
