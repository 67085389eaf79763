package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// maxLevel bounds into how many chunks a subject is split: 256, so that 8,192 buckets are in chunks of 32.
	maxLevel = 8
	// maxLevels bounds the number of subjects whose levels are kept, some 200 bytes each.
	maxLevels = 1 << 16
)

// levels holds the split subjects that this node has met, and into how many chunks: 2^level. All others count as whole.
// A level that is wrong costs one more call: the script returns the right one and has done nothing.
type levels struct {
	count atomic.Int64 // of subjects: mostly 0

	mu        sync.RWMutex
	bySubject map[policy.Key]int // by subjectOf
}

// chunkOf returns the number of the chunk that holds the bucket of a name, or head. A subject's own buckets stay in its
// head: most requests ask for one, so that the head is not read for its level alone.
func chunkOf(name []byte, level int) int {
	if level == 0 || name[0] == noEndpoint {
		return head
	}
	return int(name[0]) & (1<<level - 1)
}

// level returns the level of the key's subject. A nil levels returns 0.
func (l *levels) level(k *policy.Key) int {
	if l == nil || l.count.Load() == 0 {
		return 0
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.bySubject[subjectOf(k)]
}

// learn records the level of the key's subject. Where there is no room for another, one is dropped.
func (l *levels) learn(k *policy.Key, level int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := subjectOf(k)
	delete(l.bySubject, id)
	if level > 0 {
		if len(l.bySubject) >= maxLevels {
			for other := range l.bySubject {
				delete(l.bySubject, other)
				break
			}
		}
		if l.bySubject == nil {
			l.bySubject = map[policy.Key]int{}
		}
		l.bySubject[id.Clone()] = level
	}
	l.count.Store(int64(len(l.bySubject)))
}

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
	now := int64(0)
	run := newCall(keys, strconv.Itoa(int(firstByte(level))))
	err := s.evaluate(ctx, s.splitting, run, func(reply *elements) {
		reply.sole()
		now = reply.between(0, maxLevel)
	})
	if err != nil {
		return fmt.Errorf("split %s: %w", keys[0], err)
	}
	s.levels.learn(key, int(now))
	return nil
}
