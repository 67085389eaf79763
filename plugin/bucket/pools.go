package bucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// openEach opens something of each pool of a config, by its number, and returns the function that releases all.
func openEach[T any](
	config *schema.Config, open func(pool *schema.Config) (T, func(), error),
) (all []T, release func(), err error) {
	var opened []func()
	release = func() {
		for _, releaseOne := range slices.Backward(opened) {
			releaseOne()
		}
	}
	pools := config.Pools()
	for i := range pools {
		one, releaseOne, err := open(&pools[i])
		if err != nil {
			release()
			if i > 0 {
				err = fmt.Errorf("redis_pools[%d] (%s): %w", i-1, config.PoolName(i), err)
			}
			return nil, nil, err
		}
		all, opened = append(all, one), append(opened, releaseOne)
	}
	return all, release, nil
}

// openRouted opens a store of each pool of a config, and returns the one that routes to them.
func openRouted[S any](
	config *schema.Config, open func(pool *schema.Config) (S, func(), error), route func([]S) S,
) (routed S, release func(), err error) {
	all, release, err := openEach(config, open)
	if err != nil {
		return routed, nil, err
	}
	return route(all), release, nil
}

// pools holds the stores of the pools of a config, by their numbers. It is a store.Store: each bound goes to its pool.
// The bounds of one request have one pool, so its store gets the very call. The parts of a call for several pools run
// at the same time.
type pools[S store.Store] []S

// Route returns a store of the stores of a config's pools, as [Stores.OpenPools] returns them.
func Route(all []store.Store) store.Store {
	if len(all) == 1 {
		return all[0]
	}
	return pools[store.Store](all)
}

// sole returns the store of all bounds, and reports false if they have several.
func (p pools[S]) sole(bounds []policy.Bound) (of S, ok bool) {
	pool := uint8(0)
	for i := range bounds {
		if i > 0 && bounds[i].Pool != pool {
			return of, false
		}
		pool = bounds[i].Pool
	}
	return p[pool], true
}

// split calls do for each pool with its part of a call, and copies the statuses back.
func (p pools[S]) split(bounds []policy.Bound, statuses []decision.Status, do func(S, *store.Part) error) error {
	if err := store.CheckLengths("divide", bounds, statuses); err != nil {
		return err
	}
	parts, errs := make([]store.Part, len(p)), make([]error, len(p))
	for i := range bounds {
		parts[bounds[i].Pool].Add(i, bounds[i], statuses[i])
	}
	var running sync.WaitGroup
	for pool := range parts {
		if part := &parts[pool]; len(part.Bounds) > 0 {
			running.Go(func() { errs[pool] = do(p[pool], part) })
		}
	}
	running.Wait()
	for i := range parts {
		for j, at := range parts[i].Index {
			statuses[at] = parts[i].Statuses[j]
		}
	}
	return errors.Join(errs...)
}

// Take implements store.Store. If a pool denies a request whose bounds have several, what the others spent is returned.
func (p pools[S]) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if one, ok := p.sole(bounds); ok {
		return one.Take(ctx, bounds, statuses)
	}
	if err := store.CheckLengths("take", bounds, statuses); err != nil {
		return err
	}
	err := p.split(bounds, statuses, func(s S, part *store.Part) error {
		return s.Take(ctx, part.Bounds, part.Statuses)
	})
	for i := range bounds {
		if err != nil || decision.Denies(&bounds[i], &statuses[i]) {
			return errors.Join(err, p.refund(ctx, bounds, statuses))
		}
	}
	return nil
}

// refund returns all that was spent, and reads the buckets with room again: the statuses show them without the request.
func (p pools[S]) refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	var admitted store.Part
	for i := range bounds {
		if s := &statuses[i]; s.Charged || s.Source != decision.Unanswered && s.Admits() {
			admitted.Add(i, bounds[i], *s)
		}
	}
	err := p.Settle(ctx, admitted.Bounds, admitted.Statuses, make([]int64, len(admitted.Bounds)))
	if err != nil {
		return err
	}
	clear(admitted.Statuses)
	err = p.Peek(ctx, admitted.Bounds, admitted.Statuses)
	for j, i := range admitted.Index {
		statuses[i] = admitted.Statuses[j]
	}
	return err
}

// Peek implements store.Store.
func (p pools[S]) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if one, ok := p.sole(bounds); ok {
		return one.Peek(ctx, bounds, statuses)
	}
	return p.split(bounds, statuses, func(s S, part *store.Part) error {
		return s.Peek(ctx, part.Bounds, part.Statuses)
	})
}

// Settle implements store.Store.
func (p pools[S]) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if one, ok := p.sole(bounds); ok {
		return one.Settle(ctx, bounds, statuses, actual)
	}
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	return p.split(bounds, statuses, func(s S, part *store.Part) error {
		return s.Settle(ctx, part.Bounds, part.Statuses, at(actual, part))
	})
}

// at returns the numbers of a part's bounds.
func at(numbers []int64, part *store.Part) []int64 {
	own := make([]int64, len(part.Index))
	for j, i := range part.Index {
		own[j] = numbers[i]
	}
	return own
}

// centralPools is a Central of the pools of a config.
type centralPools struct{ pools[Central] }

// routeCentral returns a Central of those of a config's pools.
func routeCentral(all []Central) Central {
	if len(all) == 1 {
		return all[0]
	}
	return centralPools{all}
}

// Forget implements store.Keeper.
func (p centralPools) Forget(ctx context.Context, bounds []policy.Bound) (forgotten int, err error) {
	var sum atomic.Int64
	err = p.split(bounds, make([]decision.Status, len(bounds)), func(c Central, part *store.Part) error {
		n, err := c.Forget(ctx, part.Bounds)
		sum.Add(int64(n))
		return err
	})
	return int(sum.Load()), err
}

// Slots implements store.Keeper.
func (p centralPools) Slots(ctx context.Context, bound *policy.Bound, most int) (store.Slots, error) {
	return p.pools[bound.Pool].Slots(ctx, bound, most)
}

// Ping implements Central.
func (p centralPools) Ping(ctx context.Context) error {
	errs := make([]error, len(p.pools))
	var running sync.WaitGroup
	for i, c := range p.pools {
		running.Go(func() { errs[i] = c.Ping(ctx) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// Raise implements Central.
func (p centralPools) Raise(
	ctx context.Context, bounds []policy.Bound, least []int64,
) (charged []int64, err error) {
	charged = make([]int64, len(bounds))
	err = p.split(bounds, make([]decision.Status, len(bounds)), func(c Central, part *store.Part) error {
		own, err := c.Raise(ctx, part.Bounds, at(least, part))
		for j := range own {
			charged[part.Index[j]] = own[j]
		}
		return err
	})
	return charged, err
}
