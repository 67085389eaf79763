package redis

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

var splitScript = newScript(assemble("split", nil))

// split divides each chunk of a subject in two, if it has this level still. A failure is harmless: the next new bucket
// in a full chunk has it tried again.
func (s *Store) split(ctx context.Context, key *policy.Key, level int) error {
	if level >= maxLevel {
		return nil
	}
	keys := []string{string(appendSubject(nil, key))}
	for chunk := range 2 << level {
		keys = append(keys, string(appendChunk(nil, key, chunk)))
	}
	reply, err := s.transport.Run(ctx, s.splitting, keys, []any{int(s.formats.firstByte(key.Namespace, level))})
	if err != nil {
		return fmt.Errorf("split %s: %w", keys[0], err)
	}
	now, ok := singleInteger(reply)
	if !ok || now < 0 || now > maxLevel {
		return fmt.Errorf("split %s: %w: %v", keys[0], errReply, reply)
	}
	s.levels.learn(key, int(now))
	return nil
}

// singleInteger returns the integer of a reply that has nothing else.
func singleInteger(reply []any) (int64, bool) {
	if len(reply) != 1 {
		return 0, false
	}
	n, ok := reply[0].(int64)
	return n, ok
}
