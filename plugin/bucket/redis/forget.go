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
			return forgotten, fmt.Errorf("empty bucket %s of %s: %w", keys[i].Policy, appendSubject(nil, &keys[i]), err)
		}
		forgotten += n
	}
	return forgotten, nil
}

// forget empties one bucket, in the string that holds it now.
func (s *Store) forget(ctx context.Context, key *policy.Key) (int, error) {
	name := appendName(nil, key)
	for range maxTries {
		level := s.levels.level(key)
		whole := string(appendSubject(nil, key))
		at := whole
		if chunk := chunkOf(name, level); chunk != head {
			at = string(appendChunk(nil, key, chunk))
		}
		keys, first := []string{whole, at, string(appendLog(nil, key))}, firstByte(level)
		n := int64(0)
		run := newCall(keys, string(append([]byte{first}, name...)))
		err := s.evaluate(ctx, forgetScript, run, func(reply *elements) {
			reply.sole()
			n = reply.between(-1-maxLevel, 1)
		})
		if err != nil || n >= 0 {
			return int(n), err
		}
		s.levels.learn(key, int(-1-n))
	}
	return 0, errLevels
}
