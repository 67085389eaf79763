package redis

import (
	"context"
	"fmt"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
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
	run := newCall(keys, strconv.Itoa(int(firstByte(level))))
	if err := s.transport.Run(ctx, s.splitting, run); err != nil {
		return fmt.Errorf("split %s: %w", keys[0], err)
	}
	now, err := singleInteger(run.reply)
	if err != nil {
		return fmt.Errorf("split %s: %w", keys[0], err)
	}
	if now < 0 || now > maxLevel {
		return fmt.Errorf("split %s: %w: %d", keys[0], errReply, now)
	}
	s.levels.learn(key, int(now))
	return nil
}

// singleInteger returns the integer of a reply that has nothing else.
func singleInteger(reply []byte) (int64, error) {
	numbers, err := (&elements{left: reply}).integers()
	if err != nil {
		return 0, err
	}
	if len(numbers) != 1 {
		return 0, fmt.Errorf("%w: %d", errReply, numbers)
	}
	return numbers[0], nil
}
