package redis

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

var forgetScript = newScript(assemble("forget", nil))

// Forget implements store.Keeper: it deletes the buckets one after the other, with the entries of sliding logs.
func (s *Store) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	forgotten := 0
	for i := range keys {
		n, err := s.forget(ctx, &keys[i])
		if err != nil {
			return forgotten, fmt.Errorf("empty bucket %s of %s: %w", keys[i].Policy, appendString(nil, &keys[i]), err)
		}
		forgotten += n
	}
	return forgotten, nil
}

// forget empties one bucket.
func (s *Store) forget(ctx context.Context, key *policy.Key) (int, error) {
	keys := []string{string(appendString(nil, key)), string(appendLog(nil, key))}
	run := newCall(keys, string(appendName(nil, key)))
	if err := s.transport.Run(ctx, forgetScript, run); err != nil {
		return 0, err
	}
	n, err := singleInteger(run.reply)
	if err == nil && (n < 0 || n > 1) {
		err = fmt.Errorf("%w: %d", errReply, n)
	}
	return int(n), err
}
