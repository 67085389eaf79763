package bucket

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// operatorTimeout is the shortest timeout of operators, in milliseconds: a Redis that is too slow for requests still
// answers them. A failed call is retried once, so both calls must end before the answer is due.
const operatorTimeout = 2000

// OpenOperators opens a config's buckets with operatorTimeout and connections of its own, without a breaker. So
// requests and operators do not affect each other's breakers. A failed Peek or Forget is retried once.
func (s *Stores) OpenOperators(config *schema.Config) (buckets Central, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return nil, nil, ErrNotCentral
	}
	main, second := WithTimeouts(config.Redis, operatorTimeout), config.AddressRedis
	if !second.IsZero() {
		second = WithTimeouts(second, operatorTimeout)
	}
	pair, closeRedis, err := s.operators.OpenPair(main, second, addresses.Counted)
	if err != nil {
		return nil, nil, err
	}
	return retrying{pair}, closeRedis, nil
}

// WithTimeouts returns a block with its defaults, and with no timeout below least, in milliseconds.
func WithTimeouts(block schema.Redis, least int64) schema.Redis {
	block = schema.Config{Redis: block}.WithDefaults().Redis
	for _, timeout := range []*int64{&block.ConnectTimeout, &block.SendTimeout, &block.ReadTimeout} {
		*timeout = max(*timeout, least)
	}
	return block
}

// retrying calls the store once more where a second call changes nothing: to peek and to forget.
type retrying struct{ Central }

// Peek implements store.Store.
func (t retrying) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := t.Central.Peek(ctx, bounds, statuses)
	if err == nil && slices.ContainsFunc(statuses, hasFailed) {
		err = t.Central.Peek(ctx, bounds, statuses)
	}
	return err
}

func hasFailed(s decision.Status) bool { return s.Failure != decision.NoFailure }

// Forget implements store.Keeper. A bucket that is empty already stays so.
func (t retrying) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	n, err := t.Central.Forget(ctx, keys)
	if err == nil {
		return n, nil
	}
	more, err := t.Central.Forget(ctx, keys)
	return n + more, err
}
