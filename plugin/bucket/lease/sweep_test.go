package lease

import (
	"context"
	"testing"
)

func TestASweepOfManyBucketsPausesBetweenItsParts(t *testing.T) {
	const perShard, buckets, mostAtOnce = 200, 200 * shardCount, 1500
	n := newNode(newBank(), Options{})
	policy := window(t, "idle", 1).Policy
	for i := range n.shards {
		for hash := range uint64(perShard) {
			n.shards[i].entries[hash] = &entry{policy: policy}
		}
	}
	clock := n.bank.clock
	clock.Advance(2*idleAfter - clock.Now()%span)
	due := n.Step(context.Background(), clock.Now())
	first := due
	for left := buckets; left > 0; {
		clock.Advance(due - clock.Now())
		next := n.Step(context.Background(), clock.Now())
		now := n.Stats().Entries
		if visited := left - now; visited == 0 || visited > mostAtOnce {
			t.Fatalf("one part of the sweep visits %d of %d buckets; want at most %d", visited, buckets, mostAtOnce)
		}
		if now > 0 && next-due < minSleep {
			t.Fatalf("the next part of the sweep comes %d µs later; want %d or more", next-due, minSleep)
		}
		left, due = now, next
	}
	if due != first+span {
		t.Errorf("the next sweep comes %d µs after the first; want %d", due-first, span)
	}
}
