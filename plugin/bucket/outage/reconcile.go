package outage

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// maxChargeDelay is the longest random delay before charging after a server is back: nodes must not all come at once.
	maxChargeDelay = 500 * time.Millisecond
	// batch is the number of buckets that one call charges, and batchPause the pause before the next: requests come first.
	// A hundred thousand are charged in a few seconds.
	batch      = 64
	batchPause = 2 * time.Millisecond
	// chargeTimeout bounds each call of a reconciliation; the store has a shorter timeout for a healthy server.
	chargeTimeout = time.Second
)

// charging is a reconciliation under way. The zero value is none.
type charging struct {
	at        time.Time // of the next batch; zero: nothing is scheduled
	begun     bool
	recovered bool // a server was back when it began
	batches   [][]*debt
}

// wantCharge schedules a reconciliation.
func (s *Guard) wantCharge() {
	s.chargeWanted.Store(true)
	signal(s.chargeNow)
}

// stepCharge does what is due of a reconciliation: it charges the debts once, batch by batch, and reports
// the outage. What cannot be charged yet stays a debt. It returns the instant of the next batch, zero if none is
// scheduled.
func (s *Guard) stepCharge(ctx context.Context, now time.Time) (next time.Time) {
	c := &s.charging
	if c.at.IsZero() && s.chargeWanted.Swap(false) {
		c.at = now.Add(time.Duration(s.breakers.jitter() * float64(maxChargeDelay)))
	}
	if c.at.IsZero() || now.Before(c.at) {
		return c.at
	}
	if !c.begun {
		c.begun, c.recovered = true, s.recovered.Swap(false)
		s.releaseLostSlots(ctx)
		c.batches = slices.Collect(slices.Chunk(s.debts.drain(s.now()), batch))
	}
	if len(c.batches) > 0 {
		s.charge(ctx, c.batches[0])
		c.batches = c.batches[1:]
	}
	if len(c.batches) > 0 {
		c.at = s.clock().Add(batchPause)
		return c.at
	}
	s.endCharging(c.recovered)
	s.charging = charging{}
	if s.chargeWanted.Load() {
		return s.stepCharge(ctx, now)
	}
	return time.Time{}
}

// endCharging reports the outage when it has ended.
func (s *Guard) endCharging(recovered bool) {
	level := slog.LevelInfo
	switch {
	case recovered:
	case s.Degraded():
		return // a continuing outage is reported once, at its end
	default:
		level = slog.LevelDebug // failures that opened no breaker are not worth a line
	}
	if report, ok := s.debts.report(); ok {
		s.logReport(level, "reconciled what was admitted while Redis was unavailable", report)
	}
}

// logReport logs what happened in an outage.
func (s *Guard) logReport(level slog.Level, message string, r Report) {
	var sum Tally
	var policies []any
	for name, t := range r.Policies {
		sum.add(t, 1)
		policies = append(policies, slog.Group(name,
			"unverified", t.Unverified, "charged", t.Charged, "written_off", t.WrittenOff, "unknown", t.Unknown,
			"denied_locally", t.DeniedLocally, "denied_closed", t.DeniedClosed))
	}
	s.log.Log(context.Background(), level, message, "start", r.Start, "end", r.End, "unverified", sum.Unverified,
		"charged", sum.Charged, "written_off", sum.WrittenOff, "unknown", sum.Unknown, "denied_locally", sum.DeniedLocally,
		"denied_closed", sum.DeniedClosed, "pending", r.Pending, slog.Group("policies", policies...))
}

// charge is one bucket's part of a call that charges several.
type charge struct {
	debt   *debt
	cost   int64 // 0: what is used must be read first
	status decision.Status
}

// charge charges debts: what is due of each, up to a full bucket. If another node was faster, it tries once more with
// what is left then.
func (s *Guard) charge(ctx context.Context, debts []*debt) {
	charges := make([]charge, len(debts))
	for i, d := range debts {
		charges[i].debt = d
	}
	for _, decide := range [...]decide{s.central.Peek, s.central.Take, s.central.Take} {
		if len(charges) == 0 {
			return
		}
		s.decideCharges(ctx, charges, decide)
		open := charges[:0]
		for i := range charges {
			if !s.finishCharge(&charges[i]) {
				open = append(open, charges[i])
			}
		}
		charges = open
	}
	for i := range charges {
		s.debts.settle(charges[i].debt, 0)
	}
}

// finishCharge settles or keeps a debt by the answer to its charge, or sets the cost of the next one. It reports
// whether there is no next one.
func (s *Guard) finishCharge(c *charge) bool {
	d, failure := c.debt, c.status.Failure
	switch {
	case c.status.Charged:
		s.debts.settle(d, c.cost)
	case c.status.Source != decision.Unanswered:
		if c.cost = min(d.due(s.now()), d.policy.Limit.Capacity()-c.status.Used); c.cost > 0 {
			return false
		}
		s.debts.settle(d, 0)
	case failure == decision.NoFailure, failure == decision.WrongType, failure.MayHaveSpent() && c.cost > 0:
		s.debts.settle(d, 0) // the outcome is unknown, or no try can change it
	default:
		s.debts.putBack(d, s.now()) // nothing was spent: retry when the server is back
	}
	return true
}

// decideCharges peeks at the shared buckets of charges, or takes their costs, each on its own.
func (s *Guard) decideCharges(ctx context.Context, charges []charge, decide decide) {
	limited, cancel := context.WithTimeout(ctx, chargeTimeout)
	defer cancel()
	bounds, statuses := make([]policy.Bound, len(charges)), make([]decision.Status, len(charges))
	for i := range charges {
		c := &charges[i]
		alone := *c.debt.policy
		alone.Mode = policy.Shadow // each bound of a batch of shadow bounds is granted on its own
		bounds[i] = policy.Bound{Policy: &alone, Key: c.debt.key, Cost: c.cost}
	}
	err := decide(limited, bounds, statuses)
	switch {
	case err == nil:
	case len(charges) > 1: // one of them is invalid, and nothing was spent
		s.decideCharges(ctx, charges[:len(charges)/2], decide)
		s.decideCharges(ctx, charges[len(charges)/2:], decide)
		return
	default:
		s.log.Error("charging a bucket after an outage failed", "policy", bounds[0].Policy.Name, "error", err)
		clear(statuses)
	}
	for i := range charges {
		charges[i].status = statuses[i]
	}
}

// writeOff writes off the debts that are left at the end.
func (s *Guard) writeOff() {
	left := slices.Concat(s.charging.batches...)
	s.charging = charging{}
	for _, d := range append(left, s.debts.removeAll()...) {
		s.debts.settle(d, 0)
	}
	if report, ok := s.debts.report(); ok {
		const message = "ending before all that was admitted while Redis was unavailable could be charged"
		s.logReport(slog.LevelWarn, message, report)
	}
}
