package redis

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// maxLevel bounds into how many chunks a subject is split: 256, so that 8,192 buckets are in chunks of 32.
	maxLevel = 8
	// maxLevels bounds of how many subjects the levels are kept, some 200 bytes each.
	maxLevels = 1 << 16
)

// levels are the subjects that this node knows to be split, and into how many chunks: 2^level. All others are taken for
// whole. A level that is wrong costs one more call: the script answers the right one and has done nothing.
type levels struct {
	split atomic.Int64 // how many are kept: mostly none

	mu sync.RWMutex
	of map[subjectID]int
}

// subjectID names a subject: it is what the keys of all of its buckets have in common.
type subjectID struct {
	namespace, owner, subject string
	group                     policy.Group
	kind                      policy.Kind
}

func subjectOf(k *policy.Key) subjectID {
	return subjectID{namespace: k.Namespace, owner: k.GroupID, subject: k.Subject, group: k.Group, kind: k.Kind}
}

// chunkOf returns the number of the chunk that holds the bucket of a name, or head. A subject's own buckets stay in its
// head: most requests ask for one, so that the head is not read for its level alone.
func chunkOf(name []byte, level int) int {
	if level == 0 || name[0] == own {
		return head
	}
	return int(name[0]) & (1<<level - 1)
}

// level returns the level of the key's subject. A nil levels knows none.
func (l *levels) level(k *policy.Key) int {
	if l == nil || l.split.Load() == 0 {
		return 0
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.of[subjectOf(k)]
}

// learn records the level of the key's subject. Where there is no room for another, one is forgotten.
func (l *levels) learn(k *policy.Key, level int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := subjectOf(k)
	if _, known := l.of[id]; level == 0 {
		delete(l.of, id)
	} else {
		if !known && len(l.of) >= maxLevels {
			for other := range l.of {
				delete(l.of, other)
				break
			}
		}
		if l.of == nil {
			l.of = map[subjectID]int{}
		}
		if !known { // the names may be cut from much larger texts
			id.namespace, id.owner, id.subject = strings.Clone(id.namespace), strings.Clone(id.owner), strings.Clone(id.subject)
		}
		l.of[id] = level
	}
	l.split.Store(int64(len(l.of)))
}
