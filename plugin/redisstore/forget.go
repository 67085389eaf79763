package redisstore

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

var forgetScript = newScript(assemble("forget", nil))

// Forget empties the buckets of these keys, the entries of sliding logs included, one after the other, and answers how
// many there were. Before an error some may have been emptied.
func (s *Store) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	forgotten := 0
	for i := range keys {
		key := &keys[i]
		at := []string{string(appendSubject(nil, key)), string(appendLog(nil, key))}
		reply, err := s.transport.Run(ctx, forgetScript, at, []any{appendName(nil, key)})
		if err != nil {
			return forgotten, fmt.Errorf("empty bucket %s of %s: %w", key.Policy, at[0], err)
		}
		n, ok := int64(0), len(reply) == 1
		if ok {
			n, ok = reply[0].(int64)
		}
		if !ok {
			return forgotten, fmt.Errorf("empty bucket %s of %s: %w: %v", key.Policy, at[0], errReply, reply)
		}
		forgotten += int(n)
	}
	return forgotten, nil
}
