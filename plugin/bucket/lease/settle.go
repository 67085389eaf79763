package lease

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Settle implements store.Store. What was drawn from a lease stays spent, because its grant may have ended; what the
// request cost beyond that is charged to the central store. A denial that is remembered of a bucket that got tokens
// back is dropped.
func (v *Store) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	taken := slices.Clone(bounds)
	var leased []int
	for i := range taken {
		if t := v.store.terms.get(taken[i].Policy); t != nil {
			taken[i].Policy = t.policy
		}
		switch status := &statuses[i]; {
		case !status.Charged || status.Source != source:
		case actual[i] <= bounds[i].Cost:
			status.Charged, status.Settled = false, 0
		default: // to the central store it is a charge, which needs no receipt
			status.Source = decision.Redis
			leased = append(leased, i)
		}
	}
	err := v.next.Settle(ctx, taken, statuses, actual)
	for _, i := range leased {
		statuses[i].Source = source
	}
	v.store.dropDenials(bounds, statuses)
	return err
}

// dropDenials drops the remembered denials of the buckets that got tokens back. A leased bucket keeps them: its tokens
// are shared out among the nodes.
func (s *Leases) dropDenials(bounds []policy.Bound, statuses []decision.Status) {
	if !slices.ContainsFunc(statuses, func(s decision.Status) bool { return s.Settled < 0 }) {
		return
	}
	places := make([]place, len(bounds))
	shards := s.locate(bounds, places)
	s.lock(shards)
	defer s.unlock(shards)
	for i, p := range places {
		e := p.shard.lookup(p.hash, &bounds[i].Key)
		if e != nil && e.terms == nil && statuses[i].Settled < 0 {
			e.denial, e.lastStatus = denial{}, limit.Status{}
		}
	}
}
