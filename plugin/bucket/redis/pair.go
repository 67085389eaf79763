package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Pair keeps some buckets in a second Redis, so that neither can fill or slow the Redis of the others. It spends
// all bounds of a request or none, as a cluster does with its groups. Where one Redis is unavailable, only the
// bounds in it have no answer. It is safe for concurrent use. Make it with [NewPair].
type Pair struct {
	main, second *Store
	isApart      func(*policy.Key) bool
}

// NewPair returns a pair that keeps the buckets in second for which isApart reports true, and all others in main.
// Without a second it is main alone.
func NewPair(main, second *Store, isApart func(*policy.Key) bool) *Pair {
	return &Pair{main: main, second: second, isApart: isApart}
}

// OpenPair opens the Redis of a config and, if there is one, its second for the buckets for which isApart reports true.
// It returns what [Registry.Open] returns.
func (r *Registry) OpenPair(block, second schema.Redis, isApart func(*policy.Key) bool) (*Pair, func(), error) {
	main, closeMain, err := r.Open(block)
	if err != nil {
		return nil, nil, fmt.Errorf("redis: %w", err)
	}
	if second.IsZero() {
		return NewPair(main, nil, isApart), closeMain, nil
	}
	other, closeSecond, err := r.Open(second)
	if err != nil {
		closeMain()
		return nil, nil, fmt.Errorf("address_redis: %w", err)
	}
	return NewPair(main, other, isApart), func() {
		closeSecond()
		closeMain()
	}, nil
}

// Main returns the store of most buckets.
func (p *Pair) Main() *Store { return p.main }

// Second returns the store of the buckets that are kept apart; nil: there is none.
func (p *Pair) Second() *Store { return p.second }

// Holder returns the store that keeps a bucket.
func (p *Pair) Holder(key *policy.Key) *Store {
	if p.second != nil && p.isApart(key) {
		return p.second
	}
	return p.main
}

// Take implements store.Store, see [Store.Take]. It calls both Redis at once, or only the one that keeps all buckets of
// the request.
func (p *Pair) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return p.decide(ctx, bounds, statuses, modeTake)
}

// Peek implements store.Store, see [Store.Peek].
func (p *Pair) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return p.decide(ctx, bounds, statuses, modePeek)
}

func (p *Pair) decide(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, mode byte) error {
	if len(bounds) == 0 || len(bounds) != len(statuses) {
		return p.main.decide(ctx, bounds, statuses, mode)
	}
	if sole := p.soleStore(bounds); sole != nil {
		return sole.decide(ctx, bounds, statuses, mode)
	}
	clear(statuses)
	return decideParts(ctx, p.parts(bounds, allIndexes(bounds)), statuses, mode)
}

// soleStore returns the store that keeps the buckets of all bounds; nil: both keep some.
func (p *Pair) soleStore(bounds []policy.Bound) *Store {
	if p.second == nil {
		return p.main
	}
	one := p.Holder(&bounds[0].Key)
	for i := range bounds[1:] {
		if p.Holder(&bounds[i+1].Key) != one {
			return nil
		}
	}
	return one
}

// parts returns the parts of a request with the bounds of these indexes.
func (p *Pair) parts(bounds []policy.Bound, indexes []int) []part {
	var mains, seconds []int
	for _, i := range indexes {
		if p.Holder(&bounds[i].Key) == p.main {
			mains = append(mains, i)
		} else {
			seconds = append(seconds, i)
		}
	}
	parts := p.main.addParts(nil, bounds, mains)
	if p.second != nil {
		parts = p.second.addParts(parts, bounds, seconds)
	}
	return parts
}

// Refund implements store.Refunder, see [Store.Refund].
func (p *Pair) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	refund(ctx, p.parts(bounds, markRefunded(bounds, statuses)), statuses)
	return nil
}

// Settle implements store.Store, see [Store.Settle].
func (p *Pair) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	settle(ctx, p.parts(bounds, markSettled(bounds, statuses, actual)), statuses, actual)
	return nil
}

// callBoth runs one call for the main and one for the second store, if there is one, and waits for both.
func (p *Pair) callBoth(call func(*Store) error) (main, second error) {
	var other sync.WaitGroup
	if p.second != nil {
		other.Go(func() { second = call(p.second) })
	}
	main = call(p.main)
	other.Wait()
	return main, second
}

// Beat counts the nodes in both stores, see [Store.Beat], and returns how many the main one counts. A second that is
// unavailable or full is no error: its gate learns of that from the beat, also without a request.
func (p *Pair) Beat(ctx context.Context, namespace, node string, ttl time.Duration) (live int, err error) {
	err, missed := p.callBoth(func(s *Store) error {
		n, err := s.Beat(ctx, namespace, node, ttl)
		if s == p.main {
			live = n
		}
		return err
	})
	if missed != nil {
		p.second.log.Debug("the second Redis does not count nodes", "namespace", namespace, "error", missed)
	}
	return live, err
}

// Leave ends what Beat has counted, in both stores.
func (p *Pair) Leave(ctx context.Context, namespace, node string) error {
	return errors.Join(p.callBoth(func(s *Store) error { return s.Leave(ctx, namespace, node) }))
}

// Probe probes both stores, see [Store.Probe].
func (p *Pair) Probe(ctx context.Context) {
	_, _ = p.callBoth(func(s *Store) error { // probes have no errors: the gates learn
		s.Probe(ctx)
		return nil
	})
}

// Forget implements store.Keeper, see [Store.Forget].
func (p *Pair) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	var mains, seconds []policy.Key
	for i := range keys {
		if p.Holder(&keys[i]) == p.main {
			mains = append(mains, keys[i])
		} else {
			seconds = append(seconds, keys[i])
		}
	}
	forgotten, err := p.main.Forget(ctx, mains)
	if len(seconds) == 0 {
		return forgotten, err
	}
	more, missed := p.second.Forget(ctx, seconds)
	return forgotten + more, errors.Join(err, missed)
}

// Ping returns nil when every server of the main store answers.
func (p *Pair) Ping(ctx context.Context) error { return p.main.Ping(ctx) }

// PingSecond returns nil when every server of the second store answers, or there is none.
func (p *Pair) PingSecond(ctx context.Context) error {
	if p.second == nil {
		return nil
	}
	return p.second.Ping(ctx)
}
