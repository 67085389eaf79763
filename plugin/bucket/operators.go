package bucket

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// operatorTimeout is how long an operator waits for Redis, in milliseconds, where the config allows requests less. What
// fails is tried twice, so both calls must end before the answer is due.
const operatorTimeout = 2000

// OpenOperators returns the buckets of a config as [Stores.OpenShared] does, for operators, who have seconds: a Redis
// that is too slow for requests still answers them, and what one connection loses is read or forgotten again. It has
// connections of its own, without a breaker, so that neither what requests meet nor what operators meet concerns the
// other.
func (s *Stores) OpenOperators(config *schema.Config) (buckets Shared, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return nil, nil, ErrNotShared
	}
	main, second := patient(config.Redis), config.AddressRedis
	if !second.IsZero() {
		second = patient(second)
	}
	redis, closeRedis, err := s.operators.OpenPair(main, second, addresses.Counted)
	if err != nil {
		return nil, nil, err
	}
	return retrying{redis}, closeRedis, nil
}

// patient returns a block with its defaults and the timeouts of operators.
func patient(block schema.Redis) schema.Redis {
	block = schema.Config{Redis: block}.WithDefaults().Redis
	for _, timeout := range []*int64{&block.ConnectTimeout, &block.SendTimeout, &block.ReadTimeout} {
		*timeout = max(*timeout, operatorTimeout)
	}
	return block
}

// retrying calls the store once more where a second call changes nothing: to peek and to forget.
type retrying struct{ Shared }

// Peek implements store.Store.
func (t retrying) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := t.Shared.Peek(ctx, bounds, statuses)
	if err == nil && slices.ContainsFunc(statuses, hasFailed) {
		err = t.Shared.Peek(ctx, bounds, statuses)
	}
	return err
}

func hasFailed(s decision.Status) bool { return s.Failure != decision.NoFailure }

// Forget implements store.Store. A bucket that is empty already stays so.
func (t retrying) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	n, err := t.Shared.Forget(ctx, keys)
	if err == nil {
		return n, nil
	}
	more, err := t.Shared.Forget(ctx, keys)
	return n + more, err
}
