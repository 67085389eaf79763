package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// sweepBatch is the number of entries after which a sweep pauses. One takes up to 70 ns, and no request is read
	// meanwhile in a process of one thread: all entries at once would delay requests by milliseconds.
	sweepBatch = 1024
	// sweepPause is the time between two parts of a sweep. The parts of all shards fit into a span.
	sweepPause = span / shardCount
)

// sweepProgress is the progress of the sweep of all shards, which begins once in a span.
type sweepProgress struct {
	began limit.Micros
	next  limit.Micros // instant of the next part; 0: before the first sweep
	shard int          // the first that this sweep has not visited
}

// sweepSome does the part of a sweep that is due at now, and returns the instant of the next part.
func (s *Leases) sweepSome(now limit.Micros) (next limit.Micros) {
	w := &s.sweeping
	switch {
	case w.next == 0:
		w.next = now + span
	case now >= w.next:
		if w.shard == 0 {
			w.began = now
		}
		for visited := 0; visited < sweepBatch && w.shard < shardCount; w.shard++ {
			visited += s.sweepShard(&s.shards[w.shard], now-maxGrantAge)
		}
		w.next = now + sweepPause
		if w.shard == shardCount {
			w.shard, w.next = 0, max(w.next, w.began+span)
		}
	}
	return w.next
}

// sweep sweeps all shards at once.
func (s *Leases) sweep(before limit.Micros) {
	for i := range s.shards {
		s.sweepShard(&s.shards[i], before)
	}
}

// sweepShard withdraws grants from before an instant and grants of idle buckets, and removes idle entries. It returns
// the number of entries that it has visited.
func (s *Leases) sweepShard(sh *shard, before limit.Micros) (visited int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	visited = len(sh.entries)
	for hash, e := range sh.entries {
		since := before
		if now-e.lastUsed >= idleAfter {
			since = forever
		}
		if e.terms != nil && e.holdings.available() > 0 {
			if grants := e.holdings.withdraw(since, now); grants != [2]grant{} {
				b := policy.Bound{Policy: e.terms.leased, Key: e.key}
				s.scheduleReturn(dueRenewal{shard: sh, entry: e}, b, grants)
			}
		}
		if e.isIdle(now) {
			sh.remove(hash, e)
		}
	}
	return visited
}
